//! Pods that leave a node: what is evicted now, and the words about what is not.

use jiff::Timestamp;

use super::{NodeStep, NodeView, OnBlocked, PodName, Policy, Refusal, Stage};
use crate::decision::{Decision, Wait, WaitReason};
use crate::drain::{self, Budget, Pod};

/// Evicts these pods; `None` once none is left and none is terminating.
pub(super) fn evict(
    view: &NodeView<'_>,
    pods: &[&Pod],
    policy: &Policy,
    now: Timestamp,
) -> Option<Decision<NodeStep>> {
    let obstacles: Vec<String> = pods
        .iter()
        .chain(&view.residents.static_pods)
        .filter_map(|pod| drain::obstacle(pod, policy.permissions).map(|obstacle| (pod, obstacle)))
        .map(|(pod, obstacle)| describe_obstacle(pod, &obstacle))
        .collect();
    if let Some(first) = obstacles.first() {
        return Some(Decision::Wait(Wait {
            reason: WaitReason::EvictionRefused,
            message: format!("node {}: {first}", view.name),
            until: None,
        }));
    }
    let due: Vec<PodName> = pods
        .iter()
        .filter(|pod| {
            view.refusals
                .get(&pod.uid)
                .is_none_or(|refusal| refusal.next_try <= now)
        })
        .map(|pod| PodName::of(pod))
        .collect();
    if !due.is_empty() && !blocked_past_deadline(view, policy, now) {
        return Some(Decision::Run(NodeStep::Evict(due)));
    }
    if let Some((pod, refusal)) = pods
        .iter()
        .find_map(|pod| Some((*pod, view.refusals.get(&pod.uid)?)))
    {
        return Some(Decision::Wait(Wait {
            reason: if refusal.by_budget {
                WaitReason::DisruptionBudget
            } else {
                WaitReason::EvictionRefused
            },
            message: describe_refusal(pod, refusal, view.budgets),
            until: None,
        }));
    }
    if !pods.is_empty() {
        return Some(Decision::Wait(Wait {
            reason: WaitReason::PodsTerminating,
            message: format!("{} pods are still on node {}", pods.len(), view.name),
            until: None,
        }));
    }
    let terminating: Vec<&Pod> = view
        .residents
        .terminating
        .iter()
        .copied()
        .filter(|pod| !pod.addresses.is_empty())
        .collect();
    terminating.first().map(|pod| {
        Decision::Wait(Wait {
            reason: WaitReason::PodsTerminating,
            message: format!(
                "{} pods terminate on node {}; the first is {} (grace period {} s)",
                terminating.len(),
                view.name,
                pod.key(),
                pod.deletion_grace_seconds.unwrap_or_default()
            ),
            until: None,
        })
    })
}

/// With `onBlocked: Pause` nothing is evicted any more once the time is over: a person has to say "resume".
fn blocked_past_deadline(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> bool {
    let Some((Stage::Drain | Stage::DrainDaemonSets, since)) = view.stage else {
        return false;
    };
    let until = since.max(policy.resumed_at.unwrap_or(since)) + policy.drain_timeout;
    policy.on_blocked != OnBlocked::Wait && now >= until && !view.refusals.is_empty()
}

fn describe_obstacle(pod: &Pod, obstacle: &drain::Obstacle) -> String {
    match obstacle {
        drain::Obstacle::Bare => {
            format!(
                "pod {} has no controller; delete it or set drain.force",
                pod.key()
            )
        }
        drain::Obstacle::EmptyDir(volumes) => format!(
            "pod {} would lose its emptyDir volumes {}; set drain.deleteEmptyDirData or delete it",
            pod.key(),
            volumes.join(", ")
        ),
        drain::Obstacle::Static => format!(
            "pod {} is a static pod on the pod network; move its manifest out of the kubelet's folder",
            pod.key()
        ),
    }
}

/// The exact budget, its sum and the age: what a person needs at 3 a.m. (R1).
fn describe_refusal(pod: &Pod, refusal: &Refusal, budgets: &[Budget]) -> String {
    let named: Vec<String> = drain::budgets_of(pod, budgets)
        .into_iter()
        .filter(|budget| budget.disruptions_allowed <= 0)
        .map(|budget| {
            format!(
                "PodDisruptionBudget {}/{} allows {} disruptions ({} healthy, {} needed, {} expected)",
                budget.namespace,
                budget.name,
                budget.disruptions_allowed,
                budget.current_healthy,
                budget.desired_healthy,
                budget.expected_pods
            )
        })
        .collect();
    let because = if named.is_empty() {
        refusal.message.clone()
    } else {
        named.join("; ")
    };
    // A time, not an age: the words stay the same from look to look, so they are written once.
    format!(
        "eviction of pod {} refused since {:.0}: {because}",
        pod.key(),
        refusal.since
    )
}
