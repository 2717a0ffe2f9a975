//! Reports of the agents: an agent reports from every node, and Calico's IPAM assigns the addresses there.

use super::CheckName;
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report, agents, names};

/// The IPAM plugin that assigns addresses of pools.
const CALICO_IPAM: &str = "calico-ipam";
/// Custom resources with the data of Calico's IPAM. Without this check, a resource that is not served would look empty.
const RESOURCES: [&str; 3] = ["blockaffinities", "ipamblocks", "ippools"];

pub(super) fn check(facts: &ClusterFacts) -> Vec<Check> {
    let reports = |node: &str| facts.hosts.contains_key(node);
    [
        agents::missing(CheckName::AgentMissing, facts.linux_nodes(), reports),
        ipam(facts),
    ]
    .concat()
}

fn ipam(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Ipam);
    let missing: Vec<&str> = RESOURCES
        .into_iter()
        .filter(|resource| !facts.datastore.is_etcd() && !facts.calico_resources.contains(*resource))
        .collect();
    if !missing.is_empty() {
        report.fail(
            "group",
            "crd.projectcalico.org",
            Finding::new(
                "",
                format!("not served: {}", names(&missing)),
                "every resource of Calico's IPAM",
                "check that Calico is installed and uses the Kubernetes API as its datastore: without these resources, \
                 addresses in use are unknown",
            ),
        );
    }
    if facts.hosts.is_empty() {
        report.unknown(
            "the CNI configuration of",
            "every host",
            Finding::new(
                "",
                "no report of an agent",
                CALICO_IPAM,
                "see check AgentMissing: agents read the CNI configuration",
            ),
        );
    }
    for (node, host) in &facts.hosts {
        match host.ipam() {
            Ok(kind) if kind == CALICO_IPAM => {}
            Ok(kind) => report.fail(
                "Node",
                node,
                Finding::new(
                    "ipam.type of the CNI configuration",
                    kind,
                    CALICO_IPAM,
                    "move the cluster to Calico's IPAM first: with host-local, pods get addresses of the Node's podCIDR, which \
                     cannot be changed",
                ),
            ),
            Err(problem) => report.unknown(
                "Node",
                node,
                Finding::new(
                    "CNI configuration",
                    problem,
                    "a CNI configuration of Calico",
                    "check /etc/cni/net.d on that node: the container runtime uses the first file by name",
                ),
            ),
        }
    }
    report.finish(
        "the CNI configuration of every host",
        format!("{CALICO_IPAM} on all hosts ({})", facts.hosts.len()),
    )
}

#[cfg(test)]
mod tests;
