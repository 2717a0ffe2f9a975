//! The status that the agent reports, and the smallest patch that writes it.

use std::time::Duration;

use api::node_migration::{Failure, FinishedStep, NodeMigrationSpec, NodeMigrationStatus, ProbeResult};
use api::traffic::TrafficReport;
use api::{NodeMigration, names};
use engine::host_report::Urgency;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use runtime::error::chain;
use serde_json::{Value, json};
use thiserror::Error;

use crate::kinds;

/// Result of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The agent's current activity, or what it waits for.
    pub message: String,
    /// Why the agent cannot continue.
    pub failure: Option<Failure>,
    /// What the kinds report: only their fields are set.
    pub kinds: NodeMigrationStatus,
    /// Time until the host is rolled back automatically, unless the migration continues before.
    pub falls_back_in: Option<Duration>,
    /// The change that the next observation waits for.
    pub pending: Pending,
    /// Steps performed, the newest last.
    pub steps: Vec<FinishedStep>,
    /// Results of the probes.
    pub probes: Vec<ProbeResult>,
    /// Report of the traffic pods.
    pub traffic: Option<TrafficReport>,
}

impl Report {
    /// The report about a host that cannot be read. The agent tries again.
    pub fn unreadable(category: &str, error: &dyn std::error::Error) -> Self {
        let message = format!("could not observe the host: {}", chain(error));
        Self {
            failure: Some(Failure {
                category: category.to_owned(),
                message: message.clone(),
                retriable: true,
            }),
            message,
            ..Self::default()
        }
    }
}

/// The change that the next observation waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pending {
    /// The host has no goal.
    #[default]
    NoGoal,
    /// The goal is reached, and has to stay reached.
    GoalReached,
    /// A change that causes no event, and that the migration waits for: the end of a process, a rule of kube-proxy.
    Process,
    /// Any other change that the migration waits for.
    Change,
    /// The host has no goal, and changes of what is observed cause no events.
    Unobservable,
}

/// The status could not be written.
#[derive(Debug, Error)]
#[error("writing the status of NodeMigration {name}")]
pub struct ReportError {
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
pub async fn write(
    api: &Api<NodeMigration>,
    object: &NodeMigration,
    wanted: &NodeMigrationStatus,
) -> Result<Option<NodeMigration>, ReportError> {
    let name = object.name_any();
    let error = |source| ReportError {
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
#[path = "report_tests.rs"]
mod tests;
