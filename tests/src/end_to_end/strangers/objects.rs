//! The stranger's objects, as manifests.

use serde_json::{Value, json};

use crate::cluster::Images;

/// The namespace of the stranger.
pub const NAMESPACE: &str = "stranger";

/// The workload that floods.
pub const FLOODER: &str = "flooder";

/// The user name of the coordinator.
const COORDINATOR: &str = "system:serviceaccount:replumb-system:replumb-coordinator";

/// The stranger's namespace.
pub fn namespace() -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } })
}

/// A pod that requests this amount, which no node has.
pub fn pod_that_asks(name: &str, resource: &str, amount: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "containers": [{
            "name": "c", "image": "lab/nothing", "imagePullPolicy": "Never", "resources": { "requests": { resource: amount } },
        }] },
    })
}

/// A pod with annotations of 200 KiB; the API server accepts 256 KiB.
pub fn large_pod() -> Value {
    let mut pod = pod_that_waits("large");
    let annotations = (0..50).map(|number| {
        (
            format!("stranger.example/{number}"),
            Value::from("x".repeat(4096)),
        )
    });
    pod["metadata"]["annotations"] = Value::Object(annotations.collect());
    pod
}

/// A pod that no node can run.
pub fn pod_that_waits(name: &str) -> Value {
    let mut pod = pod_that_asks(name, "cpu", "1m");
    pod["spec"]["nodeSelector"] = json!({ "stranger.example/nowhere": "true" });
    pod
}

/// A pod, a Service and a `ConfigMap` with labels of replumb.
pub fn labelled() -> Value {
    let labels = json!({
        "app.kubernetes.io/name": "replumb-agent", "app.kubernetes.io/component": "traffic",
        "app.kubernetes.io/part-of": "replumb",
        "replumb.dev/component": "probe", "replumb.dev/address": "10.96.0.1", "replumb.dev/migration": "demo",
    });
    let mut pod = pod_that_waits("labelled");
    pod["metadata"]["labels"] = labels.clone();
    let metadata = json!({ "name": "labelled", "namespace": NAMESPACE, "labels": labels });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": [{ "port": 80 }] } });
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {} });
    list(&[pod, service, map])
}

/// A Deployment whose pods have its name as their label.
fn deployment(name: &str, replicas: u32, pod: &Value) -> Value {
    let labels = json!({ "app": name });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": pod },
        },
    })
}

/// Two hundred pods that no node can run.
pub fn crowd() -> Value {
    deployment("crowd", 200, &pod_that_waits("")["spec"])
}

/// A Deployment with one pod on this node, which tolerates the cordon.
pub fn kept(name: &str, node: &str) -> Value {
    let pod = json!({
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": { "kubernetes.io/hostname": node },
        "tolerations": [{ "operator": "Exists", "effect": "NoSchedule" }],
        "containers": [{
            "name": "c", "image": Images::default().busybox, "imagePullPolicy": "Never",
            "command": ["sh", "-c", "trap exit TERM; while true; do sleep 1; done"],
        }],
    });
    deployment(name, 1, &pod)
}

/// The same with a finalizer on its pod, which no program removes.
pub fn endless(name: &str, node: &str) -> Value {
    let mut deployment = kept(name, node);
    deployment["spec"]["template"]["metadata"]["finalizers"] = json!(["stranger.example/never"]);
    deployment
}

/// A budget for every pod of the namespace, which allows no disruption.
pub fn budget_over_everything() -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "everything", "namespace": NAMESPACE },
        "spec": { "maxUnavailable": 0, "selector": {} },
    })
}

/// A policy that denies every write of the coordinator to one Node.
pub fn policy_over(node: &str) -> Value {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": "stranger" },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
                "resources": ["nodes"], "resourceNames": [node],
            }] },
            "validations": [{
                "expression": format!("request.userInfo.username != '{COORDINATOR}'"),
                "message": format!("the stranger's policy freezes {node}"),
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "stranger" },
        "spec": { "policyName": "stranger", "validationActions": ["Deny"] },
    });
    list(&[policy, binding])
}

/// A webhook for each eviction in the namespace, which no program serves.
pub fn eviction_webhook() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "stranger" },
        "webhooks": [{
            "name": "evictions.stranger.example", "failurePolicy": "Fail", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
            "clientConfig": { "service": { "namespace": NAMESPACE, "name": "nothing", "path": "/", "port": 443 } },
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": NAMESPACE } },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"] }],
        }],
    })
}

/// A workload that continuously sends datagrams to these addresses, at the port of replumb's pods, and holds idle connections to
/// the listeners of agents and coordinator on these hosts.
pub fn flooder(pods: &[String], hosts: &[String]) -> Value {
    let datagrams = pods
        .iter()
        .map(|address| format!("--datagrams-to={address}:9812"));
    let connections = hosts
        .iter()
        .flat_map(|host| ["9810", "9811"].map(|port| format!("--connections-to={host}:{port}")));
    let to_pods = pods
        .iter()
        .map(|address| format!("--connections-to={address}:9812"));
    let arguments: Vec<String> = std::iter::once("flood".to_owned())
        .chain(datagrams)
        .chain(connections)
        .chain(to_pods)
        .collect();
    let pod = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "c", "image": Images::default().traffic, "imagePullPolicy": "Never", "args": arguments,
            "resources": { "limits": { "cpu": "200m", "memory": "64Mi" }, "requests": { "cpu": "10m", "memory": "8Mi" } },
        }],
    });
    deployment(FLOODER, 1, &pod)
}

/// Several objects as one manifest.
pub fn list(items: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}
