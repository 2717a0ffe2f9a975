//! Calico's own side: does it run everywhere, does its IPAM give the addresses, does anybody ask for one by name?

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

/// Annotations by which a pod says its addresses, not a pool.
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
                "not there",
                "Calico's DaemonSet",
                "is Calico installed in this cluster, and as a DaemonSet? A change of its pools needs calico-node on every node",
            ),
        );
        return report.finish("Calico", "");
    };
    ready(set, facts, &mut report);
    let image = calico_node(set).map_or("an unknown image", |container| &container.image);
    report.finish(
        format!("DaemonSet {name}"),
        format!("{} pods Ready, of {image}", set.ready),
    )
}

/// A node whose calico-node is away, or another version, does not learn of the new pool as the others do.
fn ready(set: &DaemonSet, facts: &ClusterFacts, report: &mut Report) {
    let nodes = facts.linux_nodes().count();
    let wanted = usize::try_from(set.desired).unwrap_or_default();
    let (found, fix) = if wanted < nodes {
        (
            format!("it has a pod on {wanted} of {nodes} nodes"),
            "see its node selector and tolerations: a node without calico-node does not learn of the new pool".to_owned(),
        )
    } else if !set.rolled_out || set.ready < set.desired {
        let rolling = if set.rolled_out {
            ""
        } else {
            ", in the middle of a roll: not every one of them is of its newest template"
        };
        (
            format!("{} of {} pods Ready{rolling}", set.ready, set.desired),
            format!(
                "see `kubectl rollout status daemonset/{} -n {}` and its pods there; with updateStrategy OnDelete delete those of the \
                 older template, one by one",
                set.name, set.namespace
            ),
        )
    } else {
        return;
    };
    let needed = "calico-node Ready on every node, in one version";
    report.fail("DaemonSet", set.key(), Finding::new("", found, needed, fix));
}

/// Objects that ask for the old pool, or for an address that is in no pool that stays: their pods would not start once it is
/// closed, or come back as they were.
fn pins(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Pins);
    let stay = settings.stay(&settings.to.value, facts.ranges());
    for pin in &facts.pins {
        match asked(&pin.value) {
            Ok(asked) if asked.iter().any(|text| is_of_old(pin, text, settings, &stay)) => report.fail(
                "",
                &pin.object,
                Finding::new(
                    &pin.annotation,
                    pin.value.clone(),
                    "nothing of the old pool, and no address outside of every IPPool",
                    "take the annotation away, from the template that makes the pod too: once the old pool is closed such a pod is not \
                     started again (Calico: \"does not exist, or is not enabled\"), or comes back with the same address",
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
                    "correct the annotation, or take it away: nobody knows which pool it asks for",
                ),
            ),
        }
    }
    for (node, host) in &facts.hosts {
        conflist(node, host, settings, &mut report);
    }
    report.finish(
        format!(
            "annotations of pods and namespaces, and the CNI configuration of {} hosts",
            facts.hosts.len()
        ),
        "no pool and no address of the old range by name",
    )
}

/// Pools by name for every pod of a host.
fn conflist(node: &str, host: &HostFacts, settings: &Settings, report: &mut Report) {
    let part = "CNI configuration, ipam.ipv4_pools / ipv6_pools";
    let fix = "take the pools out of the CNI configuration where it is written (CNI_NETWORK_CONFIG, in ConfigMap calico-config), and roll \
               calico-node; then Calico takes every open pool";
    match host.pins(&settings.from.value) {
        Ok([]) => {}
        Ok(pools) => report.fail(
            "Node",
            node,
            Finding::new(part, names(pools), "no pool by name", fix),
        ),
        // Without a configuration that is understood the check of Calico's IPAM says so.
        Err(_) if host.ipam().is_err() => {}
        Err(problem) => report.unknown("Node", node, Finding::new(part, problem, "no pool by name", fix)),
    }
}

/// What an annotation asks for: a list of texts in JSON, as Calico reads it. An empty one asks for nothing.
fn asked(value: &str) -> Result<BTreeSet<String>, serde_json::Error> {
    if value.is_empty() {
        return Ok(BTreeSet::new());
    }
    serde_json::from_str(value)
}

/// Whether this part of a pin does not outlive the old pool: its name, its range, an address of it, or an address that the
/// migration would lead the pod away from and that it would get again.
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
#[path = "calico_tests.rs"]
mod tests;
