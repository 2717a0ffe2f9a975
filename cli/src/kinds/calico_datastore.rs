//! Conversion of Calico's data from v2 (etcd v2) to v3 (etcd v3): `datastore` uses only both etcds; `migration` runs in a
//! cluster.

mod dry_run;
mod error;
mod flags;
mod help;
mod migration;
mod status;
mod stores;
mod work;

use api::{Migration, MigrationSpec};
use futures::future::LocalBoxFuture;

use super::kind::{KindCommands, KindTypes, RunStandalone};
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::rollback_targets::RollbackTargets;
use flags::{Standalone, Verb};

/// calicoDatastore in the commands.
pub struct Commands;

impl KindTypes for Commands {
    type Flags = migration::flags::Flags;
    type Manifest = migration::generate::Manifest;
    type Standalone = Standalone;
    type Settings = ::calico_datastore::cluster::settings::Settings;
    type Progress = migration::status::DatastoreView;
}

impl KindCommands for Commands {
    fn extent(&self, _spec: &MigrationSpec) -> Option<String> {
        Some("PAUSES Calico until every node runs v3: new pods get no network".to_owned())
    }

    fn check_rollback<'run>(
        &'run self,
        _cluster: &'run Cluster,
        migration: &'run Migration,
        targets: &'run RollbackTargets,
    ) -> LocalBoxFuture<'run, Result<Option<String>, CliError>> {
        Box::pin(async {
            targets.require_no_services(migration)?;
            migration::rollback::possible(migration, targets)?;
            Ok(migration::rollback::describe(migration))
        })
    }
}

impl RunStandalone for Standalone {
    async fn run(&self, variables: impl IntoIterator<Item = (String, String)>) -> Result<Outcome, CliError> {
        let Self::Datastore(datastore) = self;
        let variables = variables.into_iter().collect();
        match &datastore.verb {
            Verb::DryRun(look) => dry_run::dry_run(look, &variables).await,
            Verb::Status(look) => status::run(look, &variables).await,
            Verb::Export(look) => work::export(look, &variables).await,
            Verb::Start(start) => work::start(start, &variables).await,
            Verb::Complete(complete) => work::complete(complete, &variables).await,
            Verb::Abort(abort) => work::abort(abort, &variables).await,
        }
    }
}
