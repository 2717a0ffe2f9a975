use std::collections::BTreeSet;

use jiff::ToSpan as _;

use super::*;
use crate::fake_api::FakeApi;

const MIGRATION: &str = "demo";

fn pod(api: &FakeApi, name: &str, node: &str, labels: &serde_json::Value, owner: &str) {
    api.put(
        &format!("/api/v1/namespaces/{}/pods/{name}", names::NAMESPACE),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": names::NAMESPACE, "labels": labels,
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": owner, "controller": true }],
            },
            "spec": { "nodeName": node, "containers": [] },
            "status": {
                "phase": "Running", "podIP": "10.244.0.9", "podIPs": [{ "ip": "10.244.0.9" }],
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }),
    );
}

fn path(node: &str) -> String {
    format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}")
}

/// A Node with its agent; on the new network if `finished`.
fn node(api: &FakeApi, name: &str, finished: bool) {
    api.put(
        &format!("/api/v1/nodes/{name}"),
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
    );
    pod(api, &format!("agent-{name}"), name, &json!({}), names::AGENT);
    api.put(
        &path(name),
        json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": { "name": name },
            "spec": {
                "nodeName": name, "migration": MIGRATION, "goal": "Hold",
                "finishedAt": finished.then_some("2026-01-01T00:00:00Z"),
            },
            "status": { "message": "", "flannelToCalico": { "phase": "Flannel", "goal": "Hold", "changes": [] } },
        }),
    );
}

fn probe_pod_on(api: &FakeApi, node: &str) {
    let labels = json!({ names::COMPONENT_LABEL: names::PROBE_COMPONENT });
    pod(api, &format!("replumb-probe-{node}"), node, &labels, MIGRATION);
}

fn probers(api: &FakeApi, node: &str) -> Vec<(String, &'static str)> {
    let snapshot = Snapshot::take(&api.cache(), MIGRATION, names::NAMESPACE);
    let probes = choose(&snapshot, |object| object.spec.finished_at.is_none(), |_| true);
    let probers = probes.probers.get(node).into_iter().flatten();
    probers.map(|prober| (prober.node.clone(), prober.side)).collect()
}

#[test]
fn a_prober_stays_when_nodes_join_and_is_replaced_when_unready() {
    let api = FakeApi::default();
    node(&api, "proved", false);
    probe_pod_on(&api, "proved");
    assert_eq!(probers(&api, "proved"), [("proved".to_owned(), "own")]);
    node(&api, "old", false);
    node(&api, "new", true);
    let both = [("old".to_owned(), "old"), ("new".to_owned(), "new")];
    assert_eq!(probers(&api, "proved"), both);
    let asked = api.get(&format!(
        "/api/v1/namespaces/{}/pods/replumb-probe-proved",
        names::NAMESPACE
    ));
    let uid = asked.unwrap()["metadata"]["uid"].clone();
    let target =
        json!({ "node": "proved", "address": "10.244.0.9", "port": names::PROBE_PORT, "podUid": uid });
    for name in ["old", "new"] {
        api.edit(&path(name), &json!({ "spec": { "probes": [target] } }));
    }
    for number in 0..40 {
        node(&api, &format!("joined-{number:02}"), number % 2 == 0);
    }
    assert_eq!(probers(&api, "proved"), both, "already asked");
    // The prober is not Ready any more.
    api.edit(
        "/api/v1/nodes/old",
        &json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
    );
    let others = probers(&api, "proved");
    assert_ne!(others[0].0, "old");
    assert_eq!((others[0].1, &others[1]), ("old", &both[1]));
}

#[test]
fn probers_are_spread_over_nodes() {
    let api = FakeApi::default();
    for number in 0..40 {
        node(&api, &format!("n-{number:02}"), false);
        probe_pod_on(&api, &format!("n-{number:02}"));
    }
    let different: BTreeSet<String> = (0..40)
        .flat_map(|number| probers(&api, &format!("n-{number:02}")))
        .map(|(name, _)| name)
        .collect();
    assert!(different.len() > 15, "{different:?}");
}

/// A kubelet that has no room rejects the pod, and the pod stays as it is. The kubelet evicts others under pressure.
#[tokio::test]
async fn a_pod_that_the_kubelet_rejected_is_named_and_replaced() {
    let api = FakeApi::default();
    node(&api, "full", false);
    api.edit(&path("full"), &json!({ "spec": { "started": true } }));
    probe_pod_on(&api, "full");
    let pod = format!("/api/v1/namespaces/{}/pods/replumb-probe-full", names::NAMESPACE);
    let rejected =
        "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 110, capacity: 110";
    let made_at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    api.edit(
        &pod,
        &json!({
            "metadata": { "creationTimestamp": made_at },
            "status": {
                "phase": "Failed", "reason": "OutOfpods", "message": rejected, "podIP": null, "podIPs": null,
                "conditions": [{ "type": "Ready", "status": "False" }],
            },
        }),
    );
    let context = api.context();
    let remains_at = async |now| {
        let snapshot = Snapshot::take(&api.cache(), MIGRATION, names::NAMESPACE);
        let seen = probe_pod(&snapshot.probe_pods["full"]);
        assert_eq!(seen.message, format!("Failed: OutOfpods: {rejected}"));
        delete_spent_probe_pods(&context, &snapshot, now, |_, _| false)
            .await
            .unwrap();
        api.get(&pod).is_some()
    };
    assert!(remains_at(made_at + REPLACED_AFTER - 1.second()).await);
    assert!(!remains_at(made_at + REPLACED_AFTER).await);
}
