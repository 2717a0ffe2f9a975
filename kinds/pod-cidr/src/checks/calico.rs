//! Calico: calico-node is Ready on every node, and no object requests the old pool or an address of it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::CheckName;
use crate::facts::{ClusterFacts, Pin};
use crate::host::HostFacts;
use crate::settings::{Family, Settings};
use calico::calico_node;
use engine::check::{Check, Finding, Report, names};
use engine::cluster::DaemonSet;

/// Annotations by which a pod requests addresses, not a pool.
const ADDRESSES: [&str; 2] = [
    "cni.projectcalico.org/ipAddrs",
    "cni.projectcalico.org/ipAddrsNoIpam",
];

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    [nodes(settings, facts), pins(settings, facts)].concat()
}

fn nodes(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::CalicoNodes);
    let key = (
        settings.calico_daemon_set_namespace.value.clone(),
        settings.calico_daemon_set_name.value.clone(),
    );
    let name = format!("{}/{}", key.0, key.1);
    let Some(set) = facts.daemon_sets.get(&key) else {
        report.fail(
            "DaemonSet",
            &name,
            Finding::new(
                "",
                "missing",
                "Calico's DaemonSet",
                "install calico-node as a DaemonSet: a change of its pools needs calico-node on every node",
            ),
        );
        return report.finish("Calico", "");
    };
    ready(set, facts, &mut report);
    let image = calico_node(set).map_or("an unknown image", |container| &container.image);
    report.finish(
        format!("DaemonSet {name}"),
        format!("{} of {} pods Ready, image {image}", set.ready, set.desired),
    )
}

/// A node whose calico-node is not Ready, or has another version, does not use the new pool as the other nodes do.
fn ready(set: &DaemonSet, facts: &ClusterFacts, report: &mut Report) {
    let nodes = facts.linux_nodes().count();
    let wanted = usize::try_from(set.desired).unwrap_or_default();
    let (found, fix) = if wanted < nodes {
        (
            format!("pods for {wanted} of {nodes} nodes"),
            "correct its node selector and tolerations: a node without calico-node cannot use the new pool"
                .to_owned(),
        )
    } else if !set.rolled_out || set.ready < set.desired {
        let rolling = if set.rolled_out {
            ""
        } else {
            ", rollout in progress: not every pod has the newest template"
        };
        (
            format!("{} of {} pods Ready{rolling}", set.ready, set.desired),
            format!(
                "check `kubectl rollout status daemonset/{} -n {}` and its pods; with updateStrategy OnDelete, delete the pods \
                 of the older template one by one",
                set.name, set.namespace
            ),
        )
    } else {
        return;
    };
    let needed = "calico-node Ready on every node, in one version";
    report.fail("DaemonSet", set.key(), Finding::new("", found, needed, fix));
}

/// Objects that request the old pool, or an address in no remaining pool: their pods would not start once the pool is closed,
/// or would get the same address again.
fn pins(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Pins);
    let stay = settings.remaining_ranges(&settings.to.value, facts.ranges());
    for pin in &facts.pins {
        match requested(&pin.value) {
            Ok(requested) if requested.iter().any(|text| is_of_old(pin, text, settings, &stay)) => report.fail(
                "",
                &pin.object,
                Finding::new(
                    &pin.annotation,
                    pin.value.clone(),
                    "nothing of the old pool, and no address outside all IPPools",
                    "remove the annotation, also from the pod template: once the old pool is closed, such a pod does not start \
                     (Calico: \"does not exist, or is not enabled\"), or gets the same address again",
                ),
            ),
            Ok(_) => {}
            Err(problem) => report.unknown(
                "",
                &pin.object,
                Finding::new(
                    &pin.annotation,
                    format!("{} ({problem})", pin.value),
                    r#"a list in JSON, such as ["10.200.0.0/16"]"#,
                    "correct or remove the annotation, so that the requested pool is known",
                ),
            ),
        }
    }
    for (node, host) in &facts.hosts {
        conflist(node, host, settings, &mut report);
    }
    report.finish(
        format!(
            "annotations of pods and namespaces, and the CNI configuration of hosts ({})",
            facts.hosts.len()
        ),
        "no request for the old pool or an address of it",
    )
}

/// Pools in the CNI configuration of a host, which apply to all its pods.
fn conflist(node: &str, host: &HostFacts, settings: &Settings, report: &mut Report) {
    let part = "CNI configuration, ipam.ipv4_pools / ipv6_pools";
    let fix = "remove the pools from the source of the CNI configuration (CNI_NETWORK_CONFIG, in ConfigMap calico-config), and \
               restart calico-node; then Calico uses all open pools";
    match host.pins(&settings.from.value) {
        Ok([]) => {}
        Ok(pools) => report.fail(
            "Node",
            node,
            Finding::new(part, names(pools), "no pool by name", fix),
        ),
        // The check of Calico's IPAM reports a configuration that cannot be parsed.
        Err(_) if host.ipam().is_err() => {}
        Err(problem) => report.unknown("Node", node, Finding::new(part, problem, "no pool by name", fix)),
    }
}

/// The pools or addresses of an annotation: a JSON list of strings, as Calico reads it. An empty value requests nothing.
fn requested(value: &str) -> Result<BTreeSet<String>, serde_json::Error> {
    if value.is_empty() {
        return Ok(BTreeSet::new());
    }
    serde_json::from_str(value)
}

/// Whether this part of a pin depends on the old pool: its name, its range, an address of it, or an address outside all
/// remaining pools, from which the migration would move the pod and which it would get again.
fn is_of_old(pin: &Pin, text: &str, settings: &Settings, stay: &[IpNet]) -> bool {
    let from = settings.from.value;
    if let Ok(address) = text.parse::<IpAddr>() {
        let is_in_no_pool = Family::of(&IpNet::from(address)) == Family::of(&from)
            && ADDRESSES.contains(&pin.annotation.as_str())
            && !stay.iter().any(|range| range.contains(&address));
        return is_in_no_pool || from.contains(&address);
    }
    text == settings.old_pool.value || text.parse::<IpNet>().is_ok_and(|range| from.contains(&range))
}

#[cfg(test)]
mod tests;
