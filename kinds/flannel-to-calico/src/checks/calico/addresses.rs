//! Checks of IP pools and IPAM blocks that exist before the migration.

use ipnet::IpNet;

use super::super::CheckName;
use crate::detect::linux_nodes;
use crate::facts::ClusterFacts;
use crate::objects;
use crate::settings::{PodNetwork, Settings};
use engine::check::{Check, Finding, Report};
use engine::cluster::Node;

/// The pool of each network of flannel, if it exists, has the needed values.
pub(super) fn pool(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    settings
        .pod_networks()
        .iter()
        .flat_map(|network| pool_of(settings, network, facts))
        .collect()
}

fn pool_of(settings: &Settings, network: &PodNetwork, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::IpPool);
    let chosen = objects::pool(settings, network, &facts.ip_pools);
    let range = network.range;
    let mut conflicts: Vec<objects::PoolConflict> = facts
        .ip_pools
        .values()
        .filter(|pool| pool.cidr.trunc() == range)
        .flat_map(|pool| objects::pool_conflicts(settings, network, pool))
        .collect();
    if let Err(conflict) = &chosen
        && !conflicts.contains(conflict)
    {
        conflicts.push(conflict.clone());
    }
    for conflict in conflicts {
        let finding = Finding::new(
            conflict.field,
            conflict.found,
            conflict.needed,
            "correct the pool, or delete it if no pod uses it: the migration creates one",
        );
        report.fail("IPPool", conflict.name, finding);
    }
    let found = match chosen {
        Ok(pool) if pool.create.is_some() => format!("will be created for {range}"),
        Ok(_) | Err(_) => format!("covers {range} with vxlanMode Always, and is used unchanged"),
    };
    let name = facts.ip_pools.values().find(|pool| pool.cidr.trunc() == range);
    report.finish(
        format!(
            "IPPool {}",
            name.map_or(objects::family::of(&range).pool, |pool| &pool.name)
        ),
        found,
    )
}

/// Each existing block belongs to the node whose subnet contains it.
pub(super) fn blocks(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::IpamBlocks);
    let mut sizes = Vec::new();
    for network in settings.pod_networks() {
        let size = objects::pool(settings, &network, &facts.ip_pools)
            .map_or_else(|_| objects::block_size(&network), |pool| pool.block_size);
        sizes.push(format!("/{size}"));
        let mut ranges: Vec<(IpNet, &Node)> = Vec::new();
        for node in linux_nodes(facts) {
            let Some(range) = node.range_of(&network.range).map(|range| range.trunc()) else {
                continue;
            };
            ranges.push((range, node));
            if let Err(error) = objects::blocks(range, size) {
                report.fail(
                    "Node",
                    &node.name,
                    Finding::new(
                        "spec.podCIDR",
                        range.to_string(),
                        format!("a subnet that holds whole blocks of /{}", error.block_size),
                        "use a pool with smaller blocks: set ipPoolBlockSize in spec.flannelToCalico.options",
                    ),
                );
            }
        }
        ranges.sort_by_key(|(range, _)| *range);
        for (block, affinity) in &facts.ipam_blocks {
            if network.range.contains(block) || block.contains(&network.range) {
                block_of_a_node(&ranges, *block, affinity.as_deref(), size, &mut report);
            }
        }
    }
    report.finish(
        "IPAMBlocks",
        format!(
            "{}; each belongs to the node whose podCIDR contains it; block size {}",
            facts.ipam_blocks.len(),
            sizes.join(" and ")
        ),
    )
}

fn block_of_a_node(
    ranges: &[(IpNet, &Node)],
    block: IpNet,
    affinity: Option<&str>,
    size: u8,
    report: &mut Report,
) {
    // The last range that begins at or before the block.
    let before = ranges.partition_point(|(range, _)| range.network() <= block.network());
    let owner = before
        .checked_sub(1)
        .map(|place| ranges[place])
        .filter(|(range, _)| range.contains(&block));
    let affinity = affinity.unwrap_or_default();
    let Some((range, node)) = owner else {
        report.fail(
            "IPAMBlock",
            block.to_string(),
            Finding::new(
                "",
                format!("affinity {affinity:?}, outside the podCIDRs of all Nodes"),
                "a block inside the podCIDR of a Node",
                "nodes on flannel have no route to this block: delete it when no pod has an address in it",
            ),
        );
        return;
    };
    if block.prefix_len() != size {
        report.fail(
            "IPAMBlock",
            block.to_string(),
            Finding::new(
                "size",
                format!("/{}", block.prefix_len()),
                format!("/{size}, the pool's block size"),
                "delete the block when no pod has an address in it",
            ),
        );
    }
    if !affinity.is_empty() && affinity != format!("host:{}", node.name) {
        report.fail(
            "IPAMBlock",
            block.to_string(),
            Finding::new(
                "affinity",
                affinity,
                format!("host:{}, whose podCIDR {range} contains the block", node.name),
                "packets would go to the wrong node: release the block with `calicoctl ipam`, or delete the block \
                 and its BlockAffinity when no pod has an address in it",
            ),
        );
    }
}
