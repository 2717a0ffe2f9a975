//! A new range for pods: flags, manifests from a kops cluster spec, settings, progress, and the effect of a rollback.

mod error;
mod flags;
mod generate;
mod help;
mod manifest;
mod rollback;
mod route;
mod settings;
mod status;

use api::{Migration, MigrationSpec};
use futures::future::LocalBoxFuture;

use super::kind::{KindCommands, KindTypes};
use super::nothing::Nothing;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::rollback_targets::RollbackTargets;

/// podCidr in the commands.
pub struct Commands;

impl KindTypes for Commands {
    type Flags = flags::Flags;
    type Manifest = generate::Manifest;
    type Standalone = Nothing;
    type Settings = ::pod_cidr::settings::Settings;
    type Progress = status::PodsView;
}

impl KindCommands for Commands {
    fn extent(&self, spec: &MigrationSpec) -> Option<String> {
        let range = spec.pod_cidr.as_ref()?;
        Some(format!("moves pods from {} to {}", range.from, range.to))
    }

    fn check_rollback<'run>(
        &'run self,
        _cluster: &'run Cluster,
        migration: &'run Migration,
        targets: &'run RollbackTargets,
    ) -> LocalBoxFuture<'run, Result<Option<String>, CliError>> {
        Box::pin(async {
            rollback::possible(migration, targets.all)?;
            Ok(rollback::describe(migration))
        })
    }
}
