//! The final state that must follow every crash, read without replumb.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::cluster::pods::{self, FLANNEL_NAMESPACE};
use crate::demo::host::Host;
use crate::demo::same::{Comparison, without_pods};
use crate::demo::untouched::{self, Fingerprint};

/// Every host by node.
pub type Hosts = BTreeMap<String, Host>;

/// Reads every host.
pub async fn hosts(cluster: &Cluster) -> Result<Hosts> {
    let mut all = Hosts::new();
    for node in cluster.node_names().await {
        let host = Host::observe(cluster, &node).await?;
        all.insert(node, host);
    }
    Ok(all)
}

/// Every object that a migration writes, without the fields that count its changes.
pub async fn objects(cluster: &Cluster) -> Result<Fingerprint> {
    let mut found = untouched::fingerprint(cluster).await?;
    for object in found.values_mut() {
        let annotations = object.get_mut("annotations").and_then(Value::as_object_mut);
        if let Some(annotations) = annotations {
            annotations.remove("deprecated.daemonset.template.generation");
        }
    }
    Ok(found)
}

/// Pods by namespace and name, with their UID and restart counts. Pods of the old network and of replumb are omitted:
/// the former end, and the latter are killed on purpose.
pub async fn pods(cluster: &Cluster) -> Result<BTreeMap<String, (String, i32)>> {
    let api: Api<Pod> = Api::all(cluster.api().client());
    let list = api.list(&ListParams::default()).await.context("list pods")?;
    let others = list.items.into_iter().filter(|pod| {
        let namespace = pod.namespace().unwrap_or_default();
        namespace != FLANNEL_NAMESPACE && namespace != api::names::NAMESPACE
    });
    Ok(others
        .map(|pod| {
            let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
            (name, (pod.uid().unwrap_or_default(), pods::restarts(&pod)))
        })
        .collect())
}

/// Pods that were moved or restarted since then.
pub fn moved(
    before: &BTreeMap<String, (String, i32)>,
    after: &BTreeMap<String, (String, i32)>,
) -> Vec<String> {
    before
        .iter()
        .filter_map(|(name, was)| match after.get(name) {
            None => Some(format!("pod {name} was deleted")),
            Some(is) if is.0 != was.0 => Some(format!("pod {name} was recreated")),
            Some(is) if is.1 != was.1 => Some(format!("pod {name}: {} containers restarted", is.1 - was.1)),
            Some(_) => None,
        })
        .collect()
}

/// The differences between a host on Calico and the same host after a migration without crashes.
pub fn differences_on_calico(undisturbed: &BTreeSet<String>, host: &Host) -> Vec<String> {
    Comparison::of_lines(undisturbed, &without_pods(&host.everything())).different
}

/// The differences between a host after the rollback and before the migration.
pub fn differs_back(before: &Host, after: &Host) -> Vec<String> {
    Comparison::of(before, after).different
}

/// The problems of a host on Calico that lost its power on the way forward: the pods of flannel have ended with it.
pub fn problems_on_calico_after_power_failure(host: &Host) -> Vec<String> {
    let needed = ["link vxlan.calico", "file 10-calico.conflist"];
    wrong(("flannel", &host.flannel()), &host.calico(), &needed)
}

/// The problems of a host on flannel that lost its power on its way forward or back.
pub fn problems_on_flannel_after_power_failure(host: &Host) -> Vec<String> {
    let needed = [
        "link flannel.1",
        "file 10-flannel.conflist",
        "file /run/flannel/subnet.env",
    ];
    wrong(("Calico", &host.calico()), &host.flannel(), &needed)
}

/// The problem of a node that could not be read.
pub fn missing_node(node: &str) -> String {
    format!("node {node} is not in the lab any more")
}

/// Remains of the removed network, and missing settings of the present network.
fn wrong((gone, left): (&str, &[String]), there: &[String], needed: &[&str]) -> Vec<String> {
    let left = left.iter().map(|line| format!("remains of {gone}: {line}"));
    let missing = needed
        .iter()
        .filter(|needed| !there.iter().any(|line| line == **needed))
        .map(|needed| format!("not there: {needed}"));
    left.chain(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_pod_is_reported_and_a_new_pod_is_not() {
        let pod = |name: &str, uid: &str, restarts| (name.to_owned(), (uid.to_owned(), restarts));
        let before = BTreeMap::from([
            pod("a", "1", 0),
            pod("b", "2", 0),
            pod("c", "3", 1),
            pod("d", "4", 0),
        ]);
        let after = BTreeMap::from([
            pod("a", "1", 0),
            pod("b", "9", 0),
            pod("c", "3", 2),
            pod("e", "5", 7),
        ]);
        assert_eq!(
            moved(&before, &after),
            [
                "pod b was recreated",
                "pod c: 1 containers restarted",
                "pod d was deleted"
            ]
        );
    }
}
