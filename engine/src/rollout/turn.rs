//! Which nodes are rolled back now.

use super::unavailable::{is_unavailable, turn_message};
use super::{MaxUnavailable, NodeProgress, RolloutNode};
use crate::decision::{Wait, WaitReason};

/// Which nodes are to be rolled back to the old network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Back {
    /// Nodes in progress.
    InProgress,
    /// Nodes with these names that are in progress or done.
    Named(Vec<String>),
    /// All nodes that are in progress or done.
    All,
}

impl Back {
    /// Whether this node is to be rolled back and is not yet.
    pub fn selects(&self, node: &RolloutNode<'_>) -> bool {
        let named = match self {
            Self::InProgress => matches!(node.standing, NodeProgress::Working | NodeProgress::Halted),
            Self::All => true,
            Self::Named(names) => names.iter().any(|name| name == node.name),
        };
        named && !is_rolled_back(node)
    }
}

/// Whether the node is on the old network and not in progress.
pub fn is_rolled_back(node: &RolloutNode<'_>) -> bool {
    match node.standing {
        // A node that this migration never started may have been moved by another client or by an earlier migration.
        NodeProgress::Waiting | NodeProgress::Skipped | NodeProgress::KeptOnOld | NodeProgress::FellBack => {
            node.on_old
        }
        NodeProgress::Done(_) | NodeProgress::Working | NodeProgress::Halted | NodeProgress::Returning => {
            false
        }
    }
}

/// The nodes that start their rollback now, and why the next one does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollbackAdmission<'node> {
    /// Nodes that start their rollback, in order.
    pub now: Vec<&'node str>,
    /// Why the next node waits; `None` when no node remains.
    pub held: Option<Wait>,
}

/// Nodes that are done and to be rolled back, in this order: the last one first.
fn queue<'all, 'node>(nodes: &'all [RolloutNode<'node>], back: &Back) -> Vec<&'all RolloutNode<'node>> {
    let waits = |node: &&RolloutNode<'_>| match node.standing {
        NodeProgress::Working | NodeProgress::Halted | NodeProgress::Returning => false,
        _ => !node.is_backing_off,
    };
    let selected = nodes.iter().rev().filter(|node| back.selects(node));
    let mut queue: Vec<&RolloutNode<'node>> = selected.filter(waits).collect();
    queue.sort_by_key(|node| node.tries);
    queue
}

/// The nodes that are rolled back next: as many as may be in progress at the same time.
pub fn next_rollbacks<'node>(
    nodes: &[RolloutNode<'node>],
    back: &Back,
    limit: MaxUnavailable,
) -> Vec<&'node str> {
    let ready = queue(nodes, back).into_iter().filter(|node| node.ready);
    ready
        .take(limit.resolve(nodes.len()))
        .map(|node| node.name)
        .collect()
}

