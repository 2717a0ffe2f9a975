//! Whether the new pool has room: Calico gives addresses out by blocks, and a block is one node's.

use ipnet::IpNet;

/// Most blocks of a node when no setting says otherwise, as in Calico's IPAM.
pub const BLOCKS_PER_NODE: u64 = 20;

/// What a pool is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need<'facts> {
    /// Addresses that each node needs: of its pods, and one of its tunnel's end.
    pub of_nodes: &'facts [u64],
    /// How many blocks a node may have at most (`IPAMConfig.maxBlocksPerHost`).
    pub blocks_per_node: u64,
    /// Whether a node may take addresses from its own blocks only (`IPAMConfig.strictAffinity`).
    pub strict: bool,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Every node has blocks of its own.
    Enough {
        /// Blocks that are needed.
        needed: u64,
        /// Blocks that there are.
        blocks: u64,
    },
    /// Some nodes take addresses from the blocks of others: each is a route of its own on every node.
    Borrowed {
        /// Blocks that are needed.
        needed: u64,
        /// Blocks that there are.
        blocks: u64,
    },
    /// A node needs more blocks than one may have.
    NodeTooLarge {
        /// Blocks that the largest node needs.
        needed: u64,
        /// Blocks that it may have.
        allowed: u64,
    },
    /// There are not enough addresses, or not enough blocks where nobody may borrow.
    Full {
        /// Blocks that are needed.
        needed: u64,
        /// Blocks that there are.
        blocks: u64,
    },
}

/// Judges a range that is divided into blocks of this prefix length.
pub fn room(range: &IpNet, block_size: u8, need: &Need<'_>) -> Room {
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
        return Room::NodeTooLarge {
            needed: largest,
            allowed: need.blocks_per_node,
        };
    }
    if needed <= blocks {
        return Room::Enough { needed, blocks };
    }
    let addresses: u64 = need.of_nodes.iter().sum();
    if !need.strict && addresses <= blocks.saturating_mul(size) {
        Room::Borrowed { needed, blocks }
    } else {
        Room::Full { needed, blocks }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::each_node_has_its_own("10.200.0.0/16", 26, &[30, 30, 70], false, Room::Enough { needed: 4, blocks: 1024 })]
    #[case::a_node_without_pods_has_one("10.200.0.0/24", 26, &[0, 0], true, Room::Enough { needed: 2, blocks: 4 })]
    #[case::some_borrow("10.200.0.0/25", 26, &[10, 10, 10], false, Room::Borrowed { needed: 3, blocks: 2 })]
    #[case::nobody_may_borrow("10.200.0.0/25", 26, &[10, 10, 10], true, Room::Full { needed: 3, blocks: 2 })]
    #[case::too_few_addresses("10.200.0.0/26", 26, &[40, 40], false, Room::Full { needed: 2, blocks: 1 })]
    #[case::one_is_too_large("10.200.0.0/16", 32, &[21], false, Room::NodeTooLarge { needed: 21, allowed: 20 })]
    #[case::as_large_as_may_be("10.200.0.0/16", 32, &[20], false, Room::Enough { needed: 20, blocks: 65_536 })]
    #[case::another_family("fd00::/48", 122, &[110], false, Room::Enough { needed: 2, blocks: u64::MAX })]
    fn judged_by_blocks(
        #[case] range: &str,
        #[case] block_size: u8,
        #[case] of_nodes: &[u64],
        #[case] strict: bool,
        #[case] expected: Room,
    ) {
        let need = Need {
            of_nodes,
            blocks_per_node: BLOCKS_PER_NODE,
            strict,
        };
        assert_eq!(room(&range.parse().unwrap(), block_size, &need), expected);
    }
}
