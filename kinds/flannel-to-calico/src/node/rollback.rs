//! Rollback of a node to flannel, from any state of the migration. Level-triggered: pods with Calico's addresses are evicted
//! within their budgets, Calico's pod ends, the agent reverts all changes, flannel's pod starts, and a probe pod is reached.

use jiff::Timestamp;

use super::condition::{foreign_label, next_until_probed};
use super::evict::{
    cordon, evict, evict_in_budget_order, late_pods, started_after_cordon, wait_for_later_obstacle,
};
use super::next::{next, wait};
use super::{NetworkLabel, Next, NodeStep, NodeView, Policy, Stage};
use crate::phase::{Goal, Phase};
use engine::daemon_pod::{any_is_ready, names};
use engine::decision::{Decision, WaitReason};
use engine::drain::Pod;

/// The next step of the rollback.
pub(super) fn decide(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if view.agent.phase.is_none() {
        // Without a report of the agent, the legacy pods, which stay, are unknown.
        return wait(
            Stage::PutBack,
            WaitReason::AgentSilent,
            format!(
                "the agent of node {} has not reported the state of its host",
                view.name
            ),
        );
    }
    match &view.network {
        NetworkLabel::Calico => from_calico(view, policy, now),
        NetworkLabel::Neither => between(view, policy, now),
        NetworkLabel::Missing | NetworkLabel::Flannel => on_flannel(view),
        NetworkLabel::Other(value) => foreign_label(view, value),
    }
}

/// The label is calico: pods with Calico's addresses are evicted while Calico still runs.
fn from_calico(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if !view.agent.ready {
        return wait(
            Stage::StopCalico,
            WaitReason::AgentSilent,
            format!(
                "no agent is Ready on node {}; Calico's pod keeps running until then",
                view.name
            ),
        );
    }
    // Before Calico's conflist is in use, no pod has an address of Calico: an unknown pod is a late flannel pod.
    if !gives_addresses(view) {
        return next(Stage::StopCalico, Decision::Run(NodeStep::Label("none")));
    }
    let (late, movable): (Vec<&Pod>, Vec<&Pod>) = of_calico(view, &view.residents.movable)
        .into_iter()
        .partition(|pod| started_after_cordon(view, pod));
    let ending = late_pods(view, &of_calico(view, &view.residents.terminating));
    let later = [of_calico(view, &view.residents.daemon_set), late, ending].concat();
    let stays = || wait_for_later_obstacle(view, &later, policy);
    if !movable.is_empty() && !view.unschedulable {
        return cordon(stays());
    }
    let leaves = any_exists(view, &movable)
        .then(|| evict(view, &movable, policy, now))
        .flatten();
    match leaves.or_else(stays) {
        Some(decision) => next(Stage::Drain, decision),
        None => next(Stage::StopCalico, Decision::Run(NodeStep::Label("none"))),
    }
}

/// The label is none: Calico's pod ends, pods of DaemonSets are evicted when new pods wait, the host is restored.
fn between(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if !view.calico_pods.is_empty() {
        return wait(
            Stage::StopCalico,
            WaitReason::CalicoPodRunning,
            format!(
                "Calico's pod is still on node {}: {}",
                view.name,
                names(&view.calico_pods)
            ),
        );
    }
    if view.goal != Goal::Flannel {
        return next(Stage::PutBack, Decision::Run(NodeStep::Goal(Goal::Flannel)));
    }
    // Before flannel's conflist is in use again, a new pod of a DaemonSet would use Calico like the evicted pod. And the report
    // of the agent must be newer than the goal, because an older report may not contain all legacy pods.
    let acted = view.agent.goal == Some(Goal::Flannel);
    let new_pods_wait = acted && !gives_addresses(view) && view.agent.has_calico_pods;
    let movable = of_calico(view, &view.residents.movable);
    let all: Vec<&Pod> = of_calico(view, &view.residents.daemon_set)
        .into_iter()
        .chain(movable.iter().copied())
        .collect();
    if new_pods_wait && !view.agent.is_back() {
        if !movable.is_empty() && !view.unschedulable {
            return next(Stage::Cordon, Decision::Run(NodeStep::Cordon));
        }
        if any_exists(view, &all)
            && let Some(decision) = evict_in_budget_order(view, &all, policy, now)
        {
            return next(Stage::DrainDaemonSets, decision);
        }
    }
    if let Some(next) = put_back(view) {
        return next;
    }
    next(Stage::StartFlannel, Decision::Run(NodeStep::Label("flannel")))
}

/// The label is flannel: the last changes are reverted, flannel's pod starts, and a probe pod is reached.
fn on_flannel(view: &NodeView<'_>) -> Next {
    // An agent that has rolled the host back on its own waits for this goal.
    let waits_for_notice = view.goal == Goal::Hold && view.agent.fell_back.is_some();
    if view.goal.is_forward() || waits_for_notice {
        return next(Stage::PutBack, Decision::Run(NodeStep::Goal(Goal::Flannel)));
    }
    if view.goal == Goal::Flannel {
        if let Some(next) = put_back(view) {
            return next;
        }
        if !any_is_ready(&view.flannel_pods) {
            return wait(
                Stage::StartFlannel,
                WaitReason::FlannelPodNotReady,
                match view.flannel_pods.as_slice() {
                    [] => format!("flannel's DaemonSet has no pod on node {} yet", view.name),
                    pods => format!("{} on node {} is not Ready", names(pods), view.name),
                },
            );
        }
        if !view.ready {
            return wait(
                Stage::StartFlannel,
                WaitReason::NodeNotReady,
                format!("Node {} is NotReady after its rollback", view.name),
            );
        }
        if let Some(next) = next_until_probed(view) {
            return next;
        }
    }
    if view.cordoned_by_replumb {
        return next(Stage::Uncordon, Decision::Run(NodeStep::Uncordon));
    }
    next(Stage::Return, Decision::Run(NodeStep::Return))
}

/// Waits until the agent has proved that the host is as before; `None` if it has.
fn put_back(view: &NodeView<'_>) -> Option<Next> {
    if view.agent.is_back() {
        return None;
    }
    let (reason, message) = if view.agent.ready {
        (
            WaitReason::AgentWorking,
            format!(
                "the agent of node {} restores the host: {}",
                view.name, view.agent.message
            ),
        )
    } else {
        (
            WaitReason::AgentSilent,
            format!(
                "no agent is Ready on node {}; needed to restore the host",
                view.name
            ),
        )
    };
    Some(wait(Stage::PutBack, reason, message))
}

/// Whether new pods on the node use Calico.
fn gives_addresses(view: &NodeView<'_>) -> bool {
    matches!(view.agent.phase, Some(Phase::Mixed | Phase::Calico))
}

/// The pods that have an address and are not on flannel.
fn of_calico<'pods>(view: &NodeView<'_>, pods: &[&'pods Pod]) -> Vec<&'pods Pod> {
    pods.iter()
        .copied()
        .filter(|pod| !pod.addresses.is_empty() && !view.is_legacy(pod))
        .collect()
}

/// Whether these pods, or terminating pods on Calico, still exist. Terminating flannel pods are not waited for.
fn any_exists(view: &NodeView<'_>, pods: &[&Pod]) -> bool {
    !pods.is_empty() || !of_calico(view, &view.residents.terminating).is_empty()
}
