//! Nodes that count against the limit.

use super::{NodeProgress, RolloutNode};
use crate::words::names;

/// Whether a node counts against the limit: in progress, or NotReady for any reason.
pub(super) fn is_unavailable(node: &RolloutNode<'_>) -> bool {
    match node.standing {
        NodeProgress::Working | NodeProgress::Halted | NodeProgress::Returning => true,
        NodeProgress::Waiting
        | NodeProgress::Skipped
        | NodeProgress::KeptOnOld
        | NodeProgress::FellBack
        | NodeProgress::Done(_) => !node.ready,
    }
}

pub(super) fn turn_message(nodes: &[RolloutNode<'_>], starting: &[&str], name: &str, limit: usize) -> String {
    let busy: Vec<&str> = nodes
        .iter()
        .filter(|node| is_unavailable(node) || starting.contains(&node.name))
        .map(|node| node.name)
        .collect();
    format!(
        "node {name} waits for its turn: maxUnavailable is {limit}; in progress or NotReady: {}",
        names(&busy)
    )
}
