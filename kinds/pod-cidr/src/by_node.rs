//! Pods leave the old range node by node: a Node is cordoned, its pods are evicted, its host is looked at, and it takes pods again.
//! For clusters whose nodes are rolled anyway. Each pod is evicted once: wherever its successor comes to be, it has an address of
//! the new range.

use std::collections::BTreeSet;

use jiff::Timestamp;

use engine::decision::{Wait, WaitReason};
use engine::evict;
use engine::moves;
use engine::words;

/// Whose cordon a Node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cordon {
    /// It takes pods.
    None,
    /// This migration's.
    Ours,
    /// None, and this migration's marks: a person has lifted ours.
    Lifted,
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
    /// Whether pods come to it: it is Ready, and neither cordoned nor tainted.
    pub takes_pods: bool,
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
/// same time; `nodes` are in the order in which they are worked on ([`engine::order`]).
pub fn next(
    view: &moves::View<'_>,
    nodes: &[Node<'_>],
    policy: &moves::Policy,
    at_once: usize,
    now: Timestamp,
) -> Option<Next> {
    let left = moves::left(view.residents, view.movers);
    let (mut with_pods, mut with_others) = (BTreeSet::new(), BTreeSet::new());
    let mut to_go = None;
    for (wave, residents) in &left {
        for resident in residents {
            let node = resident.pod.node.as_str();
            // No pod is kept from a node by a Job that runs there for hours, or by a pod that cannot be evicted.
            if moves::holds_up_none(*wave, resident, view, policy, now) {
                with_others.insert(node);
            } else {
                with_pods.insert(node);
                to_go = to_go.or(Some(resident));
            }
        }
    }
    let in_work = || nodes.iter().filter(|node| node.cordon == Cordon::Ours);
    if let Some(lifted) = nodes.iter().find(|node| node.cordon == Cordon::Lifted) {
        return Some(Next::Uncordon(lifted.name.to_owned()));
    }
    let lacking = moves::on_their_way(view, now);
    // A successor that goes nowhere but here: the node is cordoned again once it runs.
    if lacking.as_ref().is_some_and(|lacking| lacking.finds_no_node)
        && let Some(node) = in_work().next()
    {
        return Some(Next::Uncordon(node.name.to_owned()));
    }
    // One that is done takes pods again before another one stops: the successors need room.
    let mut unsettled = None;
    for node in in_work().filter(|node| !with_pods.contains(node.name)) {
        match &node.unsettled {
            Some(_) if with_others.contains(node.name) => return Some(Next::Uncordon(node.name.to_owned())),
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
            Some(first) if first.cordon == Cordon::None => {
                let takes_pods = |node: &Node<'_>| node.takes_pods && node.name != first.name;
                if nodes.iter().any(takes_pods) {
                    return Some(Next::Cordon(first.name.to_owned()));
                }
                if here.is_empty() {
                    return Some(wait(
                        WaitReason::NodeNotReady,
                        format!(
                            "no node but {} takes pods: those that leave it would go nowhere. Uncordon or add another, or go on with mode \
                             ByWorkload",
                            first.name
                        ),
                    ));
                }
            }
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
        let message = found.wait.message + &meanwhile(in_work().map(|node| node.name));
        return Some(Next::Pods(evict::Next::Wait(Wait {
            message,
            ..found.wait
        })));
    }
    if let Some(message) = unsettled {
        return Some(wait(WaitReason::AgentWorking, message));
    }
    // On a node that is away, or of which nobody knows.
    let Some(first) = to_go else {
        // What a person does about those that are not evicted.
        return moves::next(view, policy, now).map(Next::Pods);
    };
    Some(wait(
        WaitReason::NodeNotReady,
        format!(
            "{} pods have to move still, on nodes that are not Ready or have no agent; the first is {} on node {}",
            left.values().map(Vec::len).sum::<usize>(),
            first.pod.key(),
            first.pod.node
        ),
    ))
}

/// Which Nodes stay cordoned while something is waited for, in words that go on its sentence; none where none does.
pub fn meanwhile<'nodes>(cordoned: impl Iterator<Item = &'nodes str>) -> String {
    let names: Vec<&str> = cordoned.collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("; cordoned meanwhile: {}", words::names(&names))
    }
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
