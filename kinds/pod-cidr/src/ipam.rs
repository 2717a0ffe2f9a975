//! The allocations of Calico's IPAM: blocks of nodes, and addresses of pods and tunnels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::unclear::UnclearIpam;
use calico::affinity;
use engine::labels::Labels;

/// Attributes of an allocation that Calico writes (libcalico-go, `lib/backend/model/block.go`).
pub mod attribute {
    /// Name of the pod.
    pub const POD: &str = "pod";
    /// Namespace of the pod.
    pub const NAMESPACE: &str = "namespace";
    /// The node.
    pub const NODE: &str = "node";
    /// The Service whose load balancer has the address.
    pub const SERVICE: &str = "service";
    /// The kind of a tunnel, for an address that is no pod's.
    pub const TYPE: &str = "type";
    /// The attributes that replumb reads.
    pub const READ: [&str; 5] = [POD, NAMESPACE, NODE, SERVICE, TYPE];
}

/// One address that Calico's IPAM has allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The address.
    pub address: IpAddr,
    /// Its handle, which is needed to release it.
    pub handle: Option<String>,
    /// Its attributes.
    pub attributes: Labels,
}

impl Allocation {
    /// The value of this attribute, unless it is empty.
    pub(super) fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.get(key).filter(|value| !value.is_empty())
    }
}

/// A block of Calico's IPAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its range, without host bits.
    pub range: IpNet,
    /// `host:NODE`; `None` if no node owns it.
    pub affinity: Option<String>,
    /// Its allocated addresses.
    pub allocations: Vec<Allocation>,
}

impl Block {
    /// Whether this node owns it.
    pub fn is_of(&self, node: &str) -> bool {
        self.affinity.as_deref() == Some(&affinity(node))
    }

    /// The allocation of this address; `None` if it is free.
    pub fn allocation(&self, address: &IpAddr) -> Option<&Allocation> {
        self.allocations.iter().find(|found| found.address == *address)
    }
}

/// A claim of a node on a block: a `BlockAffinity`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Name of the object.
    pub name: String,
    /// The node; `None` if the object names none.
    pub node: Option<String>,
    /// The range of the block.
    pub range: IpNet,
}

/// The allocated and reserved addresses of Calico's IPAM. In each pass, the blocks of every node and the block of one address
/// of every node are looked up, so blocks are sorted and indexed once, when they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipam {
    /// By range.
    blocks: Vec<Block>,
    /// The prefix lengths of their ranges. A range can have blocks of a former pool with another block size.
    lengths: BTreeSet<u8>,
    /// Places in `blocks` by affinity.
    owned: BTreeMap<String, Vec<usize>>,
    /// By range.
    claims: Vec<Claim>,
    /// The ranges of `IPReservation`s.
    pub reserved: Vec<IpNet>,
    /// Objects that cannot be parsed.
    pub unclear: UnclearIpam,
}

impl Ipam {
    /// Indexes all blocks, block affinities, and ranges of `IPReservation`s.
    pub fn new(mut blocks: Vec<Block>, mut claims: Vec<Claim>, reserved: Vec<IpNet>) -> Self {
        claims.sort_by_key(|claim| claim.range);
        blocks.sort_by_key(|block| block.range);
        let lengths = blocks.iter().map(|block| block.range.prefix_len()).collect();
        let mut owned: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, block) in blocks.iter().enumerate() {
            if let Some(affinity) = &block.affinity {
                owned.entry(affinity.clone()).or_default().push(place);
            }
        }
        Self {
            blocks,
            lengths,
            owned,
            claims,
            reserved,
            unclear: UnclearIpam::default(),
        }
    }

    /// Every block.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Every claim on a block.
    pub fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// The claims on the block of this range.
    pub fn claims_on(&self, range: IpNet) -> &[Claim] {
        let first = self.claims.partition_point(|claim| claim.range < range);
        let of_it = self.claims.get(first..).unwrap_or_default();
        &of_it[..of_it.partition_point(|claim| claim.range == range)]
    }

    /// The block of this range.
    pub fn block(&self, range: IpNet) -> Option<&Block> {
        let place = self
            .blocks
            .binary_search_by_key(&range, |block| block.range)
            .ok()?;
        self.blocks.get(place)
    }

    /// The blocks of this node.
    pub fn blocks_of(&self, node: &str) -> impl Iterator<Item = &Block> {
        let places = self.owned.get(&affinity(node)).into_iter().flatten();
        places.filter_map(|place| self.blocks.get(*place))
    }

    /// The block that contains this address; if blocks overlap, the smallest.
    pub fn block_with(&self, address: &IpAddr) -> Option<&Block> {
        self.lengths.iter().rev().find_map(|length| {
            let range = IpNet::new(*address, *length).ok()?.trunc();
            self.block(range)
        })
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
            // A block of a former pool with another block size.
            block("10.201.0.0/24", Some("host:a")),
            block("10.201.0.64/26", Some("host:b")),
        ];
        Ipam::new(blocks, Vec::new(), Vec::new())
    }

    #[rstest]
    #[case::first("10.244.0.64", "10.244.0.64/26")]
    #[case::last("10.244.0.127", "10.244.0.64/26")]
    #[case::without_affinity("10.244.0.200", "10.244.0.192/26")]
    #[case::other_family("fd00::41", "fd00::40/122")]
    #[case::between_two("10.244.0.128", "none")]
    #[case::before_the_first("10.0.0.1", "none")]
    #[case::after_the_last("fd00::80", "none")]
    #[case::in_the_smaller("10.201.0.70", "10.201.0.64/26")]
    #[case::past_the_smaller("10.201.0.200", "10.201.0.0/24")]
    fn the_smallest_block_with_an_address_is_found(#[case] address: &str, #[case] expected: &str) {
        let ipam = ipam();
        let found = ipam.block_with(&address.parse().unwrap());
        let found = found.map_or("none".to_owned(), |block| block.range.to_string());
        assert_eq!(found, expected);
    }

    #[test]
    fn blocks_of_a_node_are_found_by_affinity() {
        let of = |node: &str| -> Vec<String> {
            let ipam = ipam();
            ipam.blocks_of(node)
                .map(|block| block.range.to_string())
                .collect()
        };
        assert_eq!(
            of("a"),
            ["10.200.1.0/26", "10.201.0.0/24", "10.244.0.0/26", "fd00::40/122"]
        );
        assert_eq!(of("b"), ["10.201.0.64/26", "10.244.0.64/26"]);
        assert_eq!(of("c"), [""; 0]);
    }
}
