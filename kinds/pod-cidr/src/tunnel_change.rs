//! Change of tunnel addresses, node by node.
//!
//! When a pool is closed, every calico-node chooses another tunnel address at the same moment, Felix restarts on all nodes, and
//! for about one second no node reaches another (docs/limits.md). Therefore Nodes are removed from the source pool one after
//! the other, each after its agent keeps the old address ([`super::host::changes`]), with the new address of its tunnel
//! ([`super::tunnel_address`]). The pool is closed once no tunnel address is in it. If no address is free, Calico chooses: then
//! the node selector of the pool has to exclude the Node, and a calico-node that does not react is restarted.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::calico_node::TunnelAddresses;
use super::decide::{PoolRole, RemovedNode, Step, Unmet};
use super::host::{ChangedTunnelAddress, HostFacts, LOOPBACK};
use super::pools::{self, Openness};
use super::tunnel::TunnelAllocation;
use engine::decision::{Wait, WaitReason};
use engine::evict::PodName;

/// The list `tunnelAddresses` for the agent of a node: the addresses that it keeps, and the addresses that replace them.
///
/// `before` is the previous list: a former address is on no Node any more. An address of the target range is kept while
/// `comes_back` returns `true` for it, until the tunnel has it again ([`super::former_address`]).
pub fn tunnel_ends(
    before: &[ChangedTunnelAddress],
    now: &TunnelAddresses,
    source: &IpNet,
    comes_back: impl Fn(&ChangedTunnelAddress) -> bool,
) -> Vec<ChangedTunnelAddress> {
    let is_in_source = |end: &&ChangedTunnelAddress| source.contains(&IpAddr::V4(end.old));
    let is_current = |end: &&ChangedTunnelAddress| now.get(end.name.as_str()) == Some(&IpAddr::V4(end.old));
    // If Calico has chosen another address of the target range for the tunnel, the old one does not come back, and a pod may
    // get it.
    let may_return =
        |end: &&ChangedTunnelAddress| now.get(end.name.as_str()).is_none_or(|now| source.contains(now));
    let returning: Vec<ChangedTunnelAddress> = before
        .iter()
        .filter(|end| !is_in_source(end) && !is_current(end) && may_return(end) && comes_back(end))
        .map(|end| ChangedTunnelAddress {
            new: None,
            ..end.clone()
        })
        .collect();
    let mut ends: BTreeMap<&str, ChangedTunnelAddress> = before
        .iter()
        .filter(is_in_source)
        .map(|end| {
            let address = None;
            (
                end.name.as_str(),
                ChangedTunnelAddress {
                    new: address,
                    ..end.clone()
                },
            )
        })
        .collect();
    for (name, address) in now {
        let IpAddr::V4(chosen) = *address else {
            continue;
        };
        if source.contains(address) {
            let end = ChangedTunnelAddress {
                name: name.clone(),
                old: chosen,
                new: Some(chosen),
            };
            ends.insert(name, end);
        } else if let Some(end) = ends.get_mut(name.as_str()) {
            end.new = Some(chosen);
        }
    }
    ends.into_values().chain(returning).collect()
}

/// Whether the list `told` of an agent contains every tunnel address of its node in the source range, and the address that
/// replaces it.
pub fn covers_tunnel_addresses(told: &[ChangedTunnelAddress], now: &TunnelAddresses, source: &IpNet) -> bool {
    now.iter().all(|(name, address)| {
        let IpAddr::V4(address) = *address else {
            return true;
        };
        let mut of_tunnel = told
            .iter()
            .filter(|end| end.name == **name && source.contains(&IpAddr::V4(end.old)));
        if source.contains(&IpAddr::V4(address)) {
            of_tunnel.any(|end| end.old == address)
        } else {
            of_tunnel.all(|end| end.new == Some(address))
        }
    })
}

/// Whether an agent keeps the old tunnel addresses of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// The agent keeps all of them, or there is none. Calico has removed them from its links, or does not have to yet.
    Done,
    /// The agent does not keep all of them yet, or has not reported.
    NotYet(String),
    /// Calico has chosen other addresses, and the old ones are still on its links.
    Changing(String),
}

