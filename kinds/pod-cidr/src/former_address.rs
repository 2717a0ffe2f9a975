//! Return of former tunnel addresses: if the user reverses the direction, each node gets the same addresses that its tunnels
//! had, so that connections of the host that began at them continue.
//!
//! From the change of a tunnel address on, the agent keeps the old one on the loopback link ([`super::host::changes`]). Once
//! pods have moved it is released, and its pool is closed. Before that pool is opened again, the address is allocated to the
//! node in Calico's IPAM again, so that no pod can get it. Then the Node gets it, in the write that removes the Node from the
//! other pool. A calico-node that finds such an address keeps it (v3.31.7, `allocateip`, "Current address is still valid"), and
//! Felix puts it on the link. The replaced address is then unused, and is released as Calico would have done.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::calico_node::CalicoNode;
use super::host::ChangedTunnelAddress;
use super::ipam::{Ipam, attribute};
use super::tunnel::{TUNNELS, TunnelAllocation};

/// State of a former tunnel address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormerAddress {
    /// Calico's IPAM has it allocated to the tunnel of the node, so the tunnel can get it back.
    Held(TunnelAllocation),
    /// The address is free.
    Free(TunnelAllocation),
    /// The tunnel cannot get it back, for this reason.
    Lost(String),
}

/// The state of the former address of this tunnel of this node.
pub fn standing(end: &ChangedTunnelAddress, node: &str, ipam: &Ipam) -> FormerAddress {
    let address = IpAddr::V4(end.old);
    let Some(tunnel) = TUNNELS.iter().find(|tunnel| tunnel.annotation == end.name) else {
        return FormerAddress::Lost(format!("{address} belonged to an unknown tunnel ({})", end.name));
    };
    let Some(block) = ipam.block_with(&address) else {
        return FormerAddress::Lost(format!("the IPAM block of {address} is deleted"));
    };
    if !block.is_of(node) {
        let owner = block.affinity.as_deref().unwrap_or("none");
        return FormerAddress::Lost(format!("block {} of {address} has affinity {owner}", block.range));
    }
    match block.allocation(&address) {
        None => FormerAddress::Free(tunnel.end(node, block, address)),
        Some(found) if tunnel.is_of(node, found) => {
            FormerAddress::Held(TunnelAllocation::of(node, block, found))
        }
        Some(found) => {
            let handle = found.handle.as_deref().unwrap_or("none");
            FormerAddress::Lost(format!("{address} has another holder (handle {handle})"))
        }
    }
}

/// One node with the list `tunnelAddresses` of its agent.
#[derive(Clone, Copy, Debug)]
pub struct NodeTunnelEnds<'facts> {
    /// Name of the Node.
    pub node: &'facts str,
    /// Its tunnel addresses: those of the source range, and those of the target range that return.
    pub ends: &'facts [ChangedTunnelAddress],
}

