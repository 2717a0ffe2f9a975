//! Calico's own side: does it run everywhere, does its IPAM give the addresses, does anybody ask for one by name?

use std::collections::BTreeSet;

use super::CheckName;
use crate::calico::calico_node;
use crate::check::{Check, Finding, Report, names};
use crate::pod_cidr::facts::ClusterFacts;
use crate::pod_cidr::settings::Settings;

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
                "is Calico installed in this cluster? A change of its pools needs its IPAM",
            ),
        );
        return report.finish("Calico", "");
    };
    if !set.rolled_out || set.ready < set.desired {
        report.fail(
            "DaemonSet",
            &name,
            Finding::new(
                "",
                format!("{} of {} pods Ready{}", set.ready, set.desired, if set.rolled_out { "" } else { ", in the middle of a roll" }),
                "calico-node Ready on every node, in one version",
                "see its pods: `kubectl describe pods -l k8s-app=calico-node`; a node whose calico-node is away does not learn of the new pool",
            ),
        );
    }
    let image = calico_node(set).map_or("an unknown image", |container| &container.image);
    report.finish(
        format!("DaemonSet {name}"),
        format!("{} pods Ready, of {image}", set.ready),
    )
}

/// Objects that ask for the old pool, or for an address of it: their pods would not start once it is closed.
fn pins(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Pins);
    let old = [settings.old_pool.value.as_str(), &settings.from.value.to_string()].map(str::to_owned);
    for pin in &facts.pins {
        let asks_for: BTreeSet<String> = texts(&pin.value);
        let of_old_pool = asks_for.iter().any(|text| old.contains(text));
        let address_of_old = asks_for.iter().any(|text| {
            text.parse::<std::net::IpAddr>()
                .is_ok_and(|address| settings.from.value.contains(&ipnet::IpNet::from(address)))
        });
        if of_old_pool || address_of_old {
            report.fail(
                "",
                &pin.object,
                Finding::new(
                    &pin.annotation,
                    pin.value.clone(),
                    "nothing of the old pool",
                    "once that pool is closed such a pod is not started again (Calico: \"does not exist, or is not enabled\"): take the \
                     annotation away, from the template that makes the pod too",
                ),
            );
        }
    }
    for (node, host) in &facts.hosts {
        // One that cannot be read is another check's.
        let Ok(pins @ [_, ..]) = host.pins(&settings.from.value) else {
            continue;
        };
        report.fail(
            "Node",
            node,
            Finding::new(
                "CNI configuration, ipam.ipv4_pools / ipv6_pools",
                names(pins),
                "no pool by name",
                "take the pools out of CNI_NETWORK_CONFIG (ConfigMap calico-config) and roll calico-node; then Calico takes every open \
                 pool",
            ),
        );
    }
    report.finish(
        "annotations of pods and namespaces, and the CNI configuration of every host",
        "no pool and no address of the old range by name",
    )
}

/// Every text of a JSON list, or the text itself.
fn texts(value: &str) -> BTreeSet<String> {
    serde_json::from_str::<Vec<String>>(value).map_or_else(
        |_| BTreeSet::from([value.to_owned()]),
        |list| list.into_iter().collect(),
    )
}
