//! Which nodes may be migrated at the same time: a decision about all nodes, not about one.

mod turn;

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

pub use turn::{Back, RollbackAdmission, admit_rollback, is_rolled_back};

use crate::decision::{Wait, WaitReason};
use crate::words::names;

/// The number of nodes that may be unavailable at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxUnavailable {
    /// A number of nodes.
    Nodes(u32),
    /// A share of all nodes, in percent.
    Percent(u32),
}

/// An invalid `maxUnavailable`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("rollout.maxUnavailable: found {found:?}, needed a number from 1 or a percentage from 1% to 100%")]
pub struct MaxUnavailableError {
    /// The text that was found.
    pub found: String,
}

impl MaxUnavailable {
    /// Reads a number (`2`) or a percentage (`25%`).
    pub fn parse(text: &str) -> Result<Self, MaxUnavailableError> {
        let error = || MaxUnavailableError {
            found: text.to_owned(),
        };
        match text.strip_suffix('%') {
            Some(number) => match number.parse::<u32>() {
                Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
                Ok(_) | Err(_) => Err(error()),
            },
            None => match text.parse::<u32>() {
                Ok(nodes) if nodes >= 1 => Ok(Self::Nodes(nodes)),
                Ok(_) | Err(_) => Err(error()),
            },
        }
    }

    /// The limit for a cluster of this size: a percentage is rounded up, and is at least 1.
    pub fn resolve(self, nodes: usize) -> usize {
        match self {
            Self::Nodes(limit) => usize::try_from(limit).unwrap_or(usize::MAX).max(1),
            Self::Percent(percent) => {
                let share = (nodes as u64).saturating_mul(u64::from(percent)).div_ceil(100);
                usize::try_from(share).unwrap_or(usize::MAX).max(1)
            }
        }
    }
}

/// The progress of one node in the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProgress {
    /// Not started.
    Waiting,
    /// Skipped, by `drain.onBlocked: Skip` or because the first step failed; tried again after all others.
    Skipped,
    /// Being migrated.
    Working,
    /// Being migrated and halted: the user has to decide.
    Halted,
    /// Being rolled back to the old network.
    Returning,
    /// On the old network, and kept there.
    KeptOnOld,
    /// On the old network, restored by its agent without a request: the user has to decide.
    FellBack,
    /// Done since this time.
    Done(Timestamp),
}

/// One node of the rollout, in the order of [`crate::order::sort`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutNode<'node> {
    /// Name of the node.
    pub name: &'node str,
    /// The progress of the node.
    pub standing: NodeProgress,
    /// Whether the Node reports Ready.
    pub ready: bool,
    /// Whether the Node is on the old network by its label.
    pub on_old: bool,
    /// Whether the node was released a moment ago, and is tried again later: until then it takes no slot of another node.
    pub is_backing_off: bool,
    /// How often the node was released: nodes that were released less often come first.
    pub tries: u32,
}

/// The rules of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The number of nodes that may be unavailable at the same time.
    pub max_unavailable: MaxUnavailable,
    /// The number of canary nodes, which are migrated first and alone.
    pub canary_nodes: usize,
    /// How long the canary nodes must be done before the others start.
    pub canary_soak: SignedDuration,
    /// Pause between the end of one node and the start of the next.
    pub interval: SignedDuration,
    /// Whether no new node may start.
    pub paused: bool,
    /// Why no new node may start, for a reason of the whole cluster.
    pub hold: Option<Wait>,
    /// The last time that a migrated node had a problem: the soak time of canaries counts from there.
    pub clean_since: Option<Timestamp>,
}

/// The nodes that start now, and why no other node starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission<'node> {
    /// Nodes to start now, in order.
    pub start: Vec<&'node str>,
    /// Why no further node starts; `None` when no node is waiting.
    pub held: Option<Wait>,
}

