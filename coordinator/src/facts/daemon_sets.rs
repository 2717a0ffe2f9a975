//! `DaemonSet`s and the `ConfigMap`s they refer to.

use std::collections::{BTreeMap, BTreeSet};

use engine::cluster;
use engine::node_selection::{NodeRequirement, NodeSelection, NodeTerm};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Affinity, ConfigMap, Container, NodeSelectorRequirement};

use super::environment;

/// A `DaemonSet` as the checks see it.
pub fn daemon_set(daemon_set: &DaemonSet) -> cluster::DaemonSet {
    let metadata = &daemon_set.metadata;
    let spec = daemon_set.spec.clone().unwrap_or_default();
    let pod = spec.template.spec.unwrap_or_default();
    let status = daemon_set.status.clone().unwrap_or_default();
    let init = pod
        .init_containers
        .iter()
        .flatten()
        .map(|found| container(found, true));
    let mut config_maps = BTreeSet::new();
    for volume in pod.volumes.iter().flatten() {
        config_maps.extend(volume.config_map.as_ref().map(|source| source.name.clone()));
        for source in volume
            .projected
            .iter()
            .flat_map(|projected| projected.sources.iter().flatten())
        {
            config_maps.extend(source.config_map.as_ref().map(|source| source.name.clone()));
        }
    }
    let observed = status.observed_generation.unwrap_or(0) >= metadata.generation.unwrap_or(0);
    let updated = status.updated_number_scheduled.unwrap_or(0) >= status.desired_number_scheduled;
    cluster::DaemonSet {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        labels: metadata.labels.clone().unwrap_or_default(),
        annotations: metadata.annotations.clone().unwrap_or_default(),
        selection: node_selection(pod.node_selector, pod.affinity),
        host_network: pod.host_network.unwrap_or_default(),
        containers: init
            .chain(pod.containers.iter().map(|found| container(found, false)))
            .collect(),
        config_maps: config_maps.into_iter().collect(),
        managers: super::managers(metadata),
        desired: status.desired_number_scheduled,
        ready: status.number_ready,
        rolled_out: observed && updated,
        on_delete: spec
            .update_strategy
            .and_then(|strategy| strategy.type_)
            .as_deref()
            == Some("OnDelete"),
    }
}

/// The Nodes that a pod template selects. A requirement with an unknown operator is left out: the template then selects more Nodes,
/// and replumb takes none of them for one that the template does not want.
pub fn node_selection(labels: Option<BTreeMap<String, String>>, affinity: Option<Affinity>) -> NodeSelection {
    let required = affinity
        .and_then(|affinity| affinity.node_affinity)
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution);
    let requirements = |found: Option<Vec<NodeSelectorRequirement>>| {
        let understood = |found: NodeSelectorRequirement| {
            Some(NodeRequirement {
                key: found.key,
                operator: found.operator.parse().ok()?,
                values: found.values.unwrap_or_default(),
            })
        };
        found
            .unwrap_or_default()
            .into_iter()
            .filter_map(understood)
            .collect()
    };
    NodeSelection {
        labels: labels.unwrap_or_default(),
        terms: required.map(|required| {
            let terms = required.node_selector_terms.into_iter();
            terms
                .map(|term| NodeTerm {
                    labels: requirements(term.match_expressions),
                    fields: requirements(term.match_fields),
                })
                .collect()
        }),
    }
}

/// The texts of a `ConfigMap`, with its namespace and name.
pub fn config_map(config_map: &ConfigMap) -> ((String, String), BTreeMap<String, String>) {
    let metadata = &config_map.metadata;
    (
        (
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        ),
        config_map.data.clone().unwrap_or_default(),
    )
}