/// Free addresses of the target range that have to be allocated to nodes before its pool is opened.
pub fn to_hold(nodes: &[NodeTunnelEnds<'_>], ipam: &Ipam, target: &IpNet) -> Vec<TunnelAllocation> {
    in_range(nodes, target)
        .filter_map(|(node, end)| match standing(end, node, ipam) {
            FormerAddress::Free(held) => Some(held),
            FormerAddress::Held(_) | FormerAddress::Lost(_) => None,
        })
        .collect()
}

/// The former addresses that the tunnels of this node get back, by the last part of the annotation's key.
pub fn of_node(told: NodeTunnelEnds<'_>, ipam: &Ipam, target: &IpNet) -> BTreeMap<String, TunnelAllocation> {
    in_range(&[told], target)
        .filter_map(|(node, end)| match standing(end, node, ipam) {
            FormerAddress::Held(held) => Some((end.name.clone(), held)),
            FormerAddress::Free(_) | FormerAddress::Lost(_) => None,
        })
        .collect()
}

/// Addresses of both ranges that are still allocated to tunnels which have other addresses of the target range now. Calico
/// releases an address only if it changes the address itself. It does not know the addresses that replumb has set, nor those
/// that were allocated for a node that was not Ready at its turn.
///
/// `nodes` are the existing nodes. The lists of the agents are no record of these addresses: an object may have been created
/// again, and the user may have reversed the direction twice.
pub fn to_release(
    nodes: &BTreeMap<&str, &CalicoNode>,
    ipam: &Ipam,
    source: &IpNet,
    target: &IpNet,
) -> Vec<TunnelAllocation> {
    let blocks = ipam.blocks().iter();
    let in_either = blocks.filter(|block| source.contains(&block.range) || target.contains(&block.range));
    let allocations = in_either.flat_map(|block| block.allocations.iter().map(move |found| (block, found)));
    allocations
        .filter_map(|(block, found)| {
            let node = found.attribute(attribute::NODE)?;
            let kind = found.attribute(attribute::TYPE)?;
            let tunnel = TUNNELS.iter().find(|tunnel| tunnel.attribute == kind)?;
            let now = nodes.get(node)?.ends.get(tunnel.annotation)?;
            let other = ipam.block_with(now)?.allocation(now)?;
            let has_other = target.contains(now) && found.address != *now && tunnel.is_of(node, other);
            has_other.then(|| TunnelAllocation::of(node, block, found))
        })
        .collect()
}

fn in_range<'facts>(
    nodes: &[NodeTunnelEnds<'facts>],
    range: &IpNet,
) -> impl Iterator<Item = (&'facts str, &'facts ChangedTunnelAddress)> {
    nodes
        .iter()
        .flat_map(|told| told.ends.iter().map(|end| (told.node, end)))
        .filter(|(_, end)| range.contains(&IpAddr::V4(end.old)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::ipam::{Allocation, Block};

    const OLD: &str = "10.244.1.5";
    const NEW: &str = "10.200.1.7";

    fn end(kept: &str, address: Option<&str>) -> ChangedTunnelAddress {
        ChangedTunnelAddress {
            name: "IPv4VXLANTunnelAddr".to_owned(),
            old: kept.parse().unwrap(),
            new: address.map(|address| address.parse().unwrap()),
        }
    }

    fn allocation(address: &str, attributes: &[(&str, &str)]) -> Allocation {
        Allocation {
            address: address.parse().unwrap(),
            handle: Some("a-handle".to_owned()),
            attributes: attributes
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    fn block(range: &str, affinity: &str, allocations: &[Allocation]) -> Block {
        Block {
            range: range.parse().unwrap(),
            affinity: Some(affinity.to_owned()),
            allocations: allocations.to_vec(),
        }
    }

    fn ipam(blocks: &[Block]) -> Ipam {
        Ipam::new(blocks.to_vec(), Vec::new(), Vec::new())
    }

    const TUNNEL: [(&str, &str); 2] = [("node", "a"), ("type", "vxlanTunnelAddress")];

    #[rstest]
    #[case::of_the_tunnel(&[allocation(OLD, &TUNNEL)], "held")]
    #[case::of_another_node(&[allocation(OLD, &[("node", "b"), TUNNEL[1]])], "another holder")]
    #[case::of_a_pod(&[allocation(OLD, &[("node", "a"), ("pod", "web-1")])], "another holder")]
    #[case::unallocated(&[allocation("10.244.1.6", &TUNNEL)], "free")]
    fn a_former_address_is_held_free_or_lost(#[case] allocations: &[Allocation], #[case] words: &str) {
        let ipam = ipam(&[block("10.244.1.0/26", "host:a", allocations)]);
        let found = match standing(&end(OLD, Some(NEW)), "a", &ipam) {
            FormerAddress::Held(_) => "held".to_owned(),
            FormerAddress::Free(held) => {
                assert_eq!(held.allocation.handle, "vxlan-tunnel-addr-a");
                let attributes = held.allocation.attributes.into_iter().collect();
                assert_eq!(allocation(OLD, &TUNNEL).attributes, attributes);
                "free".to_owned()
            }
            FormerAddress::Lost(words) => words,
        };
        assert!(found.contains(words), "{found}");
    }

    #[test]
    fn an_address_without_its_block_is_lost() {
        let lost = |blocks: &[Block]| match standing(&end(OLD, None), "a", &ipam(blocks)) {
            FormerAddress::Lost(words) => words,
            FormerAddress::Held(_) | FormerAddress::Free(_) => String::new(),
        };
        assert!(lost(&[]).contains("is deleted"));
        assert!(lost(&[block("10.244.1.0/26", "host:b", &[])]).contains("has affinity host:b"));
        let mut unknown = end(OLD, None);
        unknown.name = "IPv6VXLANTunnelAddr".to_owned();
        let ipam = ipam(&[block("10.244.1.0/26", "host:a", &[])]);
        assert!(matches!(standing(&unknown, "a", &ipam), FormerAddress::Lost(_)));
    }

    /// Rollback: which address is allocated, which one the tunnel gets, and which one is released.
    #[test]
    fn a_rollback_gives_the_former_address_and_releases_the_other_one() {
        let (old, new): (IpNet, IpNet) = ("10.244.0.0/16".parse().unwrap(), "10.200.0.0/16".parse().unwrap());
        let free = block("10.244.1.0/26", "host:a", &[]);
        let taken = block("10.200.1.0/26", "host:a", &[allocation(NEW, &TUNNEL)]);
        let turned = [end(NEW, Some(NEW)), end(OLD, None)];
        let nodes = [NodeTunnelEnds {
            node: "a",
            ends: &turned,
        }];
        let free = ipam(&[free, taken.clone()]);
        let hold = to_hold(&nodes, &free, &old);
        assert_eq!(hold.len(), 1);
        assert_eq!(hold[0].allocation.address.to_string(), OLD);
        assert_eq!(of_node(nodes[0], &free, &old), BTreeMap::new());

        let held = ipam(&[
            block("10.244.1.0/26", "host:a", &[allocation(OLD, &TUNNEL)]),
            taken,
        ]);
        assert_eq!(to_hold(&nodes, &held, &old), []);
        let given: Vec<String> = of_node(nodes[0], &held, &old)
            .values()
            .map(|held| held.allocation.address.to_string())
            .collect();
        assert_eq!(given, [OLD]);
        let release = |address: &str, ipam: &Ipam| {
            let node = CalicoNode {
                ends: BTreeMap::from([("IPv4VXLANTunnelAddr".to_owned(), address.parse().unwrap())]),
                ..CalicoNode::default()
            };
            to_release(&BTreeMap::from([("a", &node)]), ipam, &new, &old)
        };
        // The tunnel still has its new address.
        assert_eq!(release(NEW, &held), []);

        let released = release(OLD, &held);
        assert_eq!(released.len(), 1);
        assert_eq!(released[0].allocation.address.to_string(), NEW);
        assert_eq!(released[0].allocation.handle, "a-handle");
        // The current address of the tunnel is not allocated to it, or is in neither range: the effect on Calico is unknown.
        assert_eq!(release(OLD, &free), []);
        assert_eq!(release("10.9.9.9", &held), []);
        // Calico cleans up after a deleted node.
        assert_eq!(to_release(&BTreeMap::new(), &held, &new, &old), []);
    }
}
