use serde_json::{Value, json};

use super::*;

fn node(name: &str, version: &str, change: impl FnOnce(&mut Value)) -> Node {
    let mut object = json!({
        "metadata": { "name": name, "uid": name, "resourceVersion": version, "managedFields": [{ "manager": "kubelet" }] },
        "status": {
            "conditions": [
                { "type": "MemoryPressure", "status": "False" },
                { "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z" },
            ],
            "images": [{ "names": ["a"], "sizeBytes": 1 }],
            "capacity": { "cpu": "4" },
            "allocatable": { "cpu": "4" },
        },
    });
    change(&mut object);
    serde_json::from_value(object).unwrap()
}

#[test]
fn unused_fields_are_dropped() {
    let store = Store::of([node("a", "1", |_| {})]);
    let [kept] = store.state().try_into().unwrap();
    assert_eq!(kept.metadata.managed_fields, None);
    let status = kept.status.as_ref().unwrap();
    assert_eq!((&status.images, &status.capacity), (&None, &None));
    assert!(status.allocatable.is_some());
    assert!(facts::nodes::is_ready(&kept));
    assert_eq!(status.conditions.as_ref().unwrap().len(), 1);
}

#[test]
fn a_heartbeat_wakes_no_pass_and_updates_the_version() {
    let store = Store::of([node("a", "1", |_| {})]);
    let beat = |object: &mut Value| {
        object["status"]["conditions"][1]["lastHeartbeatTime"] = json!("2026-01-01T00:00:10Z");
    };
    assert!(!store.apply(Event::Apply(node("a", "2", beat))));
    // A patch of the Node needs its current version.
    assert_eq!(store.state()[0].metadata.resource_version.as_deref(), Some("2"));
    let cordon = |object: &mut Value| object["spec"] = json!({ "unschedulable": true });
    assert!(store.apply(Event::Apply(node("a", "3", cordon))));
}

#[test]
fn a_new_list_shares_known_objects() {
    let store = Store::of([node("a", "1", |_| {}), node("b", "1", |_| {})]);
    let before = store.state();
    store.apply(Event::Init);
    store.apply(Event::InitApply(node("a", "1", |_| {})));
    assert_eq!(store.state().len(), 2, "the list is not complete");
    assert!(store.apply(Event::InitDone));
    let after = store.state();
    assert_eq!(after.len(), 1);
    assert!(Arc::ptr_eq(&before[0], &after[0]));
    assert!(store.apply(Event::Delete(node("a", "2", |_| {}))));
    assert!(!store.apply(Event::Delete(node("a", "2", |_| {}))));
}

/// A DaemonSet whose fields a tenant has made this large.
fn daemon_set(namespace: &str, kilobytes: usize) -> DaemonSet {
    let long = || "x".repeat(kilobytes << 10);
    serde_json::from_value(json!({
            "metadata": {
                "namespace": namespace, "name": "log", "labels": { "app": "log", "long": long() },
                "annotations": { "kubectl.kubernetes.io/last-applied-configuration": long(), "argocd.argoproj.io/tracking-id": "a" },
                "managedFields": [{ "manager": "argocd-controller", "operation": "Apply", "fieldsV1": { "f:spec": long() } }],
            },
            "spec": {
                "selector": { "matchLabels": { "app": "log" } },
                "updateStrategy": { "type": "OnDelete" },
                "template": {
                    "metadata": { "annotations": { "note": long() } },
                    "spec": {
                        "nodeSelector": { names::NODE_NETWORK_LABEL: "calico", "other": "x" },
                        "containers": [{ "name": "calico-node", "args": [long()] }],
                    },
                },
            },
            "status": {
                "currentNumberScheduled": 3, "desiredNumberScheduled": 3, "numberMisscheduled": 0, "numberReady": 2,
            },
        }))
        .unwrap()
}

#[test]
fn a_large_daemon_set_of_a_tenant_is_pruned() {
    let store = Store::of([daemon_set("shop", 400)]);
    let [kept] = store.state().try_into().unwrap();
    assert!(serde_json::to_vec(kept.as_ref()).unwrap().len() < 2048);
    let read = facts::daemon_sets::daemon_set(&kept);
    // Decisions read the managers, the number of pods, and replumb's own label.
    assert_eq!(read.managers, ["argocd-controller (Apply)"]);
    assert!(read.annotations.contains_key("argocd.argoproj.io/tracking-id"));
    assert_eq!((read.desired, read.ready, read.on_delete), (3, 2, true));
    assert_eq!(read.selection.labels[names::NODE_NETWORK_LABEL], "calico");
    // Such a DaemonSet cannot pass for another one.
    assert_eq!(read.containers, []);
}

#[test]
fn templates_of_network_plugins_are_kept_completely() {
    for (namespace, kilobytes) in [("kube-system", 400), ("kube-flannel", 16)] {
        let store = Store::of([daemon_set(namespace, kilobytes)]);
        let [kept] = store.state().try_into().unwrap();
        let read = facts::daemon_sets::daemon_set(&kept);
        assert_eq!(
            read.containers[0].arguments[0].len(),
            kilobytes << 10,
            "{namespace}"
        );
        assert_eq!(read.selection.labels.len(), 2);
    }
}

#[test]
fn a_large_budget_is_pruned() {
    let long = || "x".repeat(400 << 10);
    let terms: Vec<Value> = (0..10_000)
        .map(|number| json!({ "key": format!("key-{number}"), "operator": "DoesNotExist" }))
        .collect();
    let budget = serde_json::from_value::<PodDisruptionBudget>(json!({
        "metadata": { "namespace": "shop", "name": "web", "annotations": { "note": long() }, "labels": { "note": long() } },
        "spec": { "selector": { "matchExpressions": terms } },
    }));
    let store = Store::of([budget.unwrap()]);
    let [kept] = store.state().try_into().unwrap();
    assert!(serde_json::to_vec(kept.as_ref()).unwrap().len() < 1024);
    assert!(facts::pods::budget(&kept).selector.unwrap().is_too_long());
}

#[tokio::test]
async fn a_store_is_filled_when_the_first_list_is_complete() {
    let store = Store::<Node>::default();
    store.apply(Event::Init);
    assert!(!*store.0.filled.borrow());
    // An empty list fills the store, too.
    assert!(store.apply(Event::InitDone));
    store.filled().await;
}
