//! A node that changes its network under its pods: nobody is evicted, nothing is cordoned.

use jiff::Timestamp;

use super::decide::{agent_reaches, flannel_is_gone, next, wait};
use super::evict::evict;
use super::{Direction, Next, NodeStep, NodeView, Policy, Stage};
use crate::phase::{Goal, Phase};
use engine::decision::{Decision, WaitReason};
use engine::drain::Pod;

/// The node is on flannel: its daemon ends, and what it has set up carries on in the kernel.
pub(super) fn from_flannel(view: &NodeView<'_>) -> Next {
    if !view.agent.ready {
        return wait(
            Stage::StopFlannel,
            WaitReason::AgentSilent,
            format!(
                "no agent is Ready on node {}; flannel is not ended before",
                view.name
            ),
        );
    }
    next(Stage::StopFlannel, Decision::Run(NodeStep::Label("none")))
}

/// The node is labelled for neither: new pods wait, Calico learns who is there, the tunnel changes its name.
pub(super) fn between(view: &NodeView<'_>) -> Next {
    if let Some(next) = flannel_is_gone(view, Stage::StopFlannel) {
        return next;
    }
    if let Some(next) = agent_reaches(view, Stage::HoldNewPods, Goal::Held, Phase::Held) {
        return next;
    }
    if let Some(step) = import(view) {
        return next(Stage::Import, Decision::Run(step));
    }
    if let Some(next) = agent_reaches(view, Stage::Swap, Goal::Swapped, Phase::Swapped) {
        return next;
    }
    next(Stage::StartCalico, Decision::Run(NodeStep::Label("calico")))
}

fn import(view: &NodeView<'_>) -> Option<NodeStep> {
    (!view.to_import.is_empty()).then(|| NodeStep::Import(view.to_import.clone()))
}

/// What a node needs while pods of both networks live on it, and once the last of flannel's is gone; `None` when there
/// is nothing to do. Does not ask whether the node is in work: pods come and go for days after.
pub fn upkeep(view: &NodeView<'_>) -> Option<NodeStep> {
    if view.direction == Direction::Back {
        return None;
    }
    let phase = view.agent.phase?;
    if !view.agent.ready || !matches!(phase, Phase::Swapped | Phase::Mixed | Phase::Calico) {
        return None;
    }
    if let Some(step) = import(view) {
        return Some(step);
    }
    if !view.to_release.is_empty() {
        return Some(NodeStep::Release(view.to_release.clone()));
    }
    // flanneld would make its link again; its pod is there when somebody wrote the label.
    let last_is_gone = phase == Phase::Mixed && view.legacy_pods.is_empty() && view.flannel_pods.is_empty();
    (last_is_gone && view.goal == Goal::Mixed).then_some(NodeStep::Goal(Goal::Calico))
}

/// Evicts what lives of flannel's on a node that is on Calico, at the pace of its budgets; `None` when nobody is left who
/// could be. Those that terminate are waited for by the agent's report.
pub fn restart(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Option<Decision<NodeStep>> {
    let old: Vec<&Pod> = view
        .residents
        .movable
        .iter()
        .chain(&view.residents.daemon_set)
        .copied()
        .filter(|pod| view.is_legacy(pod))
        .collect();
    if old.is_empty() {
        return None;
    }
    evict(view, &old, policy, now)
}