/// A container of a pod or a pod template.
pub fn container(container: &Container, init: bool) -> cluster::Container {
    cluster::Container {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        arguments: container
            .command
            .iter()
            .flatten()
            .chain(container.args.iter().flatten())
            .cloned()
            .collect(),
        environment: environment::environment(container),
        init,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(value: serde_json::Value) -> DaemonSet {
        serde_json::from_value(value).unwrap()
    }

    fn flannel() -> serde_json::Value {
        serde_json::json!({
            "metadata": {
                "namespace": "kube-flannel", "name": "kube-flannel-ds", "labels": {"app": "flannel"},
                "annotations": {"note": "x"}, "generation": 3,
                "managedFields": [
                    {"manager": "argocd-controller", "operation": "Apply"},
                    {"manager": "kubectl", "operation": "Update"},
                    {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status"},
                ],
            },
            "spec": {
                "selector": {},
                "updateStrategy": {"type": "OnDelete"},
                "template": {"spec": {
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "initContainers": [{"name": "install-cni", "image": "flannel:v0.28.4", "command": ["cp"]}],
                    "containers": [{
                        "name": "kube-flannel", "image": "flannel:v0.28.4",
                        "command": ["/opt/bin/flanneld"], "args": ["--ip-masq", "--kube-subnet-mgr"],
                        "env": [
                            {"name": "EVENT_QUEUE_DEPTH", "value": "5000"},
                            {"name": "EMPTY"},
                            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                            {"name": "BACKEND", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "backend"}}},
                        ],
                    }],
                    "volumes": [
                        {"name": "run", "hostPath": {"path": "/run/flannel"}},
                        {"name": "cfg", "configMap": {"name": "kube-flannel-cfg"}},
                    ],
                }},
            },
            "status": {
                "currentNumberScheduled": 3, "desiredNumberScheduled": 3, "numberMisscheduled": 0, "numberReady": 2,
                "observedGeneration": 3, "updatedNumberScheduled": 3,
            },
        })
    }

    #[test]
    fn every_field() {
        let found = daemon_set(&from(flannel()));
        assert_eq!(found.key(), "kube-flannel/kube-flannel-ds");
        assert_eq!(found.managers, ["argocd-controller (Apply)", "kubectl (Update)"]);
        assert_eq!(found.selection.labels["kubernetes.io/os"], "linux");
        assert_eq!(found.selection.terms, None);
        assert_eq!(found.config_maps, ["kube-flannel-cfg"]);
        assert_eq!(
            found.referred_config_maps().into_iter().collect::<Vec<_>>(),
            ["config", "kube-flannel-cfg"]
        );
        assert_eq!((found.desired, found.ready), (3, 2));
        assert!(found.rolled_out && found.on_delete);
        let [init, main] = found.containers.as_slice() else {
            panic!("{:?}", found.containers)
        };
        assert!(init.init && !main.init);
        assert_eq!(
            main.arguments,
            ["/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"]
        );
    }

    #[test]
    fn a_rollout_is_not_finished_while_the_controller_lags() {
        for (field, value) in [("observedGeneration", 2), ("updatedNumberScheduled", 2)] {
            let mut object = flannel();
            object["status"][field] = value.into();
            assert!(!daemon_set(&from(object)).rolled_out, "{field}");
        }
    }

    #[test]
    fn the_required_node_affinity_is_read() {
        let mut object = flannel();
        object["spec"]["template"]["spec"]["affinity"] = serde_json::json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{
                "matchExpressions": [
                    { "key": "node-role.kubernetes.io/edge", "operator": "DoesNotExist" },
                    { "key": "later", "operator": "NotKnownYet" },
                ],
                "matchFields": [{ "key": "metadata.name", "operator": "NotIn", "values": ["far"] }],
            }] },
        } });
        let found = daemon_set(&from(object)).selection;
        let node = |name: &str, extra: &[&str]| {
            let labels = extra.iter().map(|key| ((*key).to_owned(), String::new()));
            let os = ("kubernetes.io/os".to_owned(), "linux".to_owned());
            found.selects(name, &labels.chain([os]).collect())
        };
        assert!(node("a", &[]));
        assert!(!node("a", &["node-role.kubernetes.io/edge"]));
        assert!(!node("far", &[]));
    }

    #[test]
    fn config_map_data_is_kept() {
        let object =
            serde_json::json!({"metadata": {"namespace": "n", "name": "c"}, "data": {"net-conf.json": "{}"}});
        let (key, data) = config_map(&serde_json::from_value(object).unwrap());
        assert_eq!(key, ("n".to_owned(), "c".to_owned()));
        assert_eq!(data["net-conf.json"], "{}");
    }
}
