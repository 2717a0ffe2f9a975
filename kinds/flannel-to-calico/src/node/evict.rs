//! Pods that leave a node.

use jiff::{SignedDuration, Timestamp};

use super::aside::on_blocked;
use super::{NodeStep, NodeView, Policy, Stage};
use engine::decision::Decision;
use engine::drain::{Pod, budgets_of, obstacle};
use engine::evict::{self, Leaving, Next, OnBlocked, Time, next};

/// Evicts these pods; `None` once none is left and none is terminating.
pub(super) fn evict(
    view: &NodeView<'_>,
    pods: &[&Pod],
    policy: &Policy,
    now: Timestamp,
) -> Option<Decision<NodeStep>> {
    let terminating = not_come_late(view, &view.residents.terminating);
    let leaving = Leaving {
        place: &format!("node {}", view.name),
        pods,
        terminating: &terminating,
        static_pods: &view.residents.static_pods,
        budgets: view.budgets,
        refusals: view.refusals,
        permissions: policy.permissions,
        grace_period_seconds: policy.grace_period_seconds,
        overdue: blocked_past_deadline(view, pods, policy, now),
    };
    Some(match next(&leaving, now)? {
        Next::Evict(pods) => Decision::Run(NodeStep::Evict(pods)),
        Next::Wait(wait) => Decision::Wait(wait),
    })
}

/// The same of pods whose successors wait on this node for its next network. Each takes a disruption of its budget until then, and two nodes
/// that took those of two budgets crosswise would wait for each other: every node takes them in one order, the next once it has the one before.
pub(super) fn evict_in_turn(
    view: &NodeView<'_>,
    pods: &[&Pod],
    policy: &Policy,
    now: Timestamp,
) -> Option<Decision<NodeStep>> {
    let budget_of = |pod: &Pod| {
        let budgets = budgets_of(pod, view.budgets);
        budgets.first().map(|budget| (&budget.namespace, &budget.name))
    };
    let first = pods.iter().filter_map(|pod| budget_of(pod)).min();
    let in_turn: Vec<&Pod> = pods
        .iter()
        .copied()
        .filter(|pod| {
            let budget = budget_of(pod);
            budget.is_none() || budget == first
        })
        .collect();
    evict(view, &in_turn, policy, now)
}

/// Waits while pods that leave once the node's network has begun to change (those of `DaemonSet`s, and those that came late) could not go, or
/// may take longer than the node waits for them: until then the node can be given back. `None` once nothing is known that would keep one.
pub(super) fn would_stay(view: &NodeView<'_>, pods: &[&Pod], policy: &Policy) -> Option<Decision<NodeStep>> {
    let place = format!("node {}", view.name);
    let time = Time {
        limit: policy.drain_timeout,
        grace_period_seconds: policy.grace_period_seconds,
    };
    evict::would_stay(&place, pods, view.budgets, policy.permissions, &time).map(Decision::Wait)
}

/// Cordons the node so that its pods leave, unless one of it could not go in the end: then no other one is moved for nothing.
pub(super) fn cordon(stays: Option<Decision<NodeStep>>) -> super::Next {
    match stays {
        Some(stays) => super::decide::next(Stage::Drain, stays),
        None => super::decide::next(Stage::Cordon, Decision::Run(NodeStep::Cordon)),
    }
}

/// Pods that are made so long after the drain of their node began came although it is cordoned.
const CAME_LATE: SignedDuration = SignedDuration::from_secs(30);

/// Those of these pods that leave while the old network still runs. One that came to the cordoned node tolerates the cordon, or was bound to
/// the node by name, and each eviction would bring the next one: it leaves as the pods of DaemonSets do, once new pods wait.
fn not_come_late<'pods>(view: &NodeView<'_>, pods: &[&'pods Pod]) -> Vec<&'pods Pod> {
    pods.iter().copied().filter(|pod| !came_late(view, pod)).collect()
}

/// Those of these pods that came although the node was cordoned.
pub(super) fn late_ones<'pods>(view: &NodeView<'_>, pods: &[&'pods Pod]) -> Vec<&'pods Pod> {
    pods.iter().copied().filter(|pod| came_late(view, pod)).collect()
}

/// Whether it came although the node was cordoned.
pub(super) fn came_late(view: &NodeView<'_>, pod: &Pod) -> bool {
    match (view.stage, pod.made_at) {
        (Some((Stage::Drain, began)), Some(made)) => view.unschedulable && made > began + CAME_LATE,
        (Some(_) | None, _) => false,
    }
}

/// With `onBlocked: Pause` nothing is evicted any more once the time is over: a person has to say "resume".
fn blocked_past_deadline(view: &NodeView<'_>, pods: &[&Pod], policy: &Policy, now: Timestamp) -> bool {
    let Some((Stage::Drain | Stage::DrainDaemonSets, since)) = view.stage else {
        return false;
    };
    let until = since.max(policy.resumed_at.unwrap_or(since)) + policy.drain_timeout;
    let is_blocked =
        |pod: &&Pod| view.refusals.contains_key(&pod.uid) || obstacle(pod, policy.permissions).is_some();
    on_blocked(view, policy) != OnBlocked::Wait && now >= until && pods.iter().any(is_blocked)
}
