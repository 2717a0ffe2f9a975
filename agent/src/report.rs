//! What the agent says of its node, and the smallest patch that says it.

use std::collections::BTreeSet;
use std::time::Duration;

use api::node_migration::{Failure, NodeMigrationStatus, ProbeResult, StepDone};
use api::traffic::TrafficReport;
use api::{NodeMigration, names};
use engine::check::{Check, Verdict};
use flannel_to_calico::facts::{Found, HostFacts};
use flannel_to_calico::host::unknown_ports;
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use runtime::error::chain;
use serde_json::{Value, json};
use thiserror::Error;

/// What one pass found out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What is provably true of the host.
    pub phase: Option<Phase>,
    /// What the agent does or waits for.
    pub message: String,
    /// Why it does not go on.
    pub failure: Option<Failure>,
    /// What it read.
    pub facts: Option<HostFacts>,
    /// What it found of the two ranges of pods, where they were asked for.
    pub pod_cidr: Option<pod_cidr::host::HostFacts>,
    /// What it found of the two ranges of Services, where they were asked for.
    pub service_cidr: Option<service_cidr::host::HostFacts>,
    /// What of the old network is there.
    pub leftovers: Vec<String>,
    /// What is different from before the migration.
    pub changes: Vec<String>,
    /// The goal that was worked towards.
    pub goal: Option<Goal>,
    /// Why the host goes back by itself.
    pub fell_back: Option<String>,
    /// When it goes back by itself, if nobody does anything until then.
    pub falls_back_in: Option<Duration>,
    /// What the next look waits for.
    pub pending: Pending,
    /// Its checks.
    pub checks: Vec<Check>,
    /// Steps performed, the newest last.
    pub steps: Vec<StepDone>,
    /// Results of the probes.
    pub probes: Vec<ProbeResult>,
    /// What the traffic pods found.
    pub traffic: Option<TrafficReport>,
}

impl Report {
    /// The report about a host that cannot be read. The agent tries again.
    pub fn unreadable(category: &str, error: &dyn std::error::Error) -> Self {
        let message = format!("the host cannot be read: {}", chain(error));
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
    pub fn left(&self) -> usize {
        let in_old_range = self.pod_cidr.as_ref().map_or(0, |facts| facts.in_old.count());
        self.leftovers.len() + in_old_range
    }
}

/// What the next look waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pending {
    /// Nothing is asked of this host.
    #[default]
    Nothing,
    /// What was asked is so, and has to stay so.
    Reached,
    /// What somebody waits for and nobody announces: the end of a process, a rule of kube-proxy's.
    Process,
    /// Anything else that somebody has to do first.
    Change,
    /// Nothing is asked of this host, and what is looked for there is announced by nobody.
    Unannounced,
}

/// The status could not be written.
#[derive(Debug, Error)]
#[error("writing the status of NodeMigration {name}")]
pub struct ReportError {
    name: String,
    /// What the API server answered.
    #[source]
    pub source: kube::Error,
}

/// The status that says this. Times stay as they were where what they date has not changed.
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
        fell_back: fell_back.clone(),
        checks: checks.clone(),
        steps: steps.clone(),
        probes,
        traffic: traffic_to_tell(old.traffic.as_ref(), traffic.as_ref()),
    }
}

/// Probes that are sent and answered are no news: with them goes what else is told.
fn traffic_to_tell(old: Option<&TrafficReport>, new: Option<&TrafficReport>) -> Option<TrafficReport> {
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
            report.judged_since,
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

/// How long a change of mere facts may wait for its write.
const FACTS_WAIT: Duration = Duration::from_secs(10);
/// How long the news that pods have come or gone may wait where no decision needs it. Pods come and go on every node of a cluster all the
/// time: with 5 000 nodes a write for each is more than all writes of a migration.
const PODS_WAIT: Duration = Duration::from_mins(10);

/// How long after the last write a change may wait for its own (R: no write to the API that nobody waits for). `asked` is the goal of the
/// spec.
pub fn may_wait(asked: Goal, old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> Duration {
    let goal = goal(asked, new);
    if is_urgent(goal, old, new) {
        Duration::ZERO
    } else if without_pods(goal, old) == without_pods(goal, new) {
        PODS_WAIT
    } else {
        FACTS_WAIT
    }
}

/// Where the host is led. An agent whose journal cannot be written works towards no goal and reports [`Goal::Hold`], wherever its host is:
/// the goal of the spec counts then.
fn goal(asked: Goal, new: &NodeMigrationStatus) -> Goal {
    match new.goal {
        None | Some(Goal::Hold) => asked,
        Some(worked_towards) => worked_towards,
    }
}

/// Whether a change is worth a write at once.
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
        || has_come_late(goal, old, new)
}

/// Whether a pod has come to the old network of a host that leaves it: Calico must not give its address to another one.
fn has_come_late(goal: Goal, old: &NodeMigrationStatus, new: &NodeMigrationStatus) -> bool {
    let pods = |status: &NodeMigrationStatus| {
        let facts = status.facts.iter();
        let pods = facts.flat_map(|facts| &facts.legacy_pods);
        pods.map(|pod| pod.sandbox.clone()).collect::<BTreeSet<_>>()
    };
    goal.is_forward() && !pods(new).is_subset(&pods(old))
}

/// Whether who lives on the host decides what the coordinator does next: while something is asked of the host and is not so yet; and once
/// it is so, when the last pods of the old network go.
fn pods_decide(goal: Goal, status: &NodeMigrationStatus) -> bool {
    /// Each of so few counts: the last ones may be our own traffic pods, which go when no other one is left.
    const FEW: usize = 3;
    let few = || {
        status
            .facts
            .as_ref()
            .is_none_or(|facts| facts.legacy_pods.len() <= FEW)
    };
    let is_there = |wanted| status.phase.is_some_and(|phase| phase.reaches(wanted));
    goal == Goal::Flannel || goal.phase().is_some_and(|wanted| !is_there(wanted) || few())
}

/// Checks without what was found by those that hold: it counts pods.
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

/// A status without what changes with each pod. Pods of the old network only go once something is asked of the host, each once: they stay
/// in it then, and on the way back so do Calico's. Pods on the bridge that no record names stay always: preflight tells them.
fn without_pods(goal: Goal, status: &NodeMigrationStatus) -> (NodeMigrationStatus, Vec<String>) {
    let unknown = status.facts.as_ref().map(unknown_ports).unwrap_or_default();
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
            // Whether there is any is a question of its own.
            facts.calico.pods.truncate(1);
            facts.calico.pods.iter_mut().for_each(String::clear);
            facts.calico.records = 0;
        }
    }
    (rest, unknown)
}

/// The merge patch of the status; `None` when the object says it already.
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
            // Another object of the same name is another Migration's, with another goal.
            "metadata": { "uid": object.uid() },
            "status": change,
        })
    }))
}

/// Writes the status and returns the object as it is then; `None` when there is nothing to write.
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
