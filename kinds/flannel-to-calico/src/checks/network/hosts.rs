//! The hosts of nodes on flannel.

use engine::check::{Finding, Report};
use engine::cluster::Node;

use crate::detect::flannel_nodes;
use crate::facts::{ClusterFacts, HostFacts};

/// Hosts of nodes on flannel that were reported. The check `AgentMissing` refuses the others.
pub(in crate::checks) fn reported(facts: &ClusterFacts) -> Vec<(&Node, &HostFacts)> {
    flannel_nodes(facts)
        .filter_map(|node| Some((node, facts.hosts.get(&node.name)?)))
        .collect()
}

/// Hosts of nodes on flannel. A node without host facts is a finding of the check.
pub(in crate::checks) fn hosts<'facts>(
    facts: &'facts ClusterFacts,
    report: &mut Report,
) -> Vec<(&'facts Node, &'facts HostFacts)> {
    let mut found = Vec::new();
    for node in flannel_nodes(facts) {
        match facts.hosts.get(&node.name) {
            Some(host) => found.push((node, host)),
            None => report.unknown(
                "Node",
                &node.name,
                Finding::new(
                    "host",
                    "no report from the agent",
                    "the facts of the host",
                    "see check AgentMissing",
                ),
            ),
        }
    }
    found
}
