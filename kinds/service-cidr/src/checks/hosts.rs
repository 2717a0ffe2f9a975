//! Reports of the agents: an agent reports from every node, and kube-proxy runs there in a supported mode.

use super::CheckName;
use crate::facts::ClusterFacts;
use crate::host::{HostFacts, ProxyMode};
use crate::ranges::joined;
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
                if !facts.recognizes_pods(host) {
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
                        "change kube-proxy to mode nftables first, node by node: in mode ipvs an address and its connections \
                         are dropped before the helper has the address",
                    ),
                );
                continue;
            }
            Found::Absent => (
                "no rules of kube-proxy".to_owned(),
                "use kube-proxy: other proxies (Cilium, kube-router, …) are not supported, because their behavior during the \
                 exchange is untested",
            ),
            Found::Malformed(what) => (what.clone(), "check the agent's log on that node"),
        };
        report.unknown("Node", node, Finding::new("kube-proxy", found, needed, fix));
    }
    report.finish(
        "kube-proxy on every node",
        format!(
            "mode iptables or nftables; bridges have externalTrafficPolicy {}",
            settings.bridge_policy.value.as_str()
        ),
    )
}

/// At the end every pod that has received an old address restarts. The agents must be able to find these pods.
fn pods_told(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::PodsTold);
    for (node, host) in &facts.hosts {
        let Found::Malformed(what) = &host.pods_with_source_addresses else {
            continue;
        };
        report.unknown(
            "Node",
            node,
            Finding::new(
                "addresses that its pods have received",
                what.clone(),
                "environment and resolv.conf of every pod, readable by the agent",
                "run `kubectl apply --server-side -k deploy/service-cidr`, which gives the agents the needed capability",
            ),
        );
    }
    report.finish("addresses that pods have received", "readable on every node")
}

/// A bridge with policy `Cluster` masquerades connections that kube-proxy does not recognize as those of pods.
fn unknown_pods(host: &HostFacts) -> Finding<'static> {
    let found = match &host.local_traffic {
        Found::Present(by) if by.ranges.is_empty() => "does not recognize connections of pods".to_owned(),
        Found::Present(by) => format!("recognizes only pods of {}", joined(&by.ranges)),
        Found::Absent => {
            "unknown whether it recognizes connections of pods: no rules of a Service".to_owned()
        }
        Found::Malformed(what) => format!("unknown whether it recognizes connections of pods: {what}"),
    };
    Finding::new(
        "kube-proxy",
        found,
        "clusterCIDR, or detectLocalMode, that covers all pods",
        "set clusterCIDR in kube-proxy's configuration and restart kube-proxy. Otherwise, for some seconds per exchange, \
         connections of pods have the address of their node as source, and NetworkPolicies that allow only pods refuse them",
    )
}
