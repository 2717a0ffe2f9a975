//! Whether enough nodes watch the traffic for a gate. A node whose agent is silent, or whose report is not understood, adds no
//! results of its own; other nodes still send to its traffic pod and see losses in both directions.

use std::collections::BTreeMap;

use crate::decision::{Wait, WaitReason};
use crate::words::number;

/// The state of the traffic watch on a node. With several traffic pods on a node, the last in this order counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchState {
    /// The node or its agent is NotReady: the migration does not wait for the node.
    Away,
    /// The node watches.
    Watches,
    /// The migration no longer waits for the agent of the node, with the reason.
    Silent(String),
    /// The node will watch soon, with what it waits for.
    Awaited(String),
}

/// The wait for nodes that do not watch yet. The migration waits for each node that will watch soon; otherwise more than half of
/// all nodes have to watch, which is at least two of two.
pub fn missing(nodes: &BTreeMap<&str, WatchState>) -> Option<Wait> {
    let all = nodes.len();
    let watching = nodes
        .values()
        .filter(|state| **state == WatchState::Watches)
        .count();
    let wait = |message| {
        Some(Wait {
            reason: WaitReason::TrafficUnwatched,
            message,
            until: None,
        })
    };
    let awaited = nodes.iter().find_map(|(node, state)| match state {
        WatchState::Awaited(what) => Some((node, what)),
        WatchState::Away | WatchState::Watches | WatchState::Silent(_) => None,
    });
    if let Some((node, what)) = awaited {
        return wait(format!(
            "traffic is watched on {watching} of {}; node {node}: {what}",
            number(all, "node", "nodes")
        ));
    }
    let needed = all / 2 + 1;
    if all == 0 || watching >= needed {
        return None;
    }
    let first = nodes.iter().find_map(|(node, state)| match state {
        WatchState::Silent(what) => Some(format!("node {node}: {what}")),
        WatchState::Away => Some(format!("node {node} is NotReady, or no agent is Ready on it")),
        WatchState::Watches | WatchState::Awaited(_) => None,
    })?;
    wait(format!(
        "traffic is watched on {watching} of {}, needed {needed}; {first}. Repair these agents, or set gates.traffic: Ignore to \
         continue unwatched",
        number(all, "node", "nodes")
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn state(letter: char) -> WatchState {
        match letter {
            'w' => WatchState::Watches,
            's' => WatchState::Silent("the report of its agent is malformed".to_owned()),
            'p' => WatchState::Awaited("pod p starts".to_owned()),
            'a' => WatchState::Away,
            other => unreachable!("{other}"),
        }
    }

    /// One letter for each node, and the expected message.
    #[rstest]
    #[case::no_node("", None)]
    #[case::alone("w", None)]
    #[case::alone_and_silent(
        "s",
        Some("watched on 0 of 1 node, needed 1; node n0: the report of its agent is malformed")
    )]
    #[case::both("ww", None)]
    #[case::one_of_two("ws", Some("watched on 1 of 2 nodes, needed 2; node n1: the report"))]
    #[case::two_of_three("wsw", None)]
    #[case::one_of_three("wsa", Some("watched on 1 of 3 nodes, needed 2"))]
    #[case::half("wwss", Some("watched on 2 of 4 nodes, needed 3"))]
    #[case::most("wwwss", None)]
    #[case::all_away("aaa", Some("watched on 0 of 3 nodes, needed 2; node n0 is NotReady"))]
    #[case::one_is_awaited("wwwwp", Some("watched on 4 of 5 nodes; node n4: pod p starts"))]
    fn more_than_half_of_the_nodes_have_to_watch(#[case] letters: &str, #[case] words: Option<&str>) {
        let names: Vec<String> = (0..letters.len()).map(|index| format!("n{index}")).collect();
        let nodes = names.iter().map(String::as_str).zip(letters.chars().map(state));
        let found = missing(&nodes.collect()).map(|wait| wait.message);
        match (&found, words) {
            (None, None) => {}
            (Some(found), Some(words)) => assert!(found.contains(words), "{found}"),
            (found, words) => panic!("found {found:?}, needed {words:?}"),
        }
    }
}