/// Chooses the nodes that start now. `nodes` is in order. Never starts a node if more nodes than the limit would be in progress
/// or NotReady at the same time.
pub fn admit<'node>(nodes: &[RolloutNode<'node>], rules: &Rules, now: Timestamp) -> Admission<'node> {
    let mut admission = Admission::default();
    let in_turn = |standing| {
        let mut queue = waiting(nodes, standing);
        queue.retain(|node| !node.is_backing_off);
        queue.sort_by_key(|node| node.tries);
        queue
    };
    let mut queue: Vec<&RolloutNode<'node>> = in_turn(NodeProgress::Waiting);
    // Skipped nodes come after all others, even after nodes that are still in progress.
    let others_done = nodes.iter().all(|node| {
        node.is_backing_off
            || matches!(
                node.standing,
                NodeProgress::Done(_) | NodeProgress::Skipped | NodeProgress::KeptOnOld
            )
    });
    if others_done {
        queue.extend(in_turn(NodeProgress::Skipped));
    }
    let hold = |reason, message: String, until| {
        Some(Wait {
            reason,
            message,
            until,
        })
    };
    let Some(first) = queue.first() else {
        let kept: Vec<&str> = waiting(nodes, NodeProgress::KeptOnOld)
            .iter()
            .map(|node| node.name)
            .collect();
        if !kept.is_empty() {
            admission.held = hold(
                WaitReason::Paused,
                format!("kept on the old network by rollbackNodes: {}", names(&kept)),
                None,
            );
        }
        return admission;
    };
    let (canaries_only, held) = held_for_all(nodes, rules, first.name, now);
    if held.is_some() {
        admission.held = held;
        return admission;
    }
    let limit = rules.max_unavailable.resolve(nodes.len());
    let mut unavailable = nodes.iter().filter(|node| is_unavailable(node)).count();
    for node in queue {
        let is_canary = nodes
            .iter()
            .take(rules.canary_nodes)
            .any(|canary| canary.name == node.name);
        if canaries_only && !is_canary {
            admission.held = hold(
                WaitReason::CanarySoak,
                format!(
                    "node {} waits for the canary nodes ({})",
                    node.name, rules.canary_nodes
                ),
                None,
            );
            break;
        }
        if !node.ready {
            // The node already counts as unavailable, and starts once it is Ready.
            admission.held = hold(
                WaitReason::NodeNotReady,
                format!("node {} is NotReady", node.name),
                None,
            );
            continue;
        }
        if unavailable >= limit {
            admission.held = hold(
                WaitReason::Turn,
                turn_message(nodes, &admission.start, node.name, limit),
                None,
            );
            break;
        }
        admission.start.push(node.name);
        unavailable += 1;
    }
    admission
}

/// Why no node at all may start now, and whether only canaries may.
fn held_for_all(
    nodes: &[RolloutNode<'_>],
    rules: &Rules,
    first: &str,
    now: Timestamp,
) -> (bool, Option<Wait>) {
    let hold = |reason, message: String, until| {
        let wait = Wait {
            reason,
            message,
            until,
        };
        (false, Some(wait))
    };
    if rules.paused {
        return hold(WaitReason::Paused, format!("paused before node {first}"), None);
    }
    if rules.hold.is_some() {
        return (false, rules.hold.clone());
    }
    let stopped =
        |node: &&RolloutNode<'_>| matches!(node.standing, NodeProgress::Halted | NodeProgress::FellBack);
    if let Some(node) = nodes.iter().find(stopped) {
        return hold(WaitReason::Paused, format!("node {} is halted", node.name), None);
    }
    let (canaries_only, soak_end) = canary(nodes, rules);
    if let Some(end) = soak_end.filter(|end| *end > now) {
        let message = format!("canary nodes done: {}; soak time until {end}", rules.canary_nodes);
        return hold(WaitReason::CanarySoak, message, Some(end));
    }
    let last_done = nodes.iter().filter_map(|node| match node.standing {
        NodeProgress::Done(since) => Some(since),
        NodeProgress::Waiting
        | NodeProgress::Skipped
        | NodeProgress::Working
        | NodeProgress::Halted
        | NodeProgress::Returning
        | NodeProgress::FellBack
        | NodeProgress::KeptOnOld => None,
    });
    if let Some(next) = last_done
        .max()
        .map(|done| done + rules.interval)
        .filter(|next| *next > now)
    {
        let message = format!("rollout.intervalSeconds: node {first} starts at {next}");
        return hold(WaitReason::Interval, message, Some(next));
    }
    (canaries_only, None)
}

/// Whether a node counts against the limit: in progress, or NotReady for any reason.
fn is_unavailable(node: &RolloutNode<'_>) -> bool {
    match node.standing {
        NodeProgress::Working | NodeProgress::Halted | NodeProgress::Returning => true,
        NodeProgress::Waiting
        | NodeProgress::Skipped
        | NodeProgress::KeptOnOld
        | NodeProgress::FellBack
        | NodeProgress::Done(_) => !node.ready,
    }
}

fn waiting<'nodes, 'node>(
    nodes: &'nodes [RolloutNode<'node>],
    standing: NodeProgress,
) -> Vec<&'nodes RolloutNode<'node>> {
    nodes.iter().filter(|node| node.standing == standing).collect()
}

