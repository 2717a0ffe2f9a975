//! Which address the end of a node's tunnel gets in the range that pods are led to.
//!
//! The migration chooses it, and not Calico: it is the node's in Calico's IPAM before the Node says it, by the write that takes the node
//! off the pool that is left. A calico-node of any release leaves an address as it is that it finds so, at its start or when it looks
//! again, and Felix starts anew by itself: the agent has time to put the address beside the old one (docs/limits.md). Where Calico
//! chooses, at its start as a release before v3.31.6 does, Felix takes the old address off the link a tenth of a second after the
//! Node says another one.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4AddrRange};

use super::calico_node::{CalicoNode, Ends};
use super::ipam::{Block, Ipam};
use super::returns::{self, Told};
use super::tunnel::{Held, TUNNELS};

/// What this node's tunnels get when it is taken off the pool that is left, by the last part of the annotation's key: what they had
/// there before, or else an address that they never had. Calico chooses for a tunnel that is not among them.
pub fn given(
    told: Told<'_>,
    now: &Ends,
    ipam: &Ipam,
    left: &IpNet,
    target: &IpNet,
) -> BTreeMap<String, Held> {
    let mut given = chosen(told.node, now, ipam, left, target);
    given.extend(returns::of_node(told, ipam, target));
    given
}

/// Whether a node is to be taken off the pool of this mark, and there is nothing to choose from for a tunnel of it: it may have got a
/// block since IPAM was read.
pub fn is_missing(
    nodes: &BTreeMap<String, CalicoNode>,
    mark: &str,
    ipam: &Ipam,
    left: &IpNet,
    target: &IpNet,
) -> bool {
    let mut to_go = nodes.iter().filter(|(_, node)| {
        let mut ends = TUNNELS
            .iter()
            .filter_map(|tunnel| node.ends.get(tunnel.annotation));
        node.off.as_deref() != Some(mark) && ends.any(|end| left.contains(end))
    });
    to_go.any(|(name, node)| chosen(name, &node.ends, ipam, left, target).is_empty())
}

fn chosen(node: &str, now: &Ends, ipam: &Ipam, left: &IpNet, target: &IpNet) -> BTreeMap<String, Held> {
    let own = || {
        let blocks = ipam.blocks_of(node);
        blocks.filter(|block| target.contains(&block.range))
    };
    let chosen = TUNNELS.iter().filter_map(|tunnel| {
        let now = now.get(tunnel.annotation).filter(|now| left.contains(*now))?;
        // Whoever gives it another one has to give this one back: we know how where it was given out for the tunnel.
        let given_out = ipam.block_with(now).and_then(|block| block.allocation(now));
        if given_out.is_some_and(|found| !tunnel.is_of(node, found)) {
            return None;
        }
        // What was held for it a moment ago is the one; else one may be held after each crash.
        let held = own().find_map(|block| {
            let mut allocations = block.allocations.iter();
            let found = allocations.find(|found| tunnel.is_of(node, found))?;
            Some(Held::of(node, block, found))
        });
        let free = || {
            own().find_map(|block| Some(tunnel.end(node, block, IpAddr::V4(free(block, &ipam.reserved)?))))
        };
        Some((tunnel.annotation.to_owned(), held.or_else(free)?))
    });
    chosen.collect()
}

