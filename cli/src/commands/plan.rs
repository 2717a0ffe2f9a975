//! `plan`: prints every action on every object, node by node, then the failed checks.

use super::planning::{self, verdict};
use crate::args::PlanArguments;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::Output;
use crate::planned::Planned;
use crate::render::checks;
use crate::render::plan::{PlanDocument, plan};
use crate::say;

pub(super) async fn run(
    cluster: &Cluster,
    look: &PlanArguments,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Outcome, CliError> {
    let planned = planning::look(cluster, look, variables).await?;
    match look.shown.output {
        Output::Json => say::json(&PlanDocument::of(
            &planned.migration,
            &planned.nodes,
            &planned.records,
        ))?,
        Output::Table => say::answer(&text(&planned))?,
    }
    Ok(verdict(&planned))
}

/// The plan, and whether the migration may start.
pub(super) fn text(planned: &Planned) -> String {
    let status = planned.migration.status.clone().unwrap_or_default();
    let mut text = plan(&planned.migration, &planned.nodes, &planned.records).unwrap_or_else(|| {
        format!(
            "There is no plan: its inputs were not found\n\n{}",
            checks::refusals(&status.checks)
        )
    });
    text.push('\n');
    let name = planned.name();
    if planned.has_begun() {
        text.push_str(&format!(
            "Migration {name} has started and is {}\n",
            status.phase.as_str()
        ));
    } else if verdict(planned) == Outcome::Refused {
        text.push_str(&format!(
            "Migration {name} is REFUSED; nothing has changed\n{}: {}\n",
            status.reason, status.message
        ));
    } else {
        text.push_str(&format!("Migration {name} may start; nothing has changed\n"));
    }
    text
}
