//! The status that the agent reports, and the smallest patch that writes it.

use std::time::Duration;

use api::node_migration::{NodeMigrationSpec, NodeMigrationStatus};
use api::traffic::TrafficReport;
use api::{NodeMigration, names};
use engine::host_report::Urgency;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use thiserror::Error;

use crate::kinds;
use crate::report::Report;

/// The status could not be written.
#[derive(Debug, Error)]
#[error("writing the status of NodeMigration {name}")]
pub struct StatusError {
    name: String,
    /// Error of the request to the API server.
    #[source]
    pub source: kube::Error,
}

/// The status with this report. A time is kept while the value that it dates is unchanged.
pub fn status(
    report: &Report,
    generation: i64,
    old: &NodeMigrationStatus,
    now: Timestamp,
) -> NodeMigrationStatus {
    let Report {
        message,
        failure,
        kinds,
        falls_back_in: _,
        pending: _,
        steps,
        probes,
        traffic,
    } = report;
    let probes = probes
        .iter()
        .map(|result| {
            let same = old.probes.iter().find(|before| {
                before.target == result.target
                    && before.reached == result.reached
                    && before.message == result.message
            });
            same.unwrap_or(result).clone()
        })
        .collect();
    let mut status = NodeMigrationStatus {
        observed_generation: generation,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        message: message.clone(),
        failure: failure.clone(),
        steps: steps.clone(),
        probes,
        traffic: traffic_to_report(old.traffic.as_ref(), traffic.as_ref()),
        ..kinds.clone()
    };
    kinds::keep_times(&mut status, old, now);
    status
}

/// The new report; the old one while only the counts of sent probes differ, which are no reason to write.
fn traffic_to_report(old: Option<&TrafficReport>, new: Option<&TrafficReport>) -> Option<TrafficReport> {
    let news = |report: &TrafficReport| {
        let lost: Vec<_> = report
            .classes
            .iter()
            .map(|count| {
                (
                    count.class,
                    count.totals.lost,
                    count.totals.late,
                    count.totals.longest_gap_milliseconds,
                )
            })
            .collect();
        (
            report.flows,
            report.losses_counted_since,
            report.reporting.clone(),
            report.breaches.clone(),
            report.floods.clone(),
            report.masquerades.clone(),
            lost,
        )
    };
    match (old, new) {
        (Some(old), Some(new)) if news(old) == news(new) => Some(old.clone()),
        (_, new) => new.cloned(),
    }
}

/// How long the write of a change in facts alone may be delayed.
const FACTS_WAIT: Duration = Duration::from_secs(10);
/// How long the write of added and removed pods may be delayed while no decision depends on it. Pods change on every node all the
/// time: with 5 000 nodes, one write for each change is more than all writes of a migration.
const PODS_WAIT: Duration = Duration::from_mins(10);

/// How long after the last write a change may be delayed (R: no write to the API that no component waits for).
pub fn may_wait(spec: &NodeMigrationSpec, old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> Duration {
    match common_urgency(old, new).min(kinds::urgency(spec, old, new)) {
        Urgency::Now => Duration::ZERO,
        Urgency::Soon => FACTS_WAIT,
        Urgency::Late => PODS_WAIT,
    }
}

/// How soon the changes are needed that are of no kind.
fn common_urgency(old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> Urgency {
    let without_counts = |status: &NodeMigrationStatus| NodeMigrationStatus {
        traffic: status.traffic.clone().map(|traffic| TrafficReport {
            classes: Vec::new(),
            at: Timestamp::UNIX_EPOCH,
            ..traffic
        }),
        ..kinds::without_kinds(status)
    };
    if without_counts(old) != without_counts(new) {
        Urgency::Now
    } else if old.traffic != new.traffic {
        Urgency::Soon
    } else {
        Urgency::Late
    }
}

/// The merge patch of the status; `None` when the object has this status already.
///
/// # Errors
///
/// A status cannot be written as JSON.
pub fn patch(
    object: &NodeMigration,
    wanted: &NodeMigrationStatus,
) -> Result<Option<Value>, serde_json::Error> {
    let old = match &object.status {
        Some(status) => serde_json::to_value(status)?,
        None => json!({}),
    };
    let new = serde_json::to_value(wanted)?;
    Ok(api::merge::difference(&old, &new).map(|change| {
        json!({
            // Another object with the same name belongs to another Migration, with another goal.
            "metadata": { "uid": object.uid() },
            "status": change,
        })
    }))
}

/// Writes the status and returns the object after the write; `None` when there is nothing to write.
///
/// # Errors
///
/// The API server refuses the patch or does not answer.
pub async fn write(
    api: &Api<NodeMigration>,
    object: &NodeMigration,
    wanted: &NodeMigrationStatus,
) -> Result<Option<NodeMigration>, StatusError> {
    let name = object.name_any();
    let error = |source| StatusError {
        name: name.clone(),
        source,
    };
    let Some(change) = patch(object, wanted).map_err(|source| error(kube::Error::SerdeError(source)))? else {
        return Ok(None);
    };
    let parameters = PatchParams {
        field_manager: Some(names::AGENT_FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    api.patch_status(&name, &parameters, &Patch::Merge(change))
        .await
        .map(Some)
        .map_err(error)
}

#[cfg(test)]
mod tests;
