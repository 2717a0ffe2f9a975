//! What the agents say: is there one on every node, and does Calico's IPAM give the addresses there?

use super::CheckName;
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report, agents, names};

/// The plugin that gives addresses of pools.
const CALICO_IPAM: &str = "calico-ipam";
/// What it keeps its addresses in, and this migration reads and writes. What nobody serves looks as if there were none.
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
                "is Calico installed, and does it keep its objects in the Kubernetes API? Nobody could say otherwise who has an address",
            ),
        );
    }
    if facts.hosts.is_empty() {
        report.unknown(
            "the CNI configuration of",
            "every host",
            Finding::new(
                "",
                "no host was looked at",
                CALICO_IPAM,
                "see check AgentMissing: agents read it",
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
                    "pods there get addresses of the Node's podCIDR (host-local), which cannot be changed on a living Node: this migration \
                     does not work for it. Move the cluster to Calico's IPAM first",
                ),
            ),
            Err(problem) => report.unknown(
                "Node",
                node,
                Finding::new(
                    "CNI configuration",
                    problem,
                    "a CNI configuration of Calico's",
                    "see /etc/cni/net.d on that node: the first file by name is what the runtime uses",
                ),
            ),
        }
    }
    report.finish(
        "the CNI configuration of every host",
        format!("{CALICO_IPAM} gives the addresses on {} hosts", facts.hosts.len()),
    )
}

#[cfg(test)]
#[path = "hosts_tests.rs"]
mod tests;
