//! Manifests of calico-node for tests.

use serde_json::{Value, json};

/// The `DaemonSet` of calico-node in a version, with its environment.
pub fn daemon_set(version: &str) -> Value {
    let of_map = |name: &str, key: &str| json!({ "name": name, "valueFrom": { "configMapKeyRef": { "name": "calico-config", "key": key } } });
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "namespace": "kube-system", "name": "calico-node" },
        "spec": {
            "selector": { "matchLabels": { "k8s-app": "calico-node" } },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
            "template": {
                "metadata": { "labels": { "k8s-app": "calico-node" } },
                "spec": {
                    "initContainers": [
                        { "name": "migrate", "image": "calico/upgrade:v1.0.5" },
                        { "name": "install-cni", "image": format!("calico/cni:{version}") },
                    ],
                    "containers": [{ "name": "calico-node", "image": format!("calico/node:{version}"),
                        "env": [of_map("ETCD_ENDPOINTS", "etcd_endpoints")] }],
                },
            },
        },
    })
}

/// A manifest as kops ships it.
pub fn documents() -> Vec<Value> {
    vec![
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "kube-system", "name": "calico-config" },
            "data": { "etcd_endpoints": "http://10.0.0.1:2379" } }),
        Value::Null,
        daemon_set("v3.8.9"),
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "namespace": "kube-system", "name": "calico-kube-controllers" },
            "spec": { "replicas": 1, "template": { "spec": { "hostNetwork": true,
                "initContainers": [{ "name": "migrate", "image": "quay.io/calico/upgrade:v1.0.5" }],
                "containers": [{ "name": "calico-kube-controllers", "image": "calico/kube-controllers:v3.8.9" }] } } } }),
        json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "namespace": "kube-system", "name": "calico-complete-upgrade-v331" },
            "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": "calico/upgrade:v1.0.5" }] } } } }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "namespace": "kube-system", "name": "calico-upgrade-job" } }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "namespace": "kube-system", "name": "calico-node" } }),
    ]
}
