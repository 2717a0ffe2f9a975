//! The choice of a node's tunnel address in the target range.
//!
//! The migration chooses it, not Calico: the address is allocated to the node in Calico's IPAM before it is written to the
//! Node, in the write that removes the node from the source pool. A calico-node of any release keeps such an address, at its
//! start or when it checks again, and Felix restarts: the agent has time to put the address beside the old one
//! (docs/limits.md). If Calico chooses, as a release before v3.31.6 does at its start, Felix removes the old address from the
//! link 0.1 seconds after the Node has another one.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4AddrRange};

use super::calico_node::{CalicoNode, TunnelAddresses};
use super::former_address::{self, NodeTunnelEnds};
use super::ipam::{Block, Ipam};
use super::tunnel::{TUNNELS, TunnelAllocation};

/// The addresses that this node's tunnels get when it is removed from the source pool, by the last part of the annotation's
/// key: their former addresses of the target range, or else free ones. Calico chooses for a tunnel without an entry.
pub fn given(
    told: NodeTunnelEnds<'_>,
    now: &TunnelAddresses,
    ipam: &Ipam,
    source: &IpNet,
    target: &IpNet,
) -> BTreeMap<String, TunnelAllocation> {
    let mut given = chosen(told.node, now, ipam, source, target);
    given.extend(former_address::of_node(told, ipam, target));
    given
}

/// Whether a node still has to be removed from the pool of this mark, and has no free address for its tunnels. The node may
/// have got a block since IPAM was read.
pub fn is_missing(
    nodes: &BTreeMap<String, CalicoNode>,
    mark: &str,
    ipam: &Ipam,
    source: &IpNet,
    target: &IpNet,
) -> bool {
    let mut remaining = nodes.iter().filter(|(_, node)| {
        let mut ends = TUNNELS
            .iter()
            .filter_map(|tunnel| node.ends.get(tunnel.annotation));
        node.off.as_deref() != Some(mark) && ends.any(|end| source.contains(end))
    });
    remaining.any(|(name, node)| chosen(name, &node.ends, ipam, source, target).is_empty())
}

fn chosen(
    node: &str,
    now: &TunnelAddresses,
    ipam: &Ipam,
    source: &IpNet,
    target: &IpNet,
) -> BTreeMap<String, TunnelAllocation> {
    let own = || {
        let blocks = ipam.blocks_of(node);
        blocks.filter(|block| target.contains(&block.range))
    };
    let chosen = TUNNELS.iter().filter_map(|tunnel| {
        let now = now.get(tunnel.annotation).filter(|now| source.contains(*now))?;
        // After the change this address has to be released. That is possible only if it was allocated to the tunnel.
        let given_out = ipam.block_with(now).and_then(|block| block.allocation(now));
        if given_out.is_some_and(|found| !tunnel.is_of(node, found)) {
            return None;
        }
        // An address that is already allocated comes first. Otherwise each crash could leave another one behind.
        let held = own().find_map(|block| {
            let mut allocations = block.allocations.iter();
            let found = allocations.find(|found| tunnel.is_of(node, found))?;
            Some(TunnelAllocation::of(node, block, found))
        });
        let free = || {
            own().find_map(|block| Some(tunnel.end(node, block, IpAddr::V4(free(block, &ipam.reserved)?))))
        };
        Some((tunnel.annotation.to_owned(), held.or_else(free)?))
    });
    chosen.collect()
}

