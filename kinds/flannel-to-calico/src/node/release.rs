//! Release of a node that cannot continue, and of which only the cordon has changed, so that another node can be migrated
//! instead.

use super::{Direction, NetworkLabel, NodeStep, NodeView, Policy};
use crate::phase::Goal;
use engine::decision::{Decision, HaltReason, WaitReason};
use engine::evict::OnBlocked;
use engine::reason::Reason;

/// Whether only the cordon of the node has changed since its migration started. Evicted pods run on other nodes.
pub fn is_unchanged(view: &NodeView<'_>) -> bool {
    match (view.direction, &view.network) {
        (Direction::Forward, NetworkLabel::Missing | NetworkLabel::Flannel) => view.goal == Goal::Hold,
        (Direction::Rollback, NetworkLabel::Calico) => {
            view.was_done_at.is_some() && view.goal != Goal::Flannel
        }
        (Direction::Forward, NetworkLabel::Neither | NetworkLabel::Calico | NetworkLabel::Other(_))
        | (
            Direction::Rollback,
            NetworkLabel::Missing | NetworkLabel::Flannel | NetworkLabel::Neither | NetworkLabel::Other(_),
        ) => false,
    }
}

/// The handling of this node if its drain is blocked after its time limit. In a rollback, an unchanged node is always
/// skipped: `spec.drain.onBlocked` is chosen for the migration, and a single pod must not stop the rollback of all nodes.
pub(super) fn on_blocked(view: &NodeView<'_>, policy: &Policy) -> OnBlocked {
    match view.direction {
        Direction::Rollback if is_unchanged(view) => OnBlocked::Skip,
        Direction::Rollback | Direction::Forward => policy.on_blocked,
    }
}

/// The reason and the message for the release of an unchanged node: its agent fails or is silent, or its drain is blocked after
/// its time limit. A node that is NotReady is not released: it counts as unavailable in any case.
pub fn release_reason<'decision>(
    view: &NodeView<'_>,
    policy: &Policy,
    decision: &'decision Decision<NodeStep>,
) -> Option<(Reason, &'decision str)> {
    if !is_unchanged(view) || !view.ready {
        return None;
    }
    let is_set_aside = on_blocked(view, policy) == OnBlocked::Skip;
    match decision {
        Decision::Wait(wait) if wait.reason == WaitReason::AgentSilent => {
            Some((wait.reason.into(), &wait.message))
        }
        Decision::Halt(halt)
            if halt.reason == HaltReason::AgentFailure
                || (halt.reason == HaltReason::DrainBlocked && is_set_aside) =>
        {
            Some((halt.reason.into(), &halt.message))
        }
        Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_) => None,
    }
}