/// Whether an agent keeps the tunnel addresses in the source range, by its report. `facts` is `None` if the agent has not
/// answered to its newest list.
pub fn keeping(ends: &[ChangedTunnelAddress], source: &IpNet, facts: Option<&HostFacts>) -> Keeping {
    let mut ends = ends
        .iter()
        .filter(|end| source.contains(&IpAddr::V4(end.old)))
        .peekable();
    if ends.peek().is_none() {
        return Keeping::Done;
    }
    let Some(facts) = facts else {
        return Keeping::NotYet("its agent has not answered".to_owned());
    };
    for end in ends {
        let on = |link: &dyn Fn(&str) -> bool| {
            let mut addresses = facts.source.addresses.items.iter();
            addresses.any(|found| found.address.addr() == IpAddr::V4(end.old) && link(&found.link))
        };
        if !on(&|link| link == LOOPBACK) {
            return Keeping::NotYet(format!("its agent does not keep {} yet", end.old));
        }
        if end.new != Some(end.old) && on(&|link| link != LOOPBACK) {
            return Keeping::Changing(format!("calico-node still has {} on the tunnel link", end.old));
        }
    }
    Keeping::Done
}

/// Addresses in this range that an agent keeps, by its report.
pub fn kept(facts: &HostFacts, range: &IpNet) -> Vec<IpNet> {
    let (old, new) = (&facts.source.addresses, &facts.target.addresses);
    old.items
        .iter()
        .chain(&new.items)
        .filter(|found| found.link == LOOPBACK && range.contains(&found.address))
        .map(|found| found.address)
        .collect()
}

/// The tunnel addresses of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about one node"
)]
pub struct NodeTunnels<'facts> {
    /// Name of the Node.
    pub name: &'facts str,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it was removed from the source pool.
    pub removed: bool,
    /// Whether one of its tunnel addresses is in the source range.
    pub in_source: bool,
    /// Whether its calico-node is Ready.
    pub calico_ready: bool,
    /// The pod of calico-node, if it has not chosen another address in time after the node was removed.
    pub overdue: Option<PodName>,
    /// Whether its agent keeps the old address.
    pub keeping: Keeping,
    /// Whether `WireGuard` has an address in the source range. Only Calico changes that one.
    pub wireguard_in_source: bool,
}

impl NodeTunnels<'_> {
    /// Why the next node has to wait for this one, which was removed from the pool; `None` when this one is done.
    fn wait_until_changed(&self) -> Option<Wait> {
        if !self.removed || !self.ready {
            return None;
        }
        let node = self.name;
        let wait = |reason, message| {
            Some(Wait {
                reason,
                message,
                until: None,
            })
        };
        if self.in_source {
            return Some(self.wait_for_calico_node());
        }
        match &self.keeping {
            // Felix restarts once it has seen the new address. Until then, and until the agent has reported, its readiness is
            // outdated.
            Keeping::Changing(words) => wait(WaitReason::CalicoNodeNotReady, format!("node {node}: {words}")),
            Keeping::NotYet(words) => wait(WaitReason::AgentWorking, format!("node {node}: {words}")),
            Keeping::Done if !self.calico_ready => {
                let message = format!(
                    "calico-node on node {node} is not Ready again after the change of its tunnel address"
                );
                wait(WaitReason::CalicoNodeNotReady, message)
            }
            Keeping::Done => None,
        }
    }

    /// Why the node cannot be removed from the pool yet: its agent does not keep its tunnel address.
    fn wait_until_kept(&self) -> Option<Wait> {
        let is_remaining = self.ready && self.in_source && !self.removed;
        match &self.keeping {
            Keeping::NotYet(words) | Keeping::Changing(words) if is_remaining => Some(Wait {
                reason: WaitReason::AgentWorking,
                message: format!(
                    "node {}: {words}; without that, connections of the host break when its tunnel address changes",
                    self.name
                ),
                until: None,
            }),
            Keeping::NotYet(_) | Keeping::Changing(_) | Keeping::Done => None,
        }
    }

    /// Why other nodes wait for this one; `None` if it is done, is not Ready, or waits for its turn. Once the source pool
    /// `is_closed`, the only such reason is a tunnel address that has not changed.
    pub fn wait_of_node(&self, is_closed: bool) -> Option<Wait> {
        if !is_closed {
            return self.wait_until_changed().or_else(|| self.wait_until_kept());
        }
        (self.ready && self.in_source).then(|| self.wait_for_calico_node())
    }

    fn wait_for_calico_node(&self) -> Wait {
        Wait {
            reason: WaitReason::CalicoNodeNotReady,
            message: format!(
                "calico-node on node {} has not changed its tunnel address yet",
                self.name
            ),
            until: None,
        }
    }
}

