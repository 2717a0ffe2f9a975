//! The status that the agent reports, and the smallest patch that writes it.

use std::collections::BTreeSet;
use std::time::Duration;

use api::node_migration::{Failure, FinishedStep, NodeMigrationStatus, ProbeResult};
use api::traffic::TrafficReport;
use api::{NodeMigration, names};
use engine::check::{Check, Verdict};
use flannel_to_calico::facts::{Found, HostFacts};
use flannel_to_calico::host::links_without_known_pod;
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use runtime::error::chain;
use serde_json::{Value, json};
use thiserror::Error;

/// Result of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The phase that the host is provably in.
    pub phase: Option<Phase>,
    /// The agent's current activity, or what it waits for.
    pub message: String,
    /// Why the agent cannot continue.
    pub failure: Option<Failure>,
    /// Facts read from the host.
    pub facts: Option<HostFacts>,
    /// Facts about the two pod ranges, if a podCidr migration requests them.
    pub pod_cidr: Option<pod_cidr::host::HostFacts>,
    /// Facts about the two Service ranges, if a serviceCidr migration requests them.
    pub service_cidr: Option<service_cidr::host::HostFacts>,
    /// Objects of the old network that are on the host.
    pub leftovers: Vec<String>,
    /// Differences from the state before the migration.
    pub changes: Vec<String>,
    /// The goal that the agent worked towards.
    pub goal: Option<Goal>,
    /// Why the host was rolled back automatically.
    pub fell_back: Option<String>,
    /// Time until the host is rolled back automatically, unless the migration continues before.
    pub falls_back_in: Option<Duration>,
    /// The change that the next observation waits for.
    pub pending: Pending,
    /// Checks of the host.
    pub checks: Vec<Check>,
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

    /// Number of objects of the old network on the host, whatever the kind of the migration.
    pub fn count_leftovers(&self) -> usize {
        let in_old_range = self.pod_cidr.as_ref().map_or(0, |facts| facts.source.count());
        self.leftovers.len() + in_old_range
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
        phase,
        message,
        failure,
        facts,
        pod_cidr,
        service_cidr,
        leftovers,
        changes,
        goal,
        fell_back,
        falls_back_in: _,
        pending: _,
        checks,
        steps,
        probes,
        traffic,
    } = report;
    let phase_since = match (old.phase, phase) {
        (_, None) => None,
        (Some(before), Some(phase)) if before == *phase => old.phase_since.or(Some(now)),
        (_, Some(_)) => Some(now),
    };
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
    NodeMigrationStatus {
        observed_generation: generation,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        phase: *phase,
        phase_since,
        message: message.clone(),
        failure: failure.clone(),
        facts: facts.clone(),
        pod_cidr: pod_cidr.clone(),
        service_cidr: service_cidr.clone(),
        leftovers: leftovers.clone(),
        changes: changes.clone(),
        goal: *goal,
        automatic_rollback: fell_back.clone(),
        checks: checks.clone(),
        steps: steps.clone(),
        probes,
        traffic: traffic_to_report(old.traffic.as_ref(), traffic.as_ref()),
    }
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

