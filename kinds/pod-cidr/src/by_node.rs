//! Mode `ByNode`: each Node is cordoned, its pods are evicted, its host is checked, and the Node is uncordoned. This mode is
//! for clusters whose nodes are drained one by one anyway. Each pod is evicted once: wherever its replacement starts, it gets
//! an address of the new range.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use engine::decision::{Wait, WaitReason};
use engine::evict;
use engine::moves::{self, Resident, Wave};
use engine::words;

/// The cordon of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cordon {
    /// The Node has no cordon.
    None,
    /// The cordon of this migration.
    Ours,
    /// The Node has the marks of this migration and no cordon: the user has uncordoned it.
    RemovedByUser,
    /// A cordon that this migration has not set. The cordon stays, and the pods of the Node move nevertheless.
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
    /// Whether it accepts pods: it is Ready, and neither cordoned nor tainted.
    pub takes_pods: bool,
    /// Remaining routes to pods of the old range, as reported by its agent; `None` once there is none.
    pub remaining_routes: Option<String>,
}

/// The next step in mode `ByNode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Cordon this Node.
    Cordon(String),
    /// Uncordon this Node.
    Uncordon(String),
    /// Evict these pods, or wait.
    Pods(evict::Next),
}

/// The next step; `None` once no pod has to move and no Node has a cordon of this migration. `at_once` is the maximum number of
/// Nodes that are drained at the same time; `nodes` are in rollout order ([`engine::order`]).
pub fn next(
    view: &moves::View<'_>,
    nodes: &[Node<'_>],
    policy: &moves::Policy,
    at_once: usize,
    now: Timestamp,
) -> Option<Next> {
    let remaining = moves::remaining_pods(view.residents, view.movers);
    let Occupied {
        with_pods,
        with_unmovable,
        first_pod,
    } = occupied(&remaining, view, policy, now);
    let cordoned = || nodes.iter().filter(|node| node.cordon == Cordon::Ours);
    if let Some(lifted) = nodes.iter().find(|node| node.cordon == Cordon::RemovedByUser) {
        return Some(Next::Uncordon(lifted.name.to_owned()));
    }
    let lacking = moves::moved_not_ready(view, now);
    // The replacement of a pod can only run on this node: the node is cordoned again once the pod runs.
    if lacking.as_ref().is_some_and(|lacking| lacking.finds_no_node)
        && let Some(node) = cordoned().next()
    {
        return Some(Next::Uncordon(node.name.to_owned()));
    }
    // A finished node accepts pods again before the next one is cordoned: replacement pods need capacity.
    let mut unsettled = None;
    for node in cordoned().filter(|node| !with_pods.contains(node.name)) {
        match &node.remaining_routes {
            Some(_) if with_unmovable.contains(node.name) => {
                return Some(Next::Uncordon(node.name.to_owned()));
            }
            None => return Some(Next::Uncordon(node.name.to_owned())),
            Some(words) => unsettled = unsettled.or(Some(format!("node {}: {words}", node.name))),
        }
    }
    let mut draining: BTreeSet<&str> = cordoned()
        .map(|node| node.name)
        .filter(|name| with_pods.contains(name))
        .collect();
    if draining.len() < at_once.max(1) && lacking.is_none() && unsettled.is_none() {
        let is_open =
            |node: &&Node<'_>| node.ready && node.cordon != Cordon::Ours && with_pods.contains(node.name);
        match nodes.iter().find(is_open) {
            Some(first) if first.cordon == Cordon::None => {
                let takes_pods = |node: &Node<'_>| node.takes_pods && node.name != first.name;
                if nodes.iter().any(takes_pods) {
                    return Some(Next::Cordon(first.name.to_owned()));
                }
                if draining.is_empty() {
                    return Some(wait(
                        WaitReason::NodeNotReady,
                        format!(
                            "node {} is the only one that accepts pods, so its pods have nowhere to move. Uncordon or add \
                             another node, or use mode ByWorkload",
                            first.name
                        ),
                    ));
                }
            }
            // This Node needs no cordon.
            Some(first) => {
                draining.insert(first.name);
            }
            None => {}
        }
    }
    if !draining.is_empty() {
        let of_these = moves::View {
            only: Some(&draining),
            ..view.clone()
        };
        if let Some(next) = moves::next(&of_these, policy, now) {
            return Some(Next::Pods(next));
        }
    }
    if let Some(found) = lacking {
        let message = found.wait.message + &cordoned_suffix(cordoned().map(|node| node.name));
        return Some(Next::Pods(evict::Next::Wait(Wait {
            message,
            ..found.wait
        })));
    }
    if let Some(message) = unsettled {
        return Some(wait(WaitReason::AgentWorking, message));
    }
    // The pod is on a node that is not Ready, or that has no agent.
    let Some(first) = first_pod else {
        // The wait names the pods that are not evicted, and the fix.
        return moves::next(view, policy, now).map(Next::Pods);
    };
    Some(wait_for_node(first, remaining.values().map(Vec::len).sum()))
}

fn wait_for_node(first: &Resident<'_>, count: usize) -> Next {
    wait(
        WaitReason::NodeNotReady,
        format!(
            "pods that still have to move, on nodes that are not Ready or have no agent: {count}. The first: {} on node {}",
            first.pod.key(),
            first.pod.node
        ),
    )
}

/// The Nodes with pods that still have to move.
struct Occupied<'facts> {
    /// Nodes with pods that other pods wait for.
    with_pods: BTreeSet<&'facts str>,
    /// Nodes with pods that delay no other pod.
    with_unmovable: BTreeSet<&'facts str>,
    /// The first pod that other pods wait for.
    first_pod: Option<&'facts Resident<'facts>>,
}

/// The Nodes with these pods.
fn occupied<'facts>(
    remaining: &BTreeMap<Wave, Vec<&'facts Resident<'facts>>>,
    view: &moves::View<'_>,
    policy: &moves::Policy,
    now: Timestamp,
) -> Occupied<'facts> {
    let mut occupied = Occupied {
        with_pods: BTreeSet::new(),
        with_unmovable: BTreeSet::new(),
        first_pod: None,
    };
    for (wave, residents) in remaining {
        for resident in residents {
            let node = resident.pod.node.as_str();
            // A Job that runs for hours, or a pod that cannot be evicted, does not keep a node cordoned.
            if moves::delays_no_other_pod(*wave, resident, view, policy, now) {
                occupied.with_unmovable.insert(node);
            } else {
                occupied.with_pods.insert(node);
                occupied.first_pod = occupied.first_pod.or(Some(resident));
            }
        }
    }
    occupied
}

/// The Nodes that stay cordoned during a wait, as the end of its message; empty if there is none.
pub fn cordoned_suffix<'nodes>(cordoned: impl Iterator<Item = &'nodes str>) -> String {
    let names: Vec<&str> = cordoned.collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("; cordoned: {}", words::names(&names))
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
mod tests;
