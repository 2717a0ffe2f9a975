//! The common parts of `preflight`, `plan` and `apply`: the request, the planned Migration, and its verdict.

use api::migration::MigrationPhase;

use crate::args::PlanArguments;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::planned::{self, Planned, Purpose};
use crate::request::Request;
use crate::say;

/// The common start of `preflight` and `plan`.
pub(super) async fn look(
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

pub(super) fn asked(
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
pub(super) fn verdict(planned: &Planned) -> Outcome {
    if planned.phase() == MigrationPhase::Refused {
        Outcome::Refused
    } else {
        Outcome::Done
    }
}
