//! What the agents say: is there one on every node, and how does kube-proxy work there?

use super::CheckName;
use crate::facts::ClusterFacts;
use crate::host::{HostFacts, ProxyMode};
use crate::ranges::listed;
use crate::settings::Settings;
use engine::check::{Check, Finding, Report, agents};
use engine::found::Found;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let reports = |node: &str| facts.hosts.contains_key(node);
    [
        agents::missing(CheckName::AgentMissing, facts.linux_nodes(), reports),
        kube_proxy(settings, facts),
        pods_told(facts),
    ]
    .concat()
}

fn kube_proxy(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::KubeProxy);
    let needed = "rules of kube-proxy in mode iptables or nftables";
    for (node, host) in &facts.hosts {
        let (found, fix) = match &host.proxy_mode {
            Found::Present(ProxyMode::Iptables | ProxyMode::Nftables) => {
                if !facts.knows_pods(host) {
                    report.warn("Node", node, unknown_pods(host));
                }
                continue;
            }
            Found::Present(ProxyMode::Ipvs) => {
                report.fail(
                    "Node",
                    node,
                    Finding::new(
                        "kube-proxy",
                        "mode ipvs",
                        needed,
                        "in mode ipvs each change of a Service is made by itself: an address is dropped before the other has it, and \
                         connections with it. Let kube-proxy work by nftables first (mode: nftables, node by node)",
                    ),
                );
                continue;
            }
            Found::Absent => (
                "no rules of kube-proxy".to_owned(),
                "another proxy than kube-proxy (Cilium, kube-router, …) is not supported: nobody has measured what it does while addresses \
                 are exchanged",
            ),
            Found::Malformed(what) => (what.clone(), "see the agent's log on that node"),
        };
        report.unknown("Node", node, Finding::new("kube-proxy", found, needed, fix));
    }
    report.finish(
        "kube-proxy on every node",
        format!(
            "by iptables or nftables; bridges have externalTrafficPolicy {}",
            settings.bridge_policy.value.as_str()
        ),
    )
}

/// At the end every pod that was told an address that is left is started again: which ones, has to be known then.
fn pods_told(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::PodsTold);
    for (node, host) in &facts.hosts {
        let Found::Malformed(what) = &host.carriers else {
            continue;
        };
        report.unknown(
            "Node",
            node,
            Finding::new(
                "what its pods were told",
                what.clone(),
                "environment and resolv.conf of every pod, read by the agent",
                "`kubectl apply --server-side -k deploy/service-cidr` gives the agents the capability to read them",
            ),
        );
    }
    report.finish("what pods were told", "it can be read on every node")
}

/// Whoever is not known as a pod is masqueraded by a bridge that leads everybody everywhere.
fn unknown_pods(host: &HostFacts) -> Finding<'static> {
    let found = match &host.local_traffic {
        Found::Present(by) if by.ranges.is_empty() => "it knows no connection as a pod's".to_owned(),
        Found::Present(by) => format!("it knows pods by {}", listed(&by.ranges)),
        Found::Absent => "no Service by which to see whether it knows pods' connections".to_owned(),
        Found::Malformed(what) => format!("it cannot be seen whether it knows pods' connections: {what}"),
    };
    Finding::new(
        "kube-proxy",
        found,
        "clusterCIDR, or detectLocalMode, that knows every pod",
        "for the seconds of each exchange Services see pods with their node's address, and a NetworkPolicy that allows by pods refuses them. \
         Set clusterCIDR in kube-proxy's configuration and start kube-proxy again, or know that nobody minds",
    )
}
