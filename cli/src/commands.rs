//! The subcommands, one file each.

mod apply;
mod bundle;
mod change;
mod plan;
mod planning;
mod preflight;
mod rehearsal;
mod rollback;
mod snapshot;
mod status;
mod version;
mod watch;

use std::path::Path;

use offline::cluster::MemoryCluster;

use crate::args::{Command, Generate};
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::OutputFlags;
use crate::say;

/// Runs a command.
pub async fn run(
    cluster: &Cluster,
    command: &Command,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Outcome, CliError> {
    match command {
        Command::Preflight(judgement) => preflight::run(cluster, &judgement.look, variables).await,
        Command::Plan(wanted) if wanted.simulate => {
            Box::pin(rehearsal::run(cluster, &wanted.judgement.look, variables)).await
        }
        Command::Plan(wanted) => plan::run(cluster, &wanted.judgement.look, variables).await,
        Command::Bundle(wanted) => bundle::run(cluster, wanted, variables).await,
        Command::Apply(apply) => apply::run(cluster, apply, variables).await,
        Command::Status(status) => Box::pin(status::run(cluster, status)).await,
        Command::Pause(change) => Box::pin(change::pause(cluster, change)).await,
        Command::Resume(change) => Box::pin(change::resume(cluster, change)).await,
        Command::Abort(change) => Box::pin(change::abort(cluster, change)).await,
        Command::Rollback(rollback) => Box::pin(rollback::run(cluster, rollback)).await,
        Command::Generate(kind) => generate(kind),
        Command::OfKind(command) => Box::pin(command.run(variables)).await,
        Command::Version(shown) => version(Ok(cluster.clone()), *shown).await,
    }
}

/// Runs a command on the cluster of a snapshot, in memory.
pub async fn run_offline(
    snapshot: &Path,
    command: &Command,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Outcome, CliError> {
    let content = snapshot::read(snapshot)?;
    let memory = MemoryCluster::of(content.clone()).map_err(|error| snapshot::refused(snapshot, &error))?;
    let cluster = Cluster::of_snapshot(memory.client(), &snapshot.display().to_string(), content);
    tokio::select! {
        outcome = run(&cluster, command, variables) => outcome,
        ended = memory.run() => match ended {
            Ok(never) => match never {},
            Err(source) => Err(CliError::Offline { source }),
        },
    }
}

/// Prints versions. Without a connection, the version of this tool only.
pub async fn version(cluster: Result<Cluster, CliError>, shown: OutputFlags) -> Result<Outcome, CliError> {
    version::run(cluster, shown).await
}

/// Prints a manifest. This command needs no cluster and no kubeconfig.
pub fn generate(generate: &Generate) -> Result<Outcome, CliError> {
    say::answer(&generate.kind.text()?)?;
    Ok(Outcome::Done)
}
