//! A node on its way back to flannel. Level-triggered like the way there, and from any state of it: pods that got Calico's
//! addresses leave under their budgets, Calico's pod ends, the agent takes every change back, flannel's pod comes, and a
//! pod proves it.

use jiff::Timestamp;

use super::decide::{foreign_label, names, next, unproved, wait};
use super::evict::{came_late, cordon, evict, evict_in_turn, late_ones, would_stay};
use super::{NetworkLabel, Next, NodeStep, NodeView, Policy, Stage};
use crate::phase::{Goal, Phase};
use engine::decision::{Decision, WaitReason};
use engine::drain::Pod;

/// The next step of the way back.
pub(super) fn decide(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if view.agent.phase.is_none() {
        // Without its report nobody knows which pods are flannel's, and stay.
        return wait(
            Stage::PutBack,
            WaitReason::AgentSilent,
            format!("the agent of node {} does not say what is on its host", view.name),
        );
    }
    match &view.network {
        NetworkLabel::Calico => from_calico(view, policy, now),
        NetworkLabel::Neither => between(view, policy, now),
        NetworkLabel::Missing | NetworkLabel::Flannel => on_flannel(view),
        NetworkLabel::Other(value) => foreign_label(view, value),
    }
}

/// The node is on Calico: who has an address of Calico's leaves while Calico still runs.
fn from_calico(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if !view.agent.ready {
        return wait(
            Stage::StopCalico,
            WaitReason::AgentSilent,
            format!(
                "no agent is Ready on node {}; Calico is not ended before",
                view.name
            ),
        );
    }
    // Until Calico's conflist wins nobody has an address of Calico's: one that is not known yet is a late one of flannel's.
    if !gives_addresses(view) {
        return next(Stage::StopCalico, Decision::Run(NodeStep::Label("none")));
    }
    let (late, movable): (Vec<&Pod>, Vec<&Pod>) = of_calico(view, &view.residents.movable)
        .into_iter()
        .partition(|pod| came_late(view, pod));
    let ending = late_ones(view, &of_calico(view, &view.residents.terminating));
    let later = [of_calico(view, &view.residents.daemon_set), late, ending].concat();
    let stays = || would_stay(view, &later, policy);
    if !movable.is_empty() && !view.unschedulable {
        return cordon(stays());
    }
    let leaves = any_is_there(view, &movable)
        .then(|| evict(view, &movable, policy, now))
        .flatten();
    match leaves.or_else(stays) {
        Some(decision) => next(Stage::Drain, decision),
        None => next(Stage::StopCalico, Decision::Run(NodeStep::Label("none"))),
    }
}

/// The node is labelled for neither: Calico ends, DaemonSet pods leave once new ones wait, the host is put back.
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
    // Until flannel's conflist wins again, a DaemonSet's new pod would be Calico's like the one that was evicted. And what the
    // agent says has to be as new as the goal: a pod of flannel's that it does not name is not known yet.
    let acted = view.agent.goal == Some(Goal::Flannel);
    let new_pods_wait = acted && !gives_addresses(view) && view.agent.sees_calicos_pods;
    let movable = of_calico(view, &view.residents.movable);
    let all: Vec<&Pod> = of_calico(view, &view.residents.daemon_set)
        .into_iter()
        .chain(movable.iter().copied())
        .collect();
    if new_pods_wait && !view.agent.is_back() {
        if !movable.is_empty() && !view.unschedulable {
            return next(Stage::Cordon, Decision::Run(NodeStep::Cordon));
        }
        if any_is_there(view, &all)
            && let Some(decision) = evict_in_turn(view, &all, policy, now)
        {
            return next(Stage::DrainDaemonSets, decision);
        }
    }
    if let Some(next) = put_back(view) {
        return next;
    }
    next(Stage::StartFlannel, Decision::Run(NodeStep::Label("flannel")))
}

/// The node is labelled for flannel: the last changes are taken back, flannel's pod comes, and a pod proves it.
fn on_flannel(view: &NodeView<'_>) -> Next {
    // An agent that has gone back by itself waits for this word.
    let waits_for_notice = view.goal == Goal::Hold && view.agent.fell_back.is_some();
    if view.goal.is_forward() || waits_for_notice {
        return next(Stage::PutBack, Decision::Run(NodeStep::Goal(Goal::Flannel)));
    }
    if view.goal == Goal::Flannel {
        if let Some(next) = put_back(view) {
            return next;
        }
        if !view.flannel_pods.iter().any(|(_, ready)| *ready) {
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
                format!("Node {} is NotReady after its way back", view.name),
            );
        }
        if let Some(next) = unproved(view) {
            return next;
        }
    }
    if view.cordoned_by_us {
        return next(Stage::Uncordon, Decision::Run(NodeStep::Uncordon));
    }
    next(Stage::Return, Decision::Run(NodeStep::Return))
}

/// Waits until the agent has proved that the host is as it was; `None` once it has.
fn put_back(view: &NodeView<'_>) -> Option<Next> {
    if view.agent.is_back() {
        return None;
    }
    let (reason, message) = if view.agent.ready {
        (
            WaitReason::AgentWorking,
            format!(
                "the agent of node {} puts the host back as it was: {}",
                view.name, view.agent.message
            ),
        )
    } else {
        (
            WaitReason::AgentSilent,
            format!(
                "no agent is Ready on node {}; it has to put the host back as it was",
                view.name
            ),
        )
    };
    Some(wait(Stage::PutBack, reason, message))
}

/// Whether new pods on the node are Calico's.
fn gives_addresses(view: &NodeView<'_>) -> bool {
    matches!(view.agent.phase, Some(Phase::Mixed | Phase::Calico))
}

/// Those of these pods that have an address, and are none of flannel's.
fn of_calico<'pods>(view: &NodeView<'_>, pods: &[&'pods Pod]) -> Vec<&'pods Pod> {
    pods.iter()
        .copied()
        .filter(|pod| !pod.addresses.is_empty() && !view.is_legacy(pod))
        .collect()
}

/// Whether these pods, or others of Calico's, are still there. Pods of flannel's that terminate meanwhile are not waited for.
fn any_is_there(view: &NodeView<'_>, pods: &[&Pod]) -> bool {
    !pods.is_empty() || !of_calico(view, &view.residents.terminating).is_empty()
}
