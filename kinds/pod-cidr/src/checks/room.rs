//! Whether the new pool has enough addresses for the pods of every node.

use std::collections::BTreeMap;

use super::CheckName;
use crate::capacity::{BLOCKS_PER_NODE, Capacity, Need, capacity};
use crate::facts::ClusterFacts;
use crate::settings::Settings;
use engine::check::{Check, Finding, Report};
use engine::words::number;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::InsufficientAddresses);
    let (to, size) = (settings.to.value, settings.block_size.value);
    let mut pods_of: BTreeMap<&str, u64> = BTreeMap::new();
    for pod in facts.pods.iter().filter(|pod| pod.uses_pod_network()) {
        *pods_of.entry(pod.node.as_str()).or_default() += 1;
    }
    let of_nodes: Vec<u64> = facts
        .linux_nodes()
        .map(|node| {
            let pods = pods_of.get(node.name.as_str()).copied().unwrap_or_default();
            // One for the tunnel, and one for the traffic pod of replumb.
            pods.saturating_add(2)
        })
        .collect();
    let need = Need {
        of_nodes: &of_nodes,
        blocks_per_node: facts.ipam.blocks_per_node.unwrap_or(BLOCKS_PER_NODE),
        strict: facts.ipam.strict_affinity,
    };
    let object = format!("range {to}, blocks of /{size}");
    let found = match capacity(&to, size, &need) {
        Capacity::Enough {
            needed,
            blocks: u64::MAX,
        } => format!("needs {needed} of 2^64 or more blocks"),
        Capacity::Enough { needed, blocks } => format!("needs {needed} of {blocks} blocks"),
        Capacity::Borrowed { needed, blocks } => {
            report.warn(
                "",
                &object,
                Finding::new(
                    "",
                    format!("needs {}, has {blocks}", number(needed, "block", "blocks")),
                    "one block per node",
                    "choose a larger range or a larger spec.podCidr.blockSize: each borrowed address is a separate route on \
                     every node",
                ),
            );
            String::new()
        }
        Capacity::NodeTooLarge { needed, allowed } => {
            report.fail(
                "",
                &object,
                Finding::new(
                    "",
                    format!("one node needs {}", number(needed, "block", "blocks")),
                    format!("at most {allowed} (IPAMConfig maxBlocksPerHost)"),
                    "set a smaller spec.podCidr.blockSize, for larger blocks, or a larger maxBlocksPerHost",
                ),
            );
            String::new()
        }
        Capacity::Full { needed, blocks } => {
            report.fail(
                "",
                &object,
                Finding::new(
                    "",
                    format!("needs {}, has {blocks}", number(needed, "block", "blocks")),
                    "one address per pod, and two more per node",
                    "choose a larger range",
                ),
            );
            String::new()
        }
    };
    report.finish(object, found)
}

#[cfg(test)]
mod tests;
