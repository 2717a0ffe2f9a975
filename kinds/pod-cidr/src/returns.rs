//! Ends of tunnels that come back: whoever turns around gives each node the very addresses that its tunnels had, so that
//! connections of the host that began at them go on.
//!
//! From the moment at which an address is exchanged the agent keeps the old one on the loopback ([`super::host::changes`]). Once pods have
//! moved it is released, and its pool is closed. Before that pool is opened again, the address is written into Calico's IPAM as the
//! node's again: no pod can get it. Then the Node says it, in the write by which the Node is taken off the other
//! pool. A calico-node that finds such an address leaves it as it is (v3.31.7, `allocateip`, "Current address is still valid"), and
//! Felix puts it on the link. The address that is left then is nobody's, and is released as Calico would have done.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::calico_node::CalicoNode;
use super::host::TunnelEnd;
use super::ipam::{Ipam, attribute};
use super::tunnel::{Held, TUNNELS};

/// What has become of an address that a tunnel had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Calico's IPAM has it as the node's, so: it can be given back to the tunnel.
    Held(Held),
    /// Nobody has it.
    Free(Held),
    /// It cannot come back; the words say why.
    Lost(String),
}

/// What has become of the address that this end of this node's tunnel left.
pub fn standing(end: &TunnelEnd, node: &str, ipam: &Ipam) -> Standing {
    let address = IpAddr::V4(end.kept);
    let Some(tunnel) = TUNNELS.iter().find(|tunnel| tunnel.annotation == end.name) else {
        return Standing::Lost(format!(
            "{address} was of a tunnel that is not known ({})",
            end.name
        ));
    };
    let Some(block) = ipam.block_with(&address) else {
        return Standing::Lost(format!("the block of {address} is gone"));
    };
    if !block.is_of(node) {
        let owner = block.affinity.as_deref().unwrap_or("nobody");
        return Standing::Lost(format!("block {} of {address} is of {owner}", block.range));
    }
    match block.allocation(&address) {
        None => Standing::Free(tunnel.end(node, block, address)),
        Some(found) if tunnel.is_of(node, found) => Standing::Held(Held::of(node, block, found)),
        Some(found) => {
            let handle = found.handle.as_deref().unwrap_or("none");
            Standing::Lost(format!("{address} was given to somebody else (handle {handle})"))
        }
    }
}

/// One node, with what its agent is told.
#[derive(Clone, Copy, Debug)]
pub struct Told<'facts> {
    /// Name of the Node.
    pub node: &'facts str,
    /// Ends of its tunnels: those of the range that is left, and those of the range that is led to, which come back.
    pub ends: &'facts [TunnelEnd],
}

