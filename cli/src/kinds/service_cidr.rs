//! A new range for Services: flags, settings, progress, and the effect of a rollback.

mod error;
mod flags;
mod rollback;
mod settings;
mod status;

use ::service_cidr::ranges::joined;
use api::{Migration, MigrationSpec};
use futures::future::LocalBoxFuture;

use super::kind::{KindCommands, KindTypes};
use super::nothing::Nothing;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::rollback_targets::RollbackTargets;

/// serviceCidr in the commands.
pub struct Commands;

impl KindTypes for Commands {
    type Flags = flags::Flags;
    type Manifest = Nothing;
    type Standalone = Nothing;
    type Settings = ::service_cidr::settings::Settings;
    type Progress = status::ServicesView;
}

impl KindCommands for Commands {
    fn extent(&self, spec: &MigrationSpec) -> Option<String> {
        let range = spec.service_cidr.as_ref()?;
        Some(format!("moves Services to {}", joined(&range.to)))
    }

    fn rolled_back_alone<'spec>(&self, spec: &'spec mut MigrationSpec) -> Option<&'spec mut Vec<String>> {
        spec.service_cidr.as_mut().map(|kind| &mut kind.rollback_services)
    }

    fn check_rollback<'run>(
        &'run self,
        cluster: &'run Cluster,
        migration: &'run Migration,
        targets: &'run RollbackTargets,
    ) -> LocalBoxFuture<'run, Result<Option<String>, CliError>> {
        Box::pin(async {
            let book = rollback::book(cluster, migration, targets).await?;
            rollback::possible(migration, targets, &book)?;
            Ok(rollback::describe(migration, &targets.services, &book))
        })
    }
}