/// Chooses the nodes that start their rollback now. Nodes in progress start at once: they are unavailable already. Nodes that are
/// done follow, the last one first, as long as no more nodes than the limit are in progress or NotReady.
pub fn admit_rollback<'node>(
    nodes: &[RolloutNode<'node>],
    back: &Back,
    limit: MaxUnavailable,
) -> RollbackAdmission<'node> {
    let in_progress =
        |node: &&RolloutNode<'node>| matches!(node.standing, NodeProgress::Working | NodeProgress::Halted);
    let mut turned = RollbackAdmission {
        now: nodes
            .iter()
            .filter(|node| back.selects(node))
            .filter(in_progress)
            .map(|node| node.name)
            .collect(),
        held: None,
    };
    let limit = limit.resolve(nodes.len());
    let mut unavailable = nodes.iter().filter(|node| is_unavailable(node)).count();
    for node in queue(nodes, back) {
        let hold = |reason, message| {
            Some(Wait {
                reason,
                message,
                until: None,
            })
        };
        if !node.ready {
            // The node already counts as unavailable, and is rolled back once it is Ready.
            let message = format!(
                "node {} is NotReady; it is rolled back once it is Ready",
                node.name
            );
            turned.held = turned.held.or_else(|| hold(WaitReason::NodeNotReady, message));
        } else if unavailable < limit {
            turned.now.push(node.name);
            unavailable += 1;
        } else {
            let message = turn_message(nodes, &turned.now, node.name, limit);
            let in_progress = |node: &RolloutNode<'_>| {
                matches!(
                    node.standing,
                    NodeProgress::Working | NodeProgress::Halted | NodeProgress::Returning
                )
            };
            // No node in progress would free a slot: the wait is for a node that is NotReady, and has a deadline.
            let reason = if nodes.iter().any(in_progress) || !turned.now.is_empty() {
                WaitReason::WaitingForTurn
            } else {
                WaitReason::NodeNotReady
            };
            turned.held = turned.held.or_else(|| hold(reason, message));
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn node(name: &str, standing: NodeProgress) -> RolloutNode<'_> {
        RolloutNode {
            name,
            standing,
            ready: true,
            on_old: matches!(standing, NodeProgress::Waiting),
            is_backing_off: false,
            tries: 0,
        }
    }

    fn standing() -> impl Strategy<Value = NodeProgress> {
        prop_oneof![
            Just(NodeProgress::Waiting),
            Just(NodeProgress::Working),
            Just(NodeProgress::Returning),
            Just(NodeProgress::Done(NOW)),
        ]
    }

    #[test]
    fn nodes_in_progress_roll_back_at_once_and_done_nodes_from_the_last() {
        let nodes = [
            node("a", NodeProgress::Done(NOW)),
            node("b", NodeProgress::Done(NOW)),
            node("c", NodeProgress::Working),
            node("d", NodeProgress::Waiting),
        ];
        let turn = |back: &Back, limit| admit_rollback(&nodes, back, MaxUnavailable::Nodes(limit)).now;
        assert_eq!(turn(&Back::InProgress, 9), ["c"]);
        assert_eq!(turn(&Back::All, 1), ["c"]);
        assert_eq!(turn(&Back::All, 2), ["c", "b"]);
        assert_eq!(turn(&Back::All, 9), ["c", "b", "a"]);
        assert_eq!(turn(&Back::Named(vec!["a".to_owned(), "d".to_owned()]), 2), ["a"]);
        assert_eq!(turn(&Back::Named(vec!["a".to_owned()]), 1), Vec::<&str>::new());
    }

    #[test]
    fn a_node_that_is_not_ready_is_named_as_the_reason_of_the_wait() {
        let mut nodes = [
            node("a", NodeProgress::Done(NOW)),
            node("b", NodeProgress::Done(NOW)),
        ];
        nodes[1].ready = false;
        let turned = admit_rollback(&nodes, &Back::All, MaxUnavailable::Nodes(1));
        assert_eq!(turned.now, Vec::<&str>::new());
        let held = turned.held.unwrap();
        assert_eq!(held.reason, WaitReason::NodeNotReady);
        assert!(held.message.contains("node b is NotReady"), "{}", held.message);
        nodes[1].standing = NodeProgress::Waiting;
        nodes[1].on_old = true;
        let held = admit_rollback(&nodes, &Back::All, MaxUnavailable::Nodes(1))
            .held
            .unwrap();
        assert_eq!(held.reason, WaitReason::NodeNotReady);
        assert!(held.message.contains("NotReady: b"), "{}", held.message);
    }

    #[test]
    fn a_released_node_lets_another_node_roll_back() {
        let mut nodes = [
            node("a", NodeProgress::Done(NOW)),
            node("b", NodeProgress::Done(NOW)),
        ];
        nodes[1].is_backing_off = true;
        let turned = admit_rollback(&nodes, &Back::All, MaxUnavailable::Nodes(1));
        assert_eq!((turned.now, turned.held), (vec!["a"], None));
        nodes[1].is_backing_off = false;
        let turned = admit_rollback(&nodes, &Back::All, MaxUnavailable::Nodes(1));
        assert_eq!(turned.now, ["b"]);
        nodes[1].tries = 1;
        let turned = admit_rollback(&nodes, &Back::All, MaxUnavailable::Nodes(1));
        assert_eq!(turned.now, ["a"]);
    }

    #[test]
    fn a_node_that_another_client_has_moved_is_rolled_back_too() {
        let mut nodes = [node("a", NodeProgress::Waiting), node("b", NodeProgress::Skipped)];
        (nodes[0].on_old, nodes[1].on_old) = (false, false);
        let turned = admit_rollback(&nodes, &Back::All, MaxUnavailable::Nodes(2));
        assert_eq!(turned.now, ["b", "a"]);
        assert!(!is_rolled_back(&nodes[0]) && is_rolled_back(&node("c", NodeProgress::Waiting)));
    }

    proptest! {
        /// The same for a rollback, except for nodes that were in progress before.
        #[test]
        fn nodes_that_roll_back_never_exceed_the_limit(
            nodes in proptest::collection::vec((standing(), any::<bool>()), 1..12),
            limit in 1u32..6,
        ) {
            let names: Vec<String> = (0..nodes.len()).map(|index| format!("n{index}")).collect();
            let nodes: Vec<RolloutNode<'_>> = nodes.iter().zip(&names)
                .map(|((standing, ready), name)| RolloutNode {
                    name, standing: *standing, ready: *ready, on_old: true, is_backing_off: false, tries: 0,
                })
                .collect();
            let before = nodes.iter().filter(|node| is_unavailable(node)).count();
            let turned = admit_rollback(&nodes, &Back::All, MaxUnavailable::Nodes(limit)).now;
            let were_done = turned.iter()
                .filter(|name| nodes.iter().any(|node| node.name == **name && matches!(node.standing, NodeProgress::Done(_))))
                .count();
            prop_assert!(were_done == 0 || before + were_done <= limit as usize);
        }
    }
}
