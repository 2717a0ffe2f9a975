//! `pause`, `resume` and `abort`: change `desired`, and wait until the coordinator has accepted the change.

use std::time::Duration;

use api::migration::{Desired, MigrationPhase, MigrationStatus};
use api::{Migration, MigrationSpec};
use jiff::Timestamp;
use kube::ResourceExt;
use tokio::time::Instant;

use super::watch;
use crate::args::Change;
use crate::choose;
use crate::cluster::{Cluster, has_begun, phase};
use crate::error::CliError;
use crate::exit::Outcome;
use crate::health;
use crate::kinds;
use crate::output::Output;
use crate::render::status::line;
use crate::render::view::View;
use crate::retry::{POLL_INTERVAL, read_with_retries};
use crate::say;

pub(super) async fn pause(cluster: &Cluster, change: &Change) -> Result<Outcome, CliError> {
    let there = choose::existing(&cluster.migrations().await?, change.name.as_deref())?;
    require_not_ended(&there)?;
    if !has_begun(&there) && there.spec.desired != Desired::Run {
        return Err(not_now(
            &there,
            "has not started: there is nothing to pause",
            "`kubectl replumb apply` starts it",
        ));
    }
    Box::pin(want(cluster, &there, change, Desired::Pause)).await
}

pub(super) async fn abort(cluster: &Cluster, change: &Change) -> Result<Outcome, CliError> {
    let there = choose::existing(&cluster.migrations().await?, change.name.as_deref())?;
    require_not_ended(&there)?;
    require_started(&there)?;
    Box::pin(want(cluster, &there, change, Desired::Abort)).await
}

pub(super) async fn resume(cluster: &Cluster, change: &Change) -> Result<Outcome, CliError> {
    let there = choose::existing(&cluster.migrations().await?, change.name.as_deref())?;
    require_not_ended(&there)?;
    require_started(&there)?;
    let mut spec = MigrationSpec {
        desired: Desired::Run,
        // Timeouts restart now.
        resumed_at: Some(Timestamp::now()),
        ..there.spec.clone()
    };
    // Nodes and Services that were rolled back are migrated again.
    if let Some(alone) = kinds::of(&there.spec).rolled_back_alone(&mut spec) {
        alone.clear();
    }
    let written = cluster.change(&there, &spec).await?;
    Box::pin(follow(cluster, &written, change)).await
}

/// Refuses a Migration that has ended.
pub(super) fn require_not_ended(migration: &Migration) -> Result<(), CliError> {
    let phase = migration
        .status
        .as_ref()
        .map(|status| status.phase)
        .unwrap_or_default();
    if phase.is_over() {
        let state = format!("is {}: nothing can be changed any more", phase.as_str());
        return Err(not_now(migration, &state, "`kubectl replumb status`"));
    }
    Ok(())
}

/// Refuses a Migration that has not started.
pub(super) fn require_started(migration: &Migration) -> Result<(), CliError> {
    if has_begun(migration) {
        return Ok(());
    }
    Err(not_now(
        migration,
        &format!("has not started (phase {})", phase(migration)),
        "`kubectl replumb apply` shows the plan and starts the migration",
    ))
}

async fn want(
    cluster: &Cluster,
    there: &Migration,
    change: &Change,
    desired: Desired,
) -> Result<Outcome, CliError> {
    let spec = MigrationSpec {
        desired,
        // Timeouts of the forward migration do not apply to the rollback.
        resumed_at: if desired == Desired::Abort {
            Some(Timestamp::now())
        } else {
            there.spec.resumed_at
        },
        ..there.spec.clone()
    };
    let written = cluster.change(there, &spec).await?;
    Box::pin(follow(cluster, &written, change)).await
}

fn not_now(migration: &Migration, state: &str, hint: &str) -> CliError {
    CliError::NotPossible {
        name: migration.name_any(),
        state: state.to_owned(),
        hint: hint.to_owned(),
    }
}

async fn follow(cluster: &Cluster, written: &Migration, change: &Change) -> Result<Outcome, CliError> {
    if change.wait {
        return watch::run(cluster, &written.name_any(), change.shown.output, None).await;
    }
    let seen = wait_until_accepted(cluster, written, change.timeout, |_| true).await?;
    let deadline = Instant::now() + change.timeout;
    let nodes = read_with_retries(deadline, async || cluster.nodes(&seen.name_any()).await).await?;
    let view = View::of(&seen, &nodes);
    match change.shown.output {
        Output::Json => say::json(&view)?,
        Output::Table => {
            let mut text = format!("{}\n", line(&view));
            if view.paused && !view.progress.working.is_empty() {
                let end = match view.desired {
                    Desired::Abort => "rolled back",
                    Desired::Plan | Desired::Run | Desired::Pause | Desired::Rollback => "finished first",
                };
                text.push_str(&format!(
                    "nodes in progress, {end}: {}\n",
                    view.progress.working.join(", ")
                ));
            }
            say::answer(&text)?;
        }
    }
    // Success, unless a resume leaves the migration halted or refused.
    Ok(match (view.phase, written.spec.desired) {
        (MigrationPhase::Halted, Desired::Run) => Outcome::Failed,
        (MigrationPhase::Refused, Desired::Run) => Outcome::Refused,
        _ => Outcome::Done,
    })
}

/// Waits until the status is of the written generation and `reached` returns true.
pub(super) async fn wait_until_accepted(
    cluster: &Cluster,
    written: &Migration,
    patience: Duration,
    reached: impl Fn(&MigrationStatus) -> bool,
) -> Result<Migration, CliError> {
    let name = written.name_any();
    let generation = written.metadata.generation.unwrap_or_default();
    let deadline = Instant::now() + patience;
    loop {
        let read = read_with_retries(deadline, async || cluster.migration(&name).await)
            .await?
            .ok_or_else(|| CliError::Gone { name: name.clone() })?;
        let status = read.status.clone().unwrap_or_default();
        if status.observed_generation >= generation && reached(&status) {
            return Ok(read);
        }
        if Instant::now() >= deadline {
            let seen = format!(
                "phase {}, observedGeneration {} of {generation}: {}",
                phase(&read),
                status.observed_generation,
                status.message
            );
            let missing = health::missing(cluster).await;
            return Err(CliError::Deadline {
                name,
                wanted: "accepted by the coordinator",
                waited: patience,
                seen,
                missing,
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
