//! What the agents say: is there one on every node, and does Calico's IPAM give the addresses there?

use super::CheckName;
use crate::check::{Check, Finding, Report, agents};
use crate::pod_cidr::facts::ClusterFacts;

/// The plugin that gives addresses of pools.
const CALICO_IPAM: &str = "calico-ipam";

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
