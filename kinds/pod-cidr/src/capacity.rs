//! Capacity of the new pool: Calico assigns addresses by blocks, and each block belongs to one node.

use ipnet::IpNet;

/// Default limit of blocks per node, as in Calico's IPAM.
pub const BLOCKS_PER_NODE: u64 = 20;

/// The addresses that a pool has to provide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need<'facts> {
    /// Number of addresses that each node needs: for its pods, and one for its tunnel.
    pub of_nodes: &'facts [u64],
    /// Limit of blocks per node (`IPAMConfig.maxBlocksPerHost`).
    pub blocks_per_node: u64,
    /// Whether a node may use addresses of its own blocks only (`IPAMConfig.strictAffinity`).
    pub strict: bool,
}

/// Whether the pool is large enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// Every node gets its own blocks.
    Enough {
        /// Number of needed blocks.
        needed: u64,
        /// Number of blocks in the pool.
        blocks: u64,
    },
    /// Some nodes borrow addresses from blocks of other nodes. Each borrowed address is a separate route on every node.
    Borrowed {
        /// Number of needed blocks.
        needed: u64,
        /// Number of blocks in the pool.
        blocks: u64,
    },
    /// A node needs more blocks than the limit per node.
    NodeTooLarge {
        /// Number of blocks that the largest node needs.
        needed: u64,
        /// Limit of blocks per node.
        allowed: u64,
    },
    /// The pool has too few addresses or, with strict affinity, too few blocks.
    Full {
        /// Number of needed blocks.
        needed: u64,
        /// Number of blocks in the pool.
        blocks: u64,
    },
}

/// Decides whether a range with blocks of this prefix length is large enough.
pub fn capacity(range: &IpNet, block_size: u8, need: &Need<'_>) -> Capacity {
    let power = |bits: u8| 1_u64.checked_shl(u32::from(bits)).unwrap_or(u64::MAX);
    let blocks = power(block_size.saturating_sub(range.prefix_len()));
    let size = power(range.max_prefix_len().saturating_sub(block_size));
    let needed_by = |addresses: u64| addresses.div_ceil(size).max(1);
    let needed = need.of_nodes.iter().map(|addresses| needed_by(*addresses)).sum();
    let largest = need
        .of_nodes
        .iter()
        .map(|addresses| needed_by(*addresses))
        .max()
        .unwrap_or_default();
    if largest > need.blocks_per_node {
        return Capacity::NodeTooLarge {
            needed: largest,
            allowed: need.blocks_per_node,
        };
    }
    if needed <= blocks {
        return Capacity::Enough { needed, blocks };
    }
    let addresses: u64 = need.of_nodes.iter().sum();
    if !need.strict && addresses <= blocks.saturating_mul(size) {
        Capacity::Borrowed { needed, blocks }
    } else {
        Capacity::Full { needed, blocks }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::one_block_per_node("10.200.0.0/16", 26, &[30, 30, 70], false, Capacity::Enough { needed: 4, blocks: 1024 })]
    #[case::a_node_without_pods_needs_a_block("10.200.0.0/24", 26, &[0, 0], true, Capacity::Enough { needed: 2, blocks: 4 })]
    #[case::too_few_blocks("10.200.0.0/25", 26, &[10, 10, 10], false, Capacity::Borrowed { needed: 3, blocks: 2 })]
    #[case::too_few_blocks_with_strict_affinity("10.200.0.0/25", 26, &[10, 10, 10], true, Capacity::Full { needed: 3, blocks: 2 })]
    #[case::too_few_addresses("10.200.0.0/26", 26, &[40, 40], false, Capacity::Full { needed: 2, blocks: 1 })]
    #[case::a_node_over_the_limit("10.200.0.0/16", 32, &[21], false, Capacity::NodeTooLarge { needed: 21, allowed: 20 })]
    #[case::a_node_at_the_limit("10.200.0.0/16", 32, &[20], false, Capacity::Enough { needed: 20, blocks: 65_536 })]
    #[case::ipv6("fd00::/48", 122, &[110], false, Capacity::Enough { needed: 2, blocks: u64::MAX })]
    fn a_range_is_judged_by_its_blocks(
        #[case] range: &str,
        #[case] block_size: u8,
        #[case] of_nodes: &[u64],
        #[case] strict: bool,
        #[case] expected: Capacity,
    ) {
        let need = Need {
            of_nodes,
            blocks_per_node: BLOCKS_PER_NODE,
            strict,
        };
        assert_eq!(capacity(&range.parse().unwrap(), block_size, &need), expected);
    }
}
