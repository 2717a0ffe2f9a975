//! Eviction of the pods of a node.

use jiff::{SignedDuration, Timestamp};

use super::next;
use super::release::on_blocked;
use super::{NodeStep, NodeView, Policy, Stage};
use engine::decision::Decision;
use engine::drain::{Pod, budgets_of, obstacle};
use engine::evict::{self, Leaving, Next, OnBlocked, Time, next};

/// Evicts these pods; `None` if no pod is left and none is terminating.
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

/// Evicts pods whose successors wait on this node for its next network. Each successor uses a disruption of its budget until
/// then, so two nodes that use the disruptions of two budgets in different orders would wait for each other. Every node evicts
/// by budget in the same order, and starts with the next budget when the pods of the previous one are evicted.
pub(super) fn evict_in_budget_order(
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

/// Waits while pods that are evicted after the network of the node has begun to change (those of `DaemonSet`s, and late pods)
/// cannot be evicted, or may take longer than the drain timeout: before that change the node can be released. `None` if no such
/// obstacle is known.
pub(super) fn wait_for_later_obstacle(
    view: &NodeView<'_>,
    pods: &[&Pod],
    policy: &Policy,
) -> Option<Decision<NodeStep>> {
    let place = format!("node {}", view.name);
    let time = Time {
        limit: policy.drain_timeout,
        grace_period_seconds: policy.grace_period_seconds,
    };
    evict::later_obstacles(&place, pods, view.budgets, policy.permissions, &time).map(Decision::Wait)
}

/// Cordons the node for its drain, unless a pod could not be evicted later: then no other pod is evicted without need.
pub(super) fn cordon(stays: Option<Decision<NodeStep>>) -> super::Next {
    match stays {
        Some(stays) => next::next(Stage::Drain, stays),
        None => next::next(Stage::Cordon, Decision::Run(NodeStep::Cordon)),
    }
}

/// A pod that was created this long after the start of the drain started although its node was cordoned.
const CAME_LATE: SignedDuration = SignedDuration::from_secs(30);

/// The pods that are evicted while the old network still works. A late pod tolerates the cordon, or was bound to the node by
/// name, and each eviction would create the next one: it is evicted with the pods of `DaemonSet`s, when new pods wait.
fn not_come_late<'pods>(view: &NodeView<'_>, pods: &[&'pods Pod]) -> Vec<&'pods Pod> {
    pods.iter()
        .copied()
        .filter(|pod| !started_after_cordon(view, pod))
        .collect()
}

/// The pods that started although the node was cordoned.
pub(super) fn late_pods<'pods>(view: &NodeView<'_>, pods: &[&'pods Pod]) -> Vec<&'pods Pod> {
    pods.iter()
        .copied()
        .filter(|pod| started_after_cordon(view, pod))
        .collect()
}

/// Whether the pod started although the node was cordoned.
pub(super) fn started_after_cordon(view: &NodeView<'_>, pod: &Pod) -> bool {
    match (view.stage, pod.made_at) {
        (Some((Stage::Drain, began)), Some(made)) => view.unschedulable && made > began + CAME_LATE,
        (Some(_) | None, _) => false,
    }
}

/// Whether evictions have to stop: the drain is blocked after its time limit, and `onBlocked` is not `Wait`.
fn blocked_past_deadline(view: &NodeView<'_>, pods: &[&Pod], policy: &Policy, now: Timestamp) -> bool {
    let Some((Stage::Drain | Stage::DrainDaemonSets, since)) = view.stage else {
        return false;
    };
    let until = since.max(policy.resumed_at.unwrap_or(since)) + policy.drain_timeout;
    let is_blocked =
        |pod: &&Pod| view.refusals.contains_key(&pod.uid) || obstacle(pod, policy.permissions).is_some();
    on_blocked(view, policy) != OnBlocked::Wait && now >= until && pods.iter().any(is_blocked)
}