/// The last free address of the block: of a block that is new Calico gives the first ones to pods, maybe since it was read.
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
    use crate::host::TunnelEnd;
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

    /// What node a gets, whose tunnel has its end at 10.244.1.5 now.
    fn gets(told: &[TunnelEnd], ipam: &Ipam) -> Option<String> {
        let now = Ends::from([(NAME.to_owned(), OLD.parse().unwrap())]);
        let told = Told {
            node: "a",
            ends: told,
        };
        let (left, target) = ("10.244.0.0/16".parse().unwrap(), "10.200.0.0/16".parse().unwrap());
        let given = given(told, &now, ipam, &left, &target);
        let held = given.get(NAME)?;
        Some(format!("{} {}", held.allocation.address, held.allocation.handle))
    }

    fn ipam(blocks: &[Block], reserved: &[&str]) -> Ipam {
        ipam_of(&[at(OLD, OWN)], blocks, reserved)
    }

    /// With these addresses given out of the block in which the end of the tunnel is now.
    fn ipam_of(now: &[Allocation], blocks: &[Block], reserved: &[&str]) -> Ipam {
        Ipam::new(
            [&[block("10.244.1.0/26", "host:a", now)], blocks].concat(),
            Vec::new(),
            reserved.iter().map(|range| range.parse().unwrap()).collect(),
        )
    }

    const POD: (&str, &str) = ("a", "");

    #[rstest]
    #[case::the_last_free_one(&[block("10.200.1.0/30", "host:a", &[at("10.200.1.0", POD)])], &[], "10.200.1.3 vxlan-tunnel-addr-a")]
    #[case::not_one_of_a_pod(&[block("10.200.1.0/30", "host:a", &[at("10.200.1.3", POD)])], &[], "10.200.1.2 vxlan-tunnel-addr-a")]
    #[case::not_a_reserved_one(&[block("10.200.1.0/30", "host:a", &[])], &["10.200.1.2/31"], "10.200.1.1 vxlan-tunnel-addr-a")]
    #[case::of_another_block(
        &[block("10.200.1.0/32", "host:a", &[at("10.200.1.0", POD)]), block("10.200.1.1/32", "host:a", &[])], &[],
        "10.200.1.1 vxlan-tunnel-addr-a"
    )]
    #[case::the_one_that_is_held(&[block("10.200.1.0/30", "host:a", &[at("10.200.1.1", OWN)])], &[], "10.200.1.1 a-handle")]
    #[case::not_one_of_another_tunnel(
        &[block("10.200.1.0/30", "host:a", &[at("10.200.1.1", ("a", "ipipTunnelAddress")), at("10.200.1.2", ("b", OWN.1))])], &[],
        "10.200.1.3 vxlan-tunnel-addr-a"
    )]
    fn the_migration_chooses(#[case] blocks: &[Block], #[case] reserved: &[&str], #[case] expected: &str) {
        assert_eq!(gets(&[], &ipam(blocks, reserved)).as_deref(), Some(expected));
    }

    #[rstest]
    #[case::without_a_block(&[])]
    #[case::in_a_full_block(&[block("10.200.1.0/32", "host:a", &[at("10.200.1.0", POD)])])]
    #[case::in_a_block_of_another_node(&[block("10.200.1.0/26", "host:b", &[])])]
    #[case::in_another_range(&[block("10.201.1.0/26", "host:a", &[])])]
    fn calico_chooses(#[case] blocks: &[Block]) {
        assert_eq!(gets(&[], &ipam(blocks, &[])), None);
    }

    /// Calico knows how to give it back, by its handle or without; who writes another one over it does not.
    #[test]
    fn calico_chooses_for_an_end_that_was_not_given_out_as_one() {
        let of_nobody = Allocation {
            attributes: Labels::default(),
            ..at(OLD, OWN)
        };
        let own = [block("10.200.1.0/30", "host:a", &[])];
        assert_eq!(gets(&[], &ipam_of(&[of_nobody], &own, &[])), None);
        assert_eq!(
            gets(&[], &ipam_of(&[], &own, &[])).as_deref(),
            Some("10.200.1.3 vxlan-tunnel-addr-a")
        );
    }

    #[test]
    fn what_it_had_comes_before_what_is_free() {
        let before = TunnelEnd {
            name: NAME.to_owned(),
            kept: "10.200.1.1".parse().unwrap(),
            address: None,
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
    fn a_node_without_a_block_may_get_one() {
        let missing = |address: &str, off: Option<&str>, blocks: &[Block]| {
            let node = CalicoNode {
                off: off.map(str::to_owned),
                ends: Ends::from([(NAME.to_owned(), address.parse().unwrap())]),
                wireguard: None,
            };
            let (left, target) = ("10.244.0.0/16".parse().unwrap(), "10.200.0.0/16".parse().unwrap());
            let nodes = BTreeMap::from([("a".to_owned(), node)]);
            is_missing(&nodes, "old", &ipam(blocks, &[]), &left, &target)
        };
        let blocks = [block("10.200.1.0/30", "host:a", &[])];
        assert!(missing(OLD, None, &[]));
        assert!(!missing(OLD, None, &blocks));
        assert!(missing(OLD, Some("new"), &[]), "from a way back");
        assert!(!missing(OLD, Some("old"), &[]), "Calico chooses");
        assert!(!missing("10.200.1.0", None, &[]), "it is there");
    }

    /// An end that is in neither range, or in the new one, is none to exchange.
    #[test]
    fn an_end_elsewhere_stays() {
        let ipam = ipam(&[block("10.200.1.0/30", "host:a", &[])], &[]);
        let (left, target) = ("10.244.0.0/16".parse().unwrap(), "10.200.0.0/16".parse().unwrap());
        for address in ["10.200.1.0", "192.0.2.1", "fd00::1"] {
            let now = Ends::from([(NAME.to_owned(), address.parse().unwrap())]);
            assert_eq!(
                chosen("a", &now, &ipam, &left, &target),
                BTreeMap::new(),
                "{address}"
            );
        }
    }
}