/// How long after the last write a change may be delayed (R: no write to the API that no component waits for). `spec_goal` is the
/// goal of the spec.
pub fn may_wait(spec_goal: Goal, old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> Duration {
    let goal = goal(spec_goal, new);
    if is_urgent(goal, old, new) {
        Duration::ZERO
    } else if without_pods(goal, old) == without_pods(goal, new) {
        PODS_WAIT
    } else {
        FACTS_WAIT
    }
}

/// The goal of the host. An agent that cannot write its journal works towards no goal and reports [`Goal::Hold`], whatever the
/// state of its host: the goal of the spec counts then.
fn goal(spec_goal: Goal, new: &NodeMigrationStatus) -> Goal {
    match new.goal {
        None | Some(Goal::Hold) => spec_goal,
        Some(worked_towards) => worked_towards,
    }
}

/// Whether a change has to be written immediately.
fn is_urgent(goal: Goal, old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> bool {
    let without_facts = |status: &NodeMigrationStatus| NodeMigrationStatus {
        facts: None,
        pod_cidr: None,
        service_cidr: None,
        leftovers: Vec::new(),
        checks: verdicts(&status.checks),
        traffic: status.traffic.clone().map(|traffic| TrafficReport {
            classes: Vec::new(),
            at: Timestamp::UNIX_EPOCH,
            ..traffic
        }),
        ..status.clone()
    };
    let pods = |status: &NodeMigrationStatus| status.facts.as_ref().map(|facts| facts.legacy_pods.clone());
    let unread =
        |status: &NodeMigrationStatus| status.facts.as_ref().map(|facts| facts.unread_processes.clone());
    let ranges = match (&old.pod_cidr, &new.pod_cidr) {
        (None, None) => false,
        (Some(before), Some(after)) => pod_cidr::host::is_news(before, after),
        (None, Some(_)) | (Some(_), None) => true,
    };
    let services = match (&old.service_cidr, &new.service_cidr) {
        (None, None) => false,
        (Some(before), Some(after)) => service_cidr::host::is_news(before, after),
        (None, Some(_)) | (Some(_), None) => true,
    };
    ranges
        || services
        || unread(old) != unread(new)
        || old.facts.is_some() != new.facts.is_some()
        || without_facts(old) != without_facts(new)
        || (pods_decide(goal, new) && pods(old) != pods(new))
        || has_late_pod(goal, old, new)
}

/// Whether a pod was added to the old network of a host that leaves it: Calico must not assign its address to another pod.
fn has_late_pod(goal: Goal, old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> bool {
    let pods = |status: &NodeMigrationStatus| {
        let facts = status.facts.iter();
        let pods = facts.flat_map(|facts| &facts.legacy_pods);
        pods.map(|pod| pod.sandbox.clone()).collect::<BTreeSet<_>>()
    };
    goal.is_forward() && !pods(new).is_subset(&pods(old))
}

/// Whether the coordinator's next action depends on the pods of the host: while the goal is not reached; and afterwards, when the
/// last pods of the old network end.
fn pods_decide(goal: Goal, status: &NodeMigrationStatus) -> bool {
    /// With at most this many pods each one counts: the last ones may be replumb's traffic pods, which are deleted after all
    /// others.
    const FEW: usize = 3;
    let few = || {
        status
            .facts
            .as_ref()
            .is_none_or(|facts| facts.legacy_pods.len() <= FEW)
    };
    let is_reached = |wanted| status.phase.is_some_and(|phase| phase.reaches(wanted));
    goal == Goal::Flannel || goal.phase().is_some_and(|wanted| !is_reached(wanted) || few())
}

/// Checks without the found value of those that pass: it contains the number of pods.
fn verdicts(checks: &[Check]) -> Vec<Check> {
    let without_found = |check: &Check| match check.verdict {
        Verdict::Pass => Check {
            found: String::new(),
            ..check.clone()
        },
        Verdict::Warn | Verdict::Unknown | Verdict::Fail => check.clone(),
    };
    checks.iter().map(without_found).collect()
}

/// A status without the values that change with each pod. Once the host has a goal, pods of the old network only end, each once:
/// the result contains them then; on the way back it contains Calico's pods, too. Pods on the bridge without a record are always
/// contained, since preflight reports them.
fn without_pods(goal: Goal, status: &NodeMigrationStatus) -> (NodeMigrationStatus, Vec<String>) {
    let unknown = status
        .facts
        .as_ref()
        .map(links_without_known_pod)
        .unwrap_or_default();
    let mut rest = NodeMigrationStatus {
        checks: verdicts(&status.checks),
        leftovers: Vec::new(),
        ..status.clone()
    };
    if let Some(facts) = &mut rest.facts {
        if goal == Goal::Hold {
            facts.legacy_pods.clear();
            if let Found::Present(bridge) = &mut facts.bridge {
                bridge.ports.clear();
            }
            (facts.leases, facts.delegates) = (0, 0);
        }
        if goal != Goal::Flannel {
            // Whether any pod exists still counts.
            facts.calico.pods.truncate(1);
            facts.calico.pods.iter_mut().for_each(String::clear);
            facts.calico.records = 0;
        }
    }
    (rest, unknown)
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
