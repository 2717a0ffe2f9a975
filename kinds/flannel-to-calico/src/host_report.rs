//! How soon a changed report of a host is needed.

use std::collections::BTreeSet;

use engine::check::{Check, Verdict};
use engine::found::Found;
use engine::host_report::{HostReport, Urgency};
use jiff::Timestamp;

use crate::api::{NodeSpec, NodeStatus};
use crate::host::{calico_has_written, links_without_known_pod};
use crate::host_checks::HostCheck;
use crate::phase::{Goal, Phase};

impl HostReport for NodeStatus {
    type Orders = NodeSpec;

    fn urgency(&self, old: &Self, orders: Option<&NodeSpec>) -> Urgency {
        let goal = goal(orders.map(|orders| orders.goal).unwrap_or_default(), self);
        if is_urgent(goal, old, self) {
            Urgency::Now
        } else if without_pods(goal, old) == without_pods(goal, self) {
            Urgency::Late
        } else {
            Urgency::Soon
        }
    }

    fn keep_times(&mut self, old: Option<&Self>, now: Timestamp) {
        let old = old.filter(|old| old.phase == self.phase);
        self.phase_since = self
            .phase
            .map(|_| old.and_then(|old| old.phase_since).unwrap_or(now));
    }

    fn count_leftovers(&self) -> usize {
        self.leftovers.len()
    }

    fn phases() -> Vec<&'static str> {
        Phase::ALL.iter().copied().map(Phase::as_str).collect()
    }

    fn phase(&self) -> Option<&'static str> {
        self.phase.map(Phase::as_str)
    }

    fn check_names() -> Vec<&'static str> {
        HostCheck::ALL.iter().copied().map(HostCheck::as_str).collect()
    }

    fn checks(&self) -> &[Check] {
        &self.checks
    }
}

/// The goal of the host. An agent that cannot write its journal works towards no goal and reports [`Goal::Hold`], whatever the
/// state of its host: the goal of the spec counts then.
fn goal(spec_goal: Goal, new: &NodeStatus) -> Goal {
    match new.goal {
        None | Some(Goal::Hold) => spec_goal,
        Some(worked_towards) => worked_towards,
    }
}

/// Whether a change has to be written immediately.
fn is_urgent(goal: Goal, old: &NodeStatus, new: &NodeStatus) -> bool {
    let without_facts = |status: &NodeStatus| NodeStatus {
        facts: None,
        leftovers: Vec::new(),
        checks: verdicts(&status.checks),
        ..status.clone()
    };
    let pods = |status: &NodeStatus| status.facts.as_ref().map(|facts| facts.legacy_pods.clone());
    let unread = |status: &NodeStatus| status.facts.as_ref().map(|facts| facts.unread_processes.clone());
    // Once calico-node serves new pods, its conflist replaces flannel's.
    let written = |status: &NodeStatus| status.facts.as_ref().is_some_and(calico_has_written);
    // A problem that has ended refuses no start any longer.
    let remain = unknown_links(new);
    let has_ended = unknown_links(old).iter().any(|link| !remain.contains(link));
    unread(old) != unread(new)
        || old.facts.is_some() != new.facts.is_some()
        || without_facts(old) != without_facts(new)
        || (pods_decide(goal, new) && pods(old) != pods(new))
        || has_ended
        || (goal.is_forward() && written(old) != written(new))
        || has_late_pod(goal, old, new)
}

/// Links on the bridge without a known pod, one sentence each.
fn unknown_links(status: &NodeStatus) -> Vec<String> {
    status
        .facts
        .as_ref()
        .map(links_without_known_pod)
        .unwrap_or_default()
}

/// Whether a pod was added to the old network of a host that leaves it: Calico must not assign its address to another pod.
fn has_late_pod(goal: Goal, old: &NodeStatus, new: &NodeStatus) -> bool {
    let pods = |status: &NodeStatus| {
        let facts = status.facts.iter();
        let pods = facts.flat_map(|facts| &facts.legacy_pods);
        pods.map(|pod| pod.sandbox.clone()).collect::<BTreeSet<_>>()
    };
    goal.is_forward() && !pods(new).is_subset(&pods(old))
}

/// Whether the coordinator's next action depends on the pods of the host: while the goal is not reached; and afterwards, when the
/// last pods of the old network end.
fn pods_decide(goal: Goal, status: &NodeStatus) -> bool {
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
fn without_pods(goal: Goal, status: &NodeStatus) -> (NodeStatus, Vec<String>) {
    let mut rest = NodeStatus {
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
    (rest, unknown_links(status))
}
