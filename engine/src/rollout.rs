//! Which nodes may be migrated at the same time: a decision about all nodes, not about one.

mod turn;
mod unavailable;

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

pub use turn::{Back, RollbackAdmission, admit_rollback, is_rolled_back, next_rollbacks};

use crate::decision::{Wait, WaitReason};
use crate::words::names;
use unavailable::{is_unavailable, turn_message};

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
    ///
    /// # Errors
    ///
    /// The text is neither a number from 1 nor a percentage from `1%` to `100%`.
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
///
/// # Examples
///
/// ```
/// use engine::decision::WaitReason;
/// use engine::rollout::{MaxUnavailable, NodeProgress, RolloutNode, Rules, admit};
/// use jiff::{SignedDuration, Timestamp};
///
/// let node = |name, standing| RolloutNode {
///     name,
///     standing,
///     ready: true,
///     on_old: true,
///     is_backing_off: false,
///     tries: 0,
/// };
/// let nodes = [
///     node("a", NodeProgress::Working),
///     node("b", NodeProgress::Waiting),
///     node("c", NodeProgress::Waiting),
/// ];
/// let rules = Rules {
///     max_unavailable: MaxUnavailable::Nodes(2),
///     canary_nodes: 0,
///     canary_soak: SignedDuration::ZERO,
///     interval: SignedDuration::ZERO,
///     paused: false,
///     hold: None,
///     clean_since: None,
/// };
/// let admission = admit(&nodes, &rules, Timestamp::UNIX_EPOCH);
/// assert_eq!(admission.start, ["b"]);
/// assert_eq!(admission.held.unwrap().reason, WaitReason::WaitingForTurn);
/// ```
pub fn admit<'node>(nodes: &[RolloutNode<'node>], rules: &Rules, now: Timestamp) -> Admission<'node> {
    let mut admission = Admission::default();
    let queue = queue(nodes);
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
                WaitReason::WaitingForTurn,
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

/// The nodes that may start, in order. Skipped nodes come after all others, even after nodes that are still in progress.
fn queue<'nodes, 'node>(nodes: &'nodes [RolloutNode<'node>]) -> Vec<&'nodes RolloutNode<'node>> {
    let in_turn = |standing| {
        let mut queue = waiting(nodes, standing);
        queue.retain(|node| !node.is_backing_off);
        queue.sort_by_key(|node| node.tries);
        queue
    };
    let mut queue = in_turn(NodeProgress::Waiting);
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
    queue
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

#[cfg(test)]
mod tests;
