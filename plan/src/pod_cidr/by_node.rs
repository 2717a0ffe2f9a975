//! Pods leave the old range node by node: a Node is cordoned, its pods are evicted, its host is looked at, and it takes pods again.
//! For clusters whose nodes are rolled anyway. Each pod is evicted once: wherever its successor comes to be, it has an address of
//! the new range.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::moves;
use crate::decision::{Wait, WaitReason};
use crate::evict;

/// Whose cordon a Node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cordon {
    /// It takes pods.
    None,
    /// This migration's.
    Ours,
    /// Somebody else's: it stays, and its pods are moved all the same.
    Others,
}

/// One Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node<'facts> {
    /// Its name.
    pub name: &'facts str,
    /// Whether it is Ready.
    pub ready: bool,
    /// Its cordon.
    pub cordon: Cordon,
    /// Why its host is not well yet, by its agent; `None` when no route to a pod of the old range is left there.
    pub unsettled: Option<String>,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Cordon this Node.
    Cordon(String),
    /// Take our cordon from this Node.
    Uncordon(String),
    /// Evict these pods, or wait.
    Pods(evict::Next),
}

/// What comes next; `None` once no pod has to move and no cordon of ours is left. `at_once` is how many Nodes may be in work at the
/// same time; `nodes` are in the order in which they are worked on ([`crate::order`]).
pub fn next(
    view: &moves::View<'_>,
    nodes: &[Node<'_>],
    policy: &moves::Policy,
    at_once: usize,
    now: Timestamp,
) -> Option<Next> {
    let left = moves::left(view.residents, view.targets);
    let with_pods: BTreeSet<&str> = left
        .values()
        .flatten()
        .map(|resident| resident.pod.node.as_str())
        .collect();
    let in_work = || nodes.iter().filter(|node| node.cordon == Cordon::Ours);
    let lacking = moves::lacking(view);
    // One that is done takes pods again before another one stops: the successors need room.
    let mut unsettled = None;
    for node in in_work().filter(|node| !with_pods.contains(node.name)) {
        match &node.unsettled {
            None => return Some(Next::Uncordon(node.name.to_owned())),
            Some(words) => unsettled = unsettled.or(Some(format!("node {}: {words}", node.name))),
        }
    }
    let mut here: BTreeSet<&str> = in_work()
        .map(|node| node.name)
        .filter(|name| with_pods.contains(name))
        .collect();
    if here.len() < at_once.max(1) && lacking.is_none() && unsettled.is_none() {
        let is_open =
            |node: &&Node<'_>| node.ready && node.cordon != Cordon::Ours && with_pods.contains(node.name);
        match nodes.iter().find(is_open) {
            Some(first) if first.cordon == Cordon::None => return Some(Next::Cordon(first.name.to_owned())),
            // There is nothing to cordon.
            Some(first) => {
                here.insert(first.name);
            }
            None => {}
        }
    }
    if !here.is_empty() {
        let of_these = moves::View {
            only: Some(&here),
            ..view.clone()
        };
        if let Some(next) = moves::next(&of_these, policy, now) {
            return Some(Next::Pods(next));
        }
    }
    if let Some(found) = lacking {
        return Some(Next::Pods(evict::Next::Wait(found)));
    }
    if let Some(message) = unsettled {
        return Some(wait(WaitReason::AgentWorking, message));
    }
    // On a node that is away, or on none yet.
    let first = left.values().flatten().next()?;
    Some(wait(
        WaitReason::NodeNotReady,
        format!(
            "{} pods have to move still, on nodes that are not Ready; the first is {} on node {}",
            left.values().map(Vec::len).sum::<usize>(),
            first.pod.key(),
            first.pod.node
        ),
    ))
}

fn wait(reason: WaitReason, message: String) -> Next {
    Next::Pods(evict::Next::Wait(Wait {
        reason,
        message,
        until: None,
    }))
}

#[cfg(test)]
#[path = "by_node_tests.rs"]
mod tests;
