//! Conversion of Calico's data from v2 (etcd v2) to v3 (etcd v3): `datastore` uses only both etcds; [`migration`] runs in a
//! cluster.

mod dry_run;
pub mod flags;
pub mod migration;
mod status;
mod stores;
mod work;

use crate::error::CliError;
use crate::exit::Outcome;
use flags::{Datastore, Verb};

/// Runs a subcommand.
pub async fn run(
    datastore: &Datastore,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Outcome, CliError> {
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