/// Addresses of the range that is led to that have to be the nodes' before its pool is opened.
pub fn to_hold(nodes: &[Told<'_>], ipam: &Ipam, target: &IpNet) -> Vec<Held> {
    in_range(nodes, target)
        .filter_map(|(node, end)| match standing(end, node, ipam) {
            Standing::Free(held) => Some(held),
            Standing::Held(_) | Standing::Lost(_) => None,
        })
        .collect()
}

/// The addresses that the tunnels of this node get back, by the last part of the annotation's key.
pub fn of_node(told: Told<'_>, ipam: &Ipam, target: &IpNet) -> BTreeMap<String, Held> {
    in_range(&[told], target)
        .filter_map(|(node, end)| match standing(end, node, ipam) {
            Standing::Held(held) => Some((end.name.clone(), held)),
            Standing::Free(_) | Standing::Lost(_) => None,
        })
        .collect()
}

/// Addresses of both ranges that Calico's IPAM has as the ends of nodes' tunnels, which have others by now, in the range that is led to:
/// Calico releases one that it exchanges itself, and knows nothing of what it was given, nor of what was held for a node that was away
/// at its turn.
///
/// `nodes` are those that are there. What agents are told is no record of it: an object may be made anew, and somebody may turn around
/// twice.
pub fn to_release(
    nodes: &BTreeMap<&str, &CalicoNode>,
    ipam: &Ipam,
    left: &IpNet,
    target: &IpNet,
) -> Vec<Held> {
    let blocks = ipam.blocks().iter();
    let in_either = blocks.filter(|block| left.contains(&block.range) || target.contains(&block.range));
    let allocations = in_either.flat_map(|block| block.allocations.iter().map(move |found| (block, found)));
    allocations
        .filter_map(|(block, found)| {
            let node = found.says(attribute::NODE)?;
            let kind = found.says(attribute::TYPE)?;
            let tunnel = TUNNELS.iter().find(|tunnel| tunnel.attribute == kind)?;
            let now = nodes.get(node)?.ends.get(tunnel.annotation)?;
            let other = ipam.block_with(now)?.allocation(now)?;
            let has_other = target.contains(now) && found.address != *now && tunnel.is_of(node, other);
            has_other.then(|| Held::of(node, block, found))
        })
        .collect()
}

fn in_range<'facts>(
    nodes: &[Told<'facts>],
    range: &IpNet,
) -> impl Iterator<Item = (&'facts str, &'facts TunnelEnd)> {
    nodes
        .iter()
        .flat_map(|told| told.ends.iter().map(|end| (told.node, end)))
        .filter(|(_, end)| range.contains(&IpAddr::V4(end.kept)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::ipam::{Allocation, Block};

    const OLD: &str = "10.244.1.5";
    const NEW: &str = "10.200.1.7";

    fn end(kept: &str, address: Option<&str>) -> TunnelEnd {
        TunnelEnd {
            name: "IPv4VXLANTunnelAddr".to_owned(),
            kept: kept.parse().unwrap(),
            address: address.map(|address| address.parse().unwrap()),
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
    #[case::of_another_node(&[allocation(OLD, &[("node", "b"), TUNNEL[1]])], "somebody else")]
    #[case::of_a_pod(&[allocation(OLD, &[("node", "a"), ("pod", "web-1")])], "somebody else")]
    #[case::of_nobody(&[allocation("10.244.1.6", &TUNNEL)], "free")]
    fn an_address_that_a_tunnel_left(#[case] allocations: &[Allocation], #[case] words: &str) {
        let ipam = ipam(&[block("10.244.1.0/26", "host:a", allocations)]);
        let found = match standing(&end(OLD, Some(NEW)), "a", &ipam) {
            Standing::Held(_) => "held".to_owned(),
            Standing::Free(held) => {
                assert_eq!(held.allocation.handle, "vxlan-tunnel-addr-a");
                let attributes = held.allocation.attributes.into_iter().collect();
                assert_eq!(allocation(OLD, &TUNNEL).attributes, attributes);
                "free".to_owned()
            }
            Standing::Lost(words) => words,
        };
        assert!(found.contains(words), "{found}");
    }

    #[test]
    fn without_its_block_it_cannot_come_back() {
        let lost = |blocks: &[Block]| match standing(&end(OLD, None), "a", &ipam(blocks)) {
            Standing::Lost(words) => words,
            Standing::Held(_) | Standing::Free(_) => String::new(),
        };
        assert!(lost(&[]).contains("is gone"));
        assert!(lost(&[block("10.244.1.0/26", "host:b", &[])]).contains("of host:b"));
        let mut unknown = end(OLD, None);
        unknown.name = "IPv6VXLANTunnelAddr".to_owned();
        let ipam = ipam(&[block("10.244.1.0/26", "host:a", &[])]);
        assert!(matches!(standing(&unknown, "a", &ipam), Standing::Lost(_)));
    }

    /// There, and back: what is held, what the tunnel gets, and what is released.
    #[test]
    fn who_turns_around_gets_the_same_address_and_the_other_one_is_released() {
        let (old, new): (IpNet, IpNet) = ("10.244.0.0/16".parse().unwrap(), "10.200.0.0/16".parse().unwrap());
        let free = block("10.244.1.0/26", "host:a", &[]);
        let taken = block("10.200.1.0/26", "host:a", &[allocation(NEW, &TUNNEL)]);
        let turned = [end(NEW, Some(NEW)), end(OLD, None)];
        let nodes = [Told {
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
        // It has its new one still.
        assert_eq!(release(NEW, &held), []);

        let released = release(OLD, &held);
        assert_eq!(released.len(), 1);
        assert_eq!(released[0].allocation.address.to_string(), NEW);
        assert_eq!(released[0].allocation.handle, "a-handle");
        // What its tunnel has is not its in Calico's IPAM, or is of neither range: nobody knows what Calico makes of that.
        assert_eq!(release(OLD, &free), []);
        assert_eq!(release("10.9.9.9", &held), []);
        // A node that is gone is Calico's own to tidy up behind.
        assert_eq!(to_release(&BTreeMap::new(), &held, &new, &old), []);
    }
}
