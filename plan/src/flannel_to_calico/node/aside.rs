//! A node in work that does not go on, and of which nothing but its cordon has changed: it can be given back, so that another node
//! takes its place.

use super::{Direction, NetworkLabel, NodeStep, NodeView};
use crate::decision::{Decision, HaltReason, WaitReason};
use crate::flannel_to_calico::phase::Goal;

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

/// The reason and the words where the agent of an unchanged node holds it, by what it says or by its silence. A node that is NotReady
/// is away: it takes a place whether it is in work or not.
pub fn held_by_agent<'decision>(
    view: &NodeView<'_>,
    decision: &'decision Decision<NodeStep>,
) -> Option<(&'static str, &'decision str)> {
    if !is_unchanged(view) || !view.ready {
        return None;
    }
    match decision {
        Decision::Wait(wait) if wait.reason == WaitReason::AgentSilent => {
            Some((wait.reason.as_str(), &wait.message))
        }
        Decision::Halt(halt) if halt.reason == HaltReason::AgentFailure => {
            Some((halt.reason.as_str(), &halt.message))
        }
        Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_) => None,
    }
}
