//! What Calico's IPAM has given out: blocks of addresses to nodes, addresses of them to pods and to ends of tunnels.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::calico::affinity;

/// One address that Calico's IPAM has given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The address.
    pub address: IpAddr,
    /// Its handle: whoever releases it needs it.
    pub handle: Option<String>,
    /// What was written beside it.
    pub attributes: BTreeMap<String, String>,
}

/// A block of Calico's IPAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its range.
    pub range: IpNet,
    /// `host:NODE`; `None` when it is nobody's.
    pub affinity: Option<String>,
    /// Addresses of it that are given out.
    pub allocations: Vec<Allocation>,
}

impl Block {
    /// Whether it is this node's.
    pub fn is_of(&self, node: &str) -> bool {
        self.affinity.as_deref() == Some(&affinity(node))
    }

    /// What this address was given out for; `None` when it is free.
    pub fn allocation(&self, address: &IpAddr) -> Option<&Allocation> {
        self.allocations.iter().find(|found| found.address == *address)
    }
}

/// What Calico's IPAM has given out, and what it gives to nobody. In a large cluster every node asks in each pass for its own blocks and
/// for that of one address: so they are put in order once, when they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipam {
    /// By their first addresses; no two of Calico's blocks overlap.
    blocks: Vec<Block>,
    /// Places in `blocks` by affinity.
    owned: BTreeMap<String, Vec<usize>>,
    /// The range of every affinity to a block.
    pub affinities: Vec<IpNet>,
    /// What `IPReservation`s keep free.
    pub reserved: Vec<IpNet>,
}

impl Ipam {
    /// Every block, the range of every affinity to one, and what `IPReservation`s keep free.
    pub fn new(mut blocks: Vec<Block>, affinities: Vec<IpNet>, reserved: Vec<IpNet>) -> Self {
        blocks.sort_by_key(|block| block.range.network());
        let mut owned: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, block) in blocks.iter().enumerate() {
            if let Some(affinity) = &block.affinity {
                owned.entry(affinity.clone()).or_default().push(place);
            }
        }
        Self {
            blocks,
            owned,
            affinities,
            reserved,
        }
    }

    /// Every block.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The blocks of this node.
    pub fn blocks_of(&self, node: &str) -> impl Iterator<Item = &Block> {
        let places = self.owned.get(&affinity(node)).into_iter().flatten();
        places.filter_map(|place| self.blocks.get(*place))
    }

    /// The block that has this address.
    pub fn block_with(&self, address: &IpAddr) -> Option<&Block> {
        let after = self
            .blocks
            .partition_point(|block| block.range.network() <= *address);
        let block = self.blocks.get(after.checked_sub(1)?)?;
        block.range.contains(address).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn ipam() -> Ipam {
        let block = |range: &str, affinity: Option<&str>| Block {
            range: range.parse().unwrap(),
            affinity: affinity.map(str::to_owned),
            allocations: Vec::new(),
        };
        let blocks = vec![
            block("fd00::40/122", Some("host:a")),
            block("10.200.1.0/26", Some("host:a")),
            block("10.244.0.64/26", Some("host:b")),
            block("10.244.0.0/26", Some("host:a")),
            block("10.244.0.192/26", None),
        ];
        Ipam::new(blocks, Vec::new(), Vec::new())
    }

    #[rstest]
    #[case::first("10.244.0.64", "10.244.0.64/26")]
    #[case::last("10.244.0.127", "10.244.0.64/26")]
    #[case::of_nobody("10.244.0.200", "10.244.0.192/26")]
    #[case::other_family("fd00::41", "fd00::40/122")]
    #[case::between_two("10.244.0.128", "none")]
    #[case::before_the_first("10.0.0.1", "none")]
    #[case::after_the_last("fd00::80", "none")]
    fn which_block_has_an_address(#[case] address: &str, #[case] expected: &str) {
        let ipam = ipam();
        let found = ipam.block_with(&address.parse().unwrap());
        let found = found.map_or("none".to_owned(), |block| block.range.to_string());
        assert_eq!(found, expected);
    }

    #[test]
    fn which_blocks_a_node_has() {
        let of = |node: &str| -> Vec<String> {
            let ipam = ipam();
            ipam.blocks_of(node)
                .map(|block| block.range.to_string())
                .collect()
        };
        assert_eq!(of("a"), ["10.200.1.0/26", "10.244.0.0/26", "fd00::40/122"]);
        assert_eq!(of("b"), ["10.244.0.64/26"]);
        assert_eq!(of("c"), [""; 0]);
    }
}