/// Whether only canaries may start, and the end of the soak time of finished canaries.
fn canary(nodes: &[RolloutNode<'_>], rules: &Rules) -> (bool, Option<Timestamp>) {
    if rules.canary_nodes == 0 {
        return (false, None);
    }
    let mut latest: Option<Timestamp> = None;
    for node in nodes.iter().take(rules.canary_nodes) {
        match node.standing {
            NodeProgress::Done(since) => latest = latest.max(Some(since)),
            // The user keeps the node on the old network: the others do not wait for it.
            NodeProgress::KeptOnOld => {}
            NodeProgress::Waiting
            | NodeProgress::Skipped
            | NodeProgress::Working
            | NodeProgress::Halted
            | NodeProgress::Returning
            | NodeProgress::FellBack => {
                return (true, None);
            }
        }
    }
    (
        false,
        latest
            .max(latest.and(rules.clean_since))
            .map(|since| since + rules.canary_soak),
    )
}

fn turn_message(nodes: &[RolloutNode<'_>], starting: &[&str], name: &str, limit: usize) -> String {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn rules(limit: u32) -> Rules {
        Rules {
            max_unavailable: MaxUnavailable::Nodes(limit),
            canary_nodes: 0,
            canary_soak: SignedDuration::ZERO,
            interval: SignedDuration::ZERO,
            paused: false,
            hold: None,
            clean_since: None,
        }
    }

    fn node(name: &str, standing: NodeProgress) -> RolloutNode<'_> {
        RolloutNode {
            name,
            standing,
            ready: true,
            on_old: true,
            is_backing_off: false,
            tries: 0,
        }
    }

    #[rstest]
    #[case("1", Some(1))]
    #[case("3", Some(3))]
    #[case("10%", Some(1))]
    #[case("25%", Some(2))]
    #[case("100%", Some(5))]
    #[case("0", None)]
    #[case("0%", None)]
    #[case("101%", None)]
    #[case("-1", None)]
    #[case("two", None)]
    fn max_unavailable_is_resolved_for_five_nodes(#[case] text: &str, #[case] limit: Option<usize>) {
        assert_eq!(MaxUnavailable::parse(text).ok().map(|max| max.resolve(5)), limit);
    }

    #[test]
    fn a_node_that_is_not_ready_counts_against_the_limit() {
        let mut nodes = [node("a", NodeProgress::Waiting), node("b", NodeProgress::Waiting)];
        nodes[1].ready = false;
        assert_eq!(admit(&nodes, &rules(1), NOW).start, Vec::<&str>::new());
        assert_eq!(admit(&nodes, &rules(2), NOW).start, ["a"]);
    }

    #[test]
    fn a_waiting_node_names_the_nodes_in_progress() {
        let nodes = [
            node("a", NodeProgress::Working),
            node("b", NodeProgress::Waiting),
            node("c", NodeProgress::Waiting),
        ];
        // A node that starts now is in progress, too.
        let message = admit(&nodes, &rules(2), NOW).held.unwrap().message;
        assert_eq!(
            message,
            "node c waits for its turn: maxUnavailable is 2; in progress or NotReady: a, b"
        );
    }

    #[test]
    fn canaries_start_alone_and_soak() {
        let canary = Rules {
            canary_nodes: 1,
            canary_soak: SignedDuration::from_secs(60),
            ..rules(3)
        };
        let fresh = [node("a", NodeProgress::Waiting), node("b", NodeProgress::Waiting)];
        assert_eq!(admit(&fresh, &canary, NOW).start, ["a"]);
        let soaking = [
            node("a", NodeProgress::Done(NOW)),
            node("b", NodeProgress::Waiting),
        ];
        let held = admit(&soaking, &canary, NOW).held.unwrap();
        assert_eq!(held.reason, WaitReason::CanarySoak);
        assert_eq!(
            admit(&soaking, &canary, NOW + SignedDuration::from_secs(60)).start,
            ["b"]
        );
    }

    #[test]
    fn a_halted_node_stops_new_starts() {
        let nodes = [node("a", NodeProgress::Halted), node("b", NodeProgress::Waiting)];
        let admission = admit(&nodes, &rules(2), NOW);
        assert!(admission.start.is_empty());
        assert_eq!(admission.held.unwrap().message, "node a is halted");
    }

    #[test]
    fn a_node_that_fell_back_stops_new_starts() {
        let nodes = [
            node("a", NodeProgress::FellBack),
            node("b", NodeProgress::Waiting),
        ];
        assert!(admit(&nodes, &rules(2), NOW).start.is_empty());
    }

    #[test]
    fn a_skipped_node_comes_after_all_others() {
        let nodes = [node("a", NodeProgress::Skipped), node("b", NodeProgress::Waiting)];
        assert_eq!(admit(&nodes, &rules(2), NOW).start, ["b"]);
        let nodes = [node("a", NodeProgress::Skipped), node("b", NodeProgress::Working)];
        assert!(admit(&nodes, &rules(2), NOW).start.is_empty());
        let nodes = [
            node("a", NodeProgress::Skipped),
            node("b", NodeProgress::Done(NOW)),
        ];
        assert_eq!(admit(&nodes, &rules(2), NOW).start, ["a"]);
    }

    #[test]
    fn a_released_node_takes_no_slot_and_is_tried_again() {
        let mut nodes = [
            node("a", NodeProgress::Skipped),
            node("b", NodeProgress::Skipped),
            node("c", NodeProgress::Waiting),
        ];
        nodes[0].is_backing_off = true;
        nodes[2].is_backing_off = true;
        assert_eq!(admit(&nodes, &rules(1), NOW).start, ["b"]);
        nodes[1].is_backing_off = true;
        let admission = admit(&nodes, &rules(1), NOW);
        assert_eq!((admission.start, admission.held), (Vec::new(), None));
        (nodes[0].is_backing_off, nodes[1].is_backing_off) = (false, false);
        assert_eq!(admit(&nodes, &rules(1), NOW).start, ["a"]);
        (nodes[0].tries, nodes[1].tries) = (2, 1);
        assert_eq!(admit(&nodes, &rules(1), NOW).start, ["b"]);
    }

    #[test]
    fn a_kept_node_does_not_start_and_is_named() {
        let nodes = [
            node("a", NodeProgress::KeptOnOld),
            node("b", NodeProgress::Done(NOW)),
        ];
        let admission = admit(&nodes, &rules(1), NOW);
        assert!(admission.start.is_empty());
        let message = admission.held.unwrap().message;
        assert_eq!(message, "kept on the old network by rollbackNodes: a");
    }

    fn standing() -> impl Strategy<Value = NodeProgress> {
        prop_oneof![
            Just(NodeProgress::Waiting),
            Just(NodeProgress::Skipped),
            Just(NodeProgress::Working),
            Just(NodeProgress::Returning),
            Just(NodeProgress::KeptOnOld),
            Just(NodeProgress::Done(NOW)),
        ]
    }

    proptest! {
        /// R9: in any state, nodes that start now never exceed the limit.
        #[test]
        fn started_nodes_never_exceed_the_limit(
            nodes in proptest::collection::vec((standing(), any::<bool>(), any::<bool>()), 1..12),
            limit in 1u32..6,
        ) {
            let names: Vec<String> = (0..nodes.len()).map(|index| format!("n{index}")).collect();
            let nodes: Vec<RolloutNode<'_>> = nodes.iter().zip(&names)
                .map(|((standing, ready, rests), name)| RolloutNode {
                    name, standing: *standing, ready: *ready, on_old: true, is_backing_off: *rests, tries: 0,
                })
                .collect();
            let before = nodes.iter().filter(|node| is_unavailable(node)).count();
            let admission = admit(&nodes, &rules(limit), NOW);
            prop_assert!(admission.start.is_empty() || before + admission.start.len() <= limit as usize);
            for name in &admission.start {
                let node = nodes.iter().find(|node| &node.name == name).unwrap();
                prop_assert!(node.ready && !node.is_backing_off);
            }
        }
    }
}
