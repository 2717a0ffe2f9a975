//! A node in work that does not go on, and of which nothing but its cordon has changed: it can be given back, so that another node
//! takes its place.

use super::{Direction, NetworkLabel, NodeStep, NodeView, Policy};
use crate::phase::Goal;
use engine::decision::{Decision, HaltReason, WaitReason};
use engine::evict::OnBlocked;

/// Whether nothing of the node has changed since it was taken into work but its cordon. Pods that were evicted live elsewhere.
pub fn is_unchanged(view: &NodeView<'_>) -> bool {
    match (view.direction, &view.network) {
        (Direction::There, NetworkLabel::Missing | NetworkLabel::Flannel) => view.goal == Goal::Hold,
        (Direction::Back, NetworkLabel::Calico) => view.done_before.is_some() && view.goal != Goal::Flannel,
        (Direction::There, NetworkLabel::Neither | NetworkLabel::Calico | NetworkLabel::Other(_))
        | (
            Direction::Back,
            NetworkLabel::Missing | NetworkLabel::Flannel | NetworkLabel::Neither | NetworkLabel::Other(_),
        ) => false,
    }
}

/// What happens when the drain of this node is blocked past its time. On the way back no pod keeps the place of a node that is unchanged:
/// whoever leads everything back did not choose what one of them may stop.
pub(super) fn on_blocked(view: &NodeView<'_>, policy: &Policy) -> OnBlocked {
    match view.direction {
        Direction::Back if is_unchanged(view) => OnBlocked::Skip,
        Direction::Back | Direction::There => policy.on_blocked,
    }
}

/// The reason and the words where an unchanged node is given back: its agent holds it, by what it says or by its silence, or its drain is
/// blocked past its time. A node that is NotReady is away: it takes a place whether it is in work or not.
pub fn given_back<'decision>(
    view: &NodeView<'_>,
    policy: &Policy,
    decision: &'decision Decision<NodeStep>,
) -> Option<(&'static str, &'decision str)> {
    if !is_unchanged(view) || !view.ready {
        return None;
    }
    let is_set_aside = on_blocked(view, policy) == OnBlocked::Skip;
    match decision {
        Decision::Wait(wait) if wait.reason == WaitReason::AgentSilent => {
            Some((wait.reason.as_str(), &wait.message))
        }
        Decision::Halt(halt)
            if halt.reason == HaltReason::AgentFailure
                || (halt.reason == HaltReason::DrainBlocked && is_set_aside) =>
        {
            Some((halt.reason.as_str(), &halt.message))
        }
        Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_) => None,
    }
}
