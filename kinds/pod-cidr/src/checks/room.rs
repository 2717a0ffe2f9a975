//! Whether the new pool has room for the pods of every node.

use std::collections::BTreeMap;

use super::CheckName;
use crate::capacity::{BLOCKS_PER_NODE, Need, Room, room};
use crate::facts::ClusterFacts;
use crate::settings::Settings;
use engine::check::{Check, Finding, Report};

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Room);
    let (to, size) = (settings.to.value, settings.block_size.value);
    let mut pods_of: BTreeMap<&str, u64> = BTreeMap::new();
    for pod in facts.pods.iter().filter(|pod| pod.uses_pod_network()) {
        *pods_of.entry(pod.node.as_str()).or_default() += 1;
    }
    let of_nodes: Vec<u64> = facts
        .linux_nodes()
        .map(|node| {
            let pods = pods_of.get(node.name.as_str()).copied().unwrap_or_default();
            // One for the end of the tunnel, and one for each of our own pods that watch.
            pods.saturating_add(2)
        })
        .collect();
    let need = Need {
        of_nodes: &of_nodes,
        blocks_per_node: facts.ipam.blocks_per_node.unwrap_or(BLOCKS_PER_NODE),
        strict: facts.ipam.strict_affinity,
    };
    let object = format!("range {to}, blocks of /{size}");
    let found = match room(&to, size, &need) {
        Room::Enough {
            needed,
            blocks: u64::MAX,
        } => format!("{needed} blocks are needed, of more than can be counted"),
        Room::Enough { needed, blocks } => format!("{needed} of {blocks} blocks are needed"),
        Room::Borrowed { needed, blocks } => {
            report.warn(
                "",
                &object,
                Finding::new(
                    "",
                    format!("{needed} blocks are needed, {blocks} there"),
                    "a block of its own for every node",
                    "a larger range, or a larger spec.podCidr.blockSize: an address that is borrowed is a route of its own on every node",
                ),
            );
            String::new()
        }
        Room::NodeTooLarge { needed, allowed } => {
            report.fail(
                "",
                &object,
                Finding::new(
                    "",
                    format!("{needed} blocks are needed by one node"),
                    format!("{allowed} at most (IPAMConfig maxBlocksPerHost)"),
                    "a smaller spec.podCidr.blockSize, which makes larger blocks, or a larger maxBlocksPerHost",
                ),
            );
            String::new()
        }
        Room::Full { needed, blocks } => {
            report.fail(
                "",
                &object,
                Finding::new(
                    "",
                    format!("{needed} blocks are needed, {blocks} there"),
                    "room for every pod, and one more for each node",
                    "choose a larger range",
                ),
            );
            String::new()
        }
    };
    report.finish(object, found)
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
