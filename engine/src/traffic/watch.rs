//! Whether so many nodes watch the traffic that it is a gate. A node whose agent says nothing, or nonsense, costs what it would have seen
//! itself: the others send to its traffic pod all the same, and see what is lost on the way there and back.

use std::collections::BTreeMap;

use crate::decision::{Wait, WaitReason};
use crate::words::number;

/// What a node does about the traffic. Of several traffic pods of a node the last in this order is the node's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It is NotReady, or its agent is: nobody waits for it.
    Away,
    /// It watches.
    Watches,
    /// Nobody waits for its agent any more, and why.
    Silent(String),
    /// It is about to watch; what it waits for.
    Awaited(String),
}

/// Why nobody can say what is lost. One that is about to watch is waited for; without that more than half of all nodes have to watch, which
/// is two at least where there are two.
pub fn missing(nodes: &BTreeMap<&str, State>) -> Option<Wait> {
    let all = nodes.len();
    let watching = nodes.values().filter(|state| **state == State::Watches).count();
    let wait = |message| {
        Some(Wait {
            reason: WaitReason::TrafficUnwatched,
            message,
            until: None,
        })
    };
    let awaited = nodes.iter().find_map(|(node, state)| match state {
        State::Awaited(what) => Some((node, what)),
        State::Away | State::Watches | State::Silent(_) => None,
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
        State::Silent(what) => Some(format!("node {node}: {what}")),
        State::Away => Some(format!("node {node} is NotReady, or no agent is Ready on it")),
        State::Watches | State::Awaited(_) => None,
    })?;
    wait(format!(
        "traffic is watched on {watching} of {}, and it takes {needed}; {first}. Mend these agents, or go on unwatched with gates.traffic: Ignore",
        number(all, "node", "nodes")
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn state(letter: char) -> State {
        match letter {
            'w' => State::Watches,
            's' => State::Silent("its agent says nonsense".to_owned()),
            'p' => State::Awaited("pod p starts".to_owned()),
            'a' => State::Away,
            other => unreachable!("{other}"),
        }
    }

    /// One letter a node, and whether it holds.
    #[rstest]
    #[case::no_node("", None)]
    #[case::alone("w", None)]
    #[case::alone_and_silent(
        "s",
        Some("watched on 0 of 1 node, and it takes 1; node n0: its agent says nonsense")
    )]
    #[case::both("ww", None)]
    #[case::one_of_two("ws", Some("watched on 1 of 2 nodes, and it takes 2; node n1: its agent"))]
    #[case::two_of_three("wsw", None)]
    #[case::one_of_three("wsa", Some("watched on 1 of 3 nodes, and it takes 2"))]
    #[case::half("wwss", Some("watched on 2 of 4 nodes, and it takes 3"))]
    #[case::most("wwwss", None)]
    #[case::all_away("aaa", Some("watched on 0 of 3 nodes, and it takes 2; node n0 is NotReady"))]
    #[case::one_is_awaited("wwwwp", Some("watched on 4 of 5 nodes; node n4: pod p starts"))]
    fn how_many_have_to_watch(#[case] letters: &str, #[case] words: Option<&str>) {
        let names: Vec<String> = (0..letters.len()).map(|index| format!("n{index}")).collect();
        let nodes = names.iter().map(String::as_str).zip(letters.chars().map(state));
        let found = missing(&nodes.collect()).map(|wait| wait.message);
        match (&found, words) {
            (None, None) => {}
            (Some(found), Some(words)) => assert!(found.contains(words), "{found}"),
            (found, words) => panic!("{found:?}, wanted {words:?}"),
        }
    }
}
