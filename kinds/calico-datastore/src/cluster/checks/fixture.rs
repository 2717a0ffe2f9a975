//! A cluster that can be migrated.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{OWN_NAMESPACE_PERMISSIONS, PERMISSIONS};
use crate::cluster::detect::{Options, detect};
use crate::cluster::facts::{ClusterFacts, Converted, NodePod, StoreFacts, Workload};
use crate::cluster::manifest;
use crate::cluster::manifest::fixture::{daemon_set, documents};
use crate::cluster::settings::Settings;
use crate::run::decide::{ReadyV2, ReadyV3};
use engine::cluster::{DaemonSet, Node};

/// Facts of the cluster.
pub fn facts() -> ClusterFacts {
    let names = ["a", "b"];
    let before = daemon_set("v2.6.12");
    let mut all = documents();
    // Another test covers the parts that replumb omits.
    all.retain(|object| object["kind"] != "Job" && object["metadata"]["name"] != "calico-upgrade-job");
    for object in &mut all {
        let first = object.pointer_mut("/spec/template/spec/initContainers");
        if let Some(first) = first.and_then(Value::as_array_mut) {
            first.retain(|container| container["name"] != "migrate");
        }
    }
    ClusterFacts {
        nodes: names
            .iter()
            .map(|name| {
                let node = Node {
                    name: (*name).to_owned(),
                    ready: true,
                    ..Node::default()
                };
                ((*name).to_owned(), node)
            })
            .collect(),
        manifest: Some(manifest::read(&all)),
        daemon_set: Some(Workload {
            object: named("calico-node", 2),
            template: before["spec"]["template"].clone(),
            selector: before["spec"]["selector"].clone(),
        }),
        pods: names
            .iter()
            .map(|name| NodePod {
                name: format!("calico-node-{name}"),
                node: (*name).to_owned(),
                image: "calico/node:v2.6.12".to_owned(),
                ready: true,
            })
            .collect(),
        controllers: Some(Workload {
            object: named("calico-kube-controllers", 1),
            template: json!({}),
            selector: Value::Null,
        }),
        config_maps: BTreeMap::from([(
            "calico-config".to_owned(),
            BTreeMap::from([("etcd_endpoints".to_owned(), "http://10.0.0.1:2379".to_owned())]),
        )]),
        stores: Some(Ok(StoreFacts {
            etcd_v2: "3.4.23".to_owned(),
            etcd_v3: "3.4.23".to_owned(),
            calico_version: "v2.6.12".to_owned(),
            ready_v2: ReadyV2::Open,
            ready_v3: ReadyV3::Missing,
            keys_v3: 0,
            phase: None,
            lock_holder: None,
            conversion: Ok(Converted {
                keys: BTreeMap::from([("IPPool".to_owned(), 1), ("Node".to_owned(), 2)]),
                ..Converted::default()
            }),
        })),
        policies: engine::check::policies::all_bound(),
        permissions: PERMISSIONS
            .iter()
            .chain(&OWN_NAMESPACE_PERMISSIONS)
            .map(|permission| (permission.key(), true))
            .collect(),
        kubernetes_version: "v1.36.3".to_owned(),
        ..ClusterFacts::default()
    }
}

fn named(name: &str, count: i32) -> DaemonSet {
    DaemonSet {
        host_network: true,
        namespace: "kube-system".to_owned(),
        name: name.to_owned(),
        desired: count,
        ready: count,
        rolled_out: true,
        ..DaemonSet::default()
    }
}

/// Settings that are detected in the cluster.
pub fn settings(facts: &ClusterFacts) -> Settings {
    detect(&Options::default(), facts).unwrap()
}
