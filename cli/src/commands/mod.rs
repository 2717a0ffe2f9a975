//! The subcommands, one file each.

mod apply;
mod change;
pub mod confirm;
mod plan;
mod preflight;
mod rollback;
mod status;
mod version;
mod watch;

use api::migration::MigrationPhase;

use crate::args::{Command, Generate, PlanArguments};
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::planned::{self, Planned, Purpose};
use crate::request::Request;
use crate::say;

/// Runs a command.
pub async fn run(
    cluster: &Cluster,
    command: &Command,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Outcome, CliError> {
    match command {
        Command::Preflight(look) => preflight::run(cluster, look, variables).await,
        Command::Plan(look) => plan::run(cluster, look, variables).await,
        Command::Apply(apply) => apply::run(cluster, apply, variables).await,
        Command::Status(status) => Box::pin(status::run(cluster, status)).await,
        Command::Pause(change) => Box::pin(change::pause(cluster, change)).await,
        Command::Resume(change) => Box::pin(change::resume(cluster, change)).await,
        Command::Abort(change) => Box::pin(change::abort(cluster, change)).await,
        Command::Rollback(rollback) => Box::pin(rollback::run(cluster, rollback)).await,
        Command::Generate(kind) => generate(kind),
        Command::OfKind(command) => Box::pin(command.run(variables)).await,
        Command::Version(shown) => version::run(cluster, *shown).await,
    }
}

/// Prints a manifest. This command needs no cluster and no kubeconfig.
pub fn generate(generate: &Generate) -> Result<Outcome, CliError> {
    say::answer(&generate.kind.text()?)?;
    Ok(Outcome::Done)
}

/// The common start of `preflight` and `plan`.
async fn look(
    cluster: &Cluster,
    look: &PlanArguments,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Planned, CliError> {
    let asked = asked(look, variables)?;
    Box::pin(planned::plan(
        cluster,
        look.name.as_deref(),
        &asked,
        Purpose::Show,
        look.timeout,
    ))
    .await
}

fn asked(
    look: &PlanArguments,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Request, CliError> {
    let asked = Request::read(&look.wanted, variables)?;
    for warning in &asked.warnings {
        say::note(&format!("warning: {warning}"));
    }
    Ok(asked)
}

/// The exit code of `preflight` and `plan`.
fn verdict(planned: &Planned) -> Outcome {
    if planned.phase() == MigrationPhase::Refused {
        Outcome::Refused
    } else {
        Outcome::Done
    }
}
