//! `plan --simulate`: runs the whole migration in memory, with the usual times and with the shortest and longest ones.

use offline::bundle;
use offline::rehearsal::pace::Pace;
use offline::rehearsal::record::Rehearsal;
use offline::rehearsal::{self, Outcome as Rehearsed};
use offline::snapshot::Snapshot;

use super::{bundle as collected, plan, planning};
use crate::args::PlanArguments;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::Output;
use crate::planned::Planned;
use crate::render::rehearsal::{RehearsalDocument, text};
use crate::say;

pub(super) async fn run(
    cluster: &Cluster,
    look: &PlanArguments,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Outcome, CliError> {
    let planned = planning::look(cluster, look, variables).await?;
    if planning::verdict(&planned) == Outcome::Refused {
        say::answer(&plan::text(&planned))?;
        return Ok(Outcome::Refused);
    }
    let snapshot = snapshot(cluster, &planned).await?;
    let [usual, quick, slow] =
        [Pace::USUAL, Pace::QUICK, Pace::SLOW].map(|pace| rehearse(&snapshot, &planned, pace));
    let document = RehearsalDocument {
        migration: planned.name(),
        plan_hash: planned
            .migration
            .status
            .as_ref()
            .and_then(|status| Some(status.plan.as_ref()?.hash.clone())),
        usual: usual.await?,
        quick: quick.await?,
        slow: slow.await?,
    };
    match look.shown.output {
        Output::Json => say::json(&document)?,
        Output::Table => say::answer(&text(&document))?,
    }
    Ok(Outcome::Done)
}

/// The cluster with the Migration.
async fn snapshot(cluster: &Cluster, planned: &Planned) -> Result<Snapshot, CliError> {
    let Some(content) = cluster.snapshot_content() else {
        let document = collected::collect(cluster, planned).await?;
        return Snapshot::of(document).map_err(|error| collected::offline(error.into()));
    };
    let mut snapshot = content.clone();
    snapshot
        .put(bundle::before_start(&planned.migration))
        .map_err(|error| collected::offline(error.into()))?;
    Ok(snapshot)
}

async fn rehearse(snapshot: &Snapshot, planned: &Planned, pace: Pace) -> Result<Rehearsal, CliError> {
    let rehearsed = Box::pin(rehearsal::rehearse(snapshot.clone(), &planned.name(), pace)).await;
    match rehearsed.map_err(collected::offline)? {
        Rehearsed::Rehearsed(rehearsal) => Ok(*rehearsal),
        Rehearsed::Refused(judgement) => Err(collected::offline(anyhow::anyhow!(
            "the checks refuse the migration in the rehearsal: {}",
            judgement.message
        ))),
    }
}