/// Next step or wait until no tunnel address is in the source range; `None` once none is. Nodes that are not Ready do not count.
///
/// `spec` is the source pool, `base` is its node selector when it is open to all pods, `at_once` is the maximum number of nodes
/// in progress, and `gets` returns the new tunnel addresses of a node in the target range, by the last part of the annotation's
/// key ([`super::tunnel_address`]).
pub fn missing(
    nodes: &[NodeTunnels<'_>],
    which: PoolRole,
    spec: &Value,
    base: &str,
    at_once: usize,
    gets: impl Fn(&str) -> BTreeMap<String, TunnelAllocation>,
) -> Option<Unmet> {
    // A node that is not Ready changes its address when it returns: the pool is closed by then.
    let is_remaining = |node: &&NodeTunnels<'_>| node.ready && node.in_source && !node.removed;
    let remaining: Vec<&NodeTunnels<'_>> = nodes.iter().filter(is_remaining).collect();
    let in_progress: Vec<Wait> = nodes.iter().filter_map(NodeTunnels::wait_until_changed).collect();
    if remaining.is_empty() && in_progress.is_empty() {
        return None;
    }
    if let Some(round) = round(nodes) {
        let is_narrowed = Openness::of(spec) == Openness::Narrowed;
        if !is_narrowed || pools::patch_narrowed(spec, base, which.mark(), round).is_some() {
            return Some(Unmet::Step(Step::Narrow(which, round)));
        }
    }
    let is_overdue = |node: &NodeTunnels<'_>| {
        node.overdue
            .clone()
            .filter(|_| node.ready && node.removed && node.in_source)
    };
    if let Some(pod) = nodes.iter().find_map(is_overdue) {
        return Some(Unmet::Step(Step::RestartCalicoNode(pod)));
    }
    let free_slots = at_once.max(1).saturating_sub(in_progress.len());
    let prepared = remaining.iter().filter(|node| node.keeping == Keeping::Done);
    let next: Vec<RemovedNode> = prepared
        .take(free_slots)
        .map(|node| RemovedNode {
            node: node.name.to_owned(),
            ends: gets(node.name),
        })
        .collect();
    if !next.is_empty() {
        return Some(Unmet::Step(Step::RemoveNodes(which, next)));
    }
    let mut waits = in_progress
        .into_iter()
        .chain(remaining.into_iter().filter_map(NodeTunnels::wait_until_kept));
    waits.next().map(Unmet::Answer)
}

/// A number that identifies the set of removed Nodes for which Calico has to choose an address; `None` if there is no such
/// Node. Another set has another number. The pool is written only if the number changes, because each write wakes every
/// calico-node of the cluster.
fn round(nodes: &[NodeTunnels<'_>]) -> Option<u32> {
    let mut names: Vec<&str> = nodes
        .iter()
        .filter(|node| node.removed && (node.in_source || node.wireguard_in_source))
        .map(|node| node.name)
        .collect();
    names.sort_unstable();
    let digest = Sha256::digest(names.join(" ").as_bytes());
    (!names.is_empty()).then(|| u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]))
}
#[cfg(test)]
mod tests;