/// The last free address of the block: Calico gives pods the first addresses of a new block, perhaps since the block was read.
fn free(block: &Block, reserved: &[IpNet]) -> Option<Ipv4Addr> {
    let IpNet::V4(range) = block.range else {
        return None;
    };
    let given_out: HashSet<IpAddr> = block.allocations.iter().map(|found| found.address).collect();
    Ipv4AddrRange::new(range.network(), range.broadcast())
        .rev()
        .find(|address| {
            let address = IpAddr::V4(*address);
            !given_out.contains(&address) && !reserved.iter().any(|range| range.contains(&address))
        })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::host::ChangedTunnelAddress;
    use crate::ipam::Allocation;
    use engine::labels::Labels;

    const NAME: &str = "IPv4VXLANTunnelAddr";
    const OLD: &str = "10.244.1.5";
    const OWN: (&str, &str) = ("a", "vxlanTunnelAddress");

    fn at(address: &str, (node, kind): (&str, &str)) -> Allocation {
        Allocation {
            address: address.parse().unwrap(),
            handle: Some("a-handle".to_owned()),
            attributes: [("node", node), ("type", kind)].into(),
        }
    }

    fn block(range: &str, affinity: &str, allocations: &[Allocation]) -> Block {
        Block {
            range: range.parse().unwrap(),
            affinity: Some(affinity.to_owned()),
            allocations: allocations.to_vec(),
        }
    }

    /// The address that node a gets, whose tunnel address is 10.244.1.5 now.
    fn gets(told: &[ChangedTunnelAddress], ipam: &Ipam) -> Option<String> {
        let now = TunnelAddresses::from([(NAME.to_owned(), OLD.parse().unwrap())]);
        let told = NodeTunnelEnds {
            node: "a",
            ends: told,
        };
        let (source, target) = ("10.244.0.0/16".parse().unwrap(), "10.200.0.0/16".parse().unwrap());
        let given = given(told, &now, ipam, &source, &target);
        let held = given.get(NAME)?;
        Some(format!("{} {}", held.allocation.address, held.allocation.handle))
    }

    fn ipam(blocks: &[Block], reserved: &[&str]) -> Ipam {
        ipam_of(&[at(OLD, OWN)], blocks, reserved)
    }

    /// With these allocations in the block of the current tunnel address.
    fn ipam_of(now: &[Allocation], blocks: &[Block], reserved: &[&str]) -> Ipam {
        Ipam::new(
            [&[block("10.244.1.0/26", "host:a", now)], blocks].concat(),
            Vec::new(),
            reserved.iter().map(|range| range.parse().unwrap()).collect(),
        )
    }

    const POD: (&str, &str) = ("a", "");

    #[rstest]
    #[case::last_free(&[block("10.200.1.0/30", "host:a", &[at("10.200.1.0", POD)])], &[], "10.200.1.3 vxlan-tunnel-addr-a")]
    #[case::last_address_has_a_pod(&[block("10.200.1.0/30", "host:a", &[at("10.200.1.3", POD)])], &[], "10.200.1.2 vxlan-tunnel-addr-a")]
    #[case::last_addresses_reserved(&[block("10.200.1.0/30", "host:a", &[])], &["10.200.1.2/31"], "10.200.1.1 vxlan-tunnel-addr-a")]
    #[case::first_block_full(
        &[block("10.200.1.0/32", "host:a", &[at("10.200.1.0", POD)]), block("10.200.1.1/32", "host:a", &[])], &[],
        "10.200.1.1 vxlan-tunnel-addr-a"
    )]
    #[case::already_allocated(&[block("10.200.1.0/30", "host:a", &[at("10.200.1.1", OWN)])], &[], "10.200.1.1 a-handle")]
    #[case::addresses_of_other_tunnels(
        &[block("10.200.1.0/30", "host:a", &[at("10.200.1.1", ("a", "ipipTunnelAddress")), at("10.200.1.2", ("b", OWN.1))])], &[],
        "10.200.1.3 vxlan-tunnel-addr-a"
    )]
    fn the_migration_chooses_an_address_of_the_nodes_blocks(
        #[case] blocks: &[Block],
        #[case] reserved: &[&str],
        #[case] expected: &str,
    ) {
        assert_eq!(gets(&[], &ipam(blocks, reserved)).as_deref(), Some(expected));
    }

    #[rstest]
    #[case::no_block(&[])]
    #[case::full_block(&[block("10.200.1.0/32", "host:a", &[at("10.200.1.0", POD)])])]
    #[case::block_of_another_node(&[block("10.200.1.0/26", "host:b", &[])])]
    #[case::block_of_another_range(&[block("10.201.1.0/26", "host:a", &[])])]
    fn calico_chooses_if_the_node_has_no_free_address(#[case] blocks: &[Block]) {
        assert_eq!(gets(&[], &ipam(blocks, &[])), None);
    }

    /// Calico can release such an address, with or without a handle. The migration cannot.
    #[test]
    fn calico_chooses_if_the_current_address_is_not_allocated_to_the_tunnel() {
        let without_owner = Allocation {
            attributes: Labels::default(),
            ..at(OLD, OWN)
        };
        let own = [block("10.200.1.0/30", "host:a", &[])];
        assert_eq!(gets(&[], &ipam_of(&[without_owner], &own, &[])), None);
        assert_eq!(
            gets(&[], &ipam_of(&[], &own, &[])).as_deref(),
            Some("10.200.1.3 vxlan-tunnel-addr-a")
        );
    }

    #[test]
    fn a_former_address_comes_before_a_free_one() {
        let before = ChangedTunnelAddress {
            name: NAME.to_owned(),
            old: "10.200.1.1".parse().unwrap(),
            new: None,
        };
        let blocks = [block(
            "10.200.1.0/30",
            "host:a",
            &[at("10.200.1.1", OWN), at("10.200.1.2", OWN)],
        )];
        let found = gets(&[before], &ipam(&blocks, &[]));
        assert_eq!(found.as_deref(), Some("10.200.1.1 a-handle"));
    }

    #[test]
    fn an_address_is_missing_for_a_remaining_node_without_a_block() {
        let missing = |address: &str, off: Option<&str>, blocks: &[Block]| {
            let node = CalicoNode {
                off: off.map(str::to_owned),
                ends: TunnelAddresses::from([(NAME.to_owned(), address.parse().unwrap())]),
                wireguard: None,
            };
            let (source, target) = ("10.244.0.0/16".parse().unwrap(), "10.200.0.0/16".parse().unwrap());
            let nodes = BTreeMap::from([("a".to_owned(), node)]);
            is_missing(&nodes, "old", &ipam(blocks, &[]), &source, &target)
        };
        let blocks = [block("10.200.1.0/30", "host:a", &[])];
        assert!(missing(OLD, None, &[]));
        assert!(!missing(OLD, None, &blocks));
        assert!(missing(OLD, Some("new"), &[]), "mark of a rollback");
        assert!(!missing(OLD, Some("old"), &[]), "Calico chooses");
        assert!(!missing("10.200.1.0", None, &[]), "already in the target range");
    }

    #[test]
    fn a_tunnel_address_outside_the_source_range_stays() {
        let ipam = ipam(&[block("10.200.1.0/30", "host:a", &[])], &[]);
        let (source, target) = ("10.244.0.0/16".parse().unwrap(), "10.200.0.0/16".parse().unwrap());
        for address in ["10.200.1.0", "192.0.2.1", "fd00::1"] {
            let now = TunnelAddresses::from([(NAME.to_owned(), address.parse().unwrap())]);
            assert_eq!(
                chosen("a", &now, &ipam, &source, &target),
                BTreeMap::new(),
                "{address}"
            );
        }
    }
}
