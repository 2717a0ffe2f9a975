//! Decisions for strategy `InPlace`: no pod is evicted, and no node is cordoned.

use jiff::Timestamp;

use super::condition::{agent_reaches, flannel_is_deleted, flannel_is_gone};
use super::evict::evict;
use super::next::{next, wait};
use super::{Direction, Next, NodeStep, NodeView, Policy, Stage};
use crate::phase::{Goal, Phase};
use crate::settings::{LegacyPods, Strategy};
use engine::decision::{Decision, WaitReason};
use engine::drain::Pod;

/// The node is on flannel: flanneld ends, and its configuration stays in the kernel.
pub(super) fn from_flannel(view: &NodeView<'_>) -> Next {
    if !view.agent.ready {
        return wait(
            Stage::StopFlannel,
            WaitReason::AgentSilent,
            format!(
                "no agent is Ready on node {}; flannel's pod keeps running until then",
                view.name
            ),
        );
    }
    next(Stage::StopFlannel, Decision::Run(NodeStep::Label("none")))
}

/// The label is none: new pods wait, the addresses of running pods are imported, the tunnel is renamed.
pub(super) fn between(view: &NodeView<'_>) -> Next {
    if let Some(next) = flannel_is_deleted(view) {
        return next;
    }
    if let Some(next) = agent_reaches(view, Stage::HoldNewPods, Goal::Held, Phase::Held) {
        return next;
    }
    if let Some(step) = keep_addresses(view) {
        return next(Stage::Import, Decision::Run(step));
    }
    if let Some(next) = agent_reaches(view, Stage::Swap, Goal::Swapped, Phase::Swapped) {
        return next;
    }
    // Until then: the routes of the host do not depend on flannel's pod.
    if let Some(next) = flannel_is_gone(view, Stage::Swap) {
        return next;
    }
    next(Stage::StartCalico, Decision::Run(NodeStep::Label("calico")))
}

/// Lets the agent adopt the running pods, and waits for the end of the bridge; `None` if nothing remains to be done. Pods that
/// cannot be adopted keep the bridge: they are named in the status, and the rollout continues.
pub(super) fn adopt(view: &NodeView<'_>, policy: &Policy) -> Option<Next> {
    if (policy.strategy, policy.legacy_pods) != (Strategy::InPlace, LegacyPods::Adopt) {
        return None;
    }
    let next = agent_reaches(view, Stage::Adopt, Goal::Calico, Phase::Calico)?;
    let is_wait = matches!(next.decision, Decision::Wait(_));
    (!is_wait || !view.agent.ready || view.pods_that_stay.is_empty()).then_some(next)
}

/// The next step that makes Calico's IPAM agree with the pods on the host. First releases: flannel may have given the address of a pod
/// that has ended to another one.
fn keep_addresses(view: &NodeView<'_>) -> Option<NodeStep> {
    if !view.to_release.is_empty() {
        return Some(NodeStep::Release(view.to_release.clone()));
    }
    (!view.to_import.is_empty()).then(|| NodeStep::Import(view.to_import.clone()))
}

/// The next step for a node with pods of both networks, and after the end of the last legacy pod; `None` if there is nothing to
/// do. Applies also when the node is done, because pods start and end for days after the migration.
pub fn upkeep(view: &NodeView<'_>) -> Option<NodeStep> {
    if view.direction == Direction::Rollback {
        return None;
    }
    let phase = view.agent.phase?;
    if !view.agent.ready || !matches!(phase, Phase::Swapped | Phase::Mixed | Phase::Calico) {
        return None;
    }
    if let Some(step) = keep_addresses(view) {
        return Some(step);
    }
    // flanneld would create its link again. Its pod exists if another client has changed the label.
    let last_is_gone = phase == Phase::Mixed && view.legacy_pods.is_empty() && view.flannel_pods.is_empty();
    (last_is_gone && view.goal == Goal::Mixed).then_some(NodeStep::Goal(Goal::Calico))
}

/// Evicts the legacy pods of a node on Calico within their `PodDisruptionBudgets`; `None` if no pod is left to evict. The agent
/// reports when terminating pods are gone.
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
