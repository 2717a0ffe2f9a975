//! Objects of a tenant, of every kind that the coordinator reads for a change of the Services' range: unreadable, too large, too
//! many, changing all the time, or with labels of replumb. Other Services exchange their addresses forward and back, and other
//! pods restart.

use api::names;
use rstest::rstest;
use serde_json::{Value, json};
use service_cidr::step::Stage;

use super::crowd::World;
use super::silent::{NODES, answers, told, web, world};
use crate::fake_api::{FakeApi, MIGRATION};

/// More objects than a user would create by hand.
const MANY: usize = 300;
/// The API server stores this time, and prints a year of five digits.
const LATE: &str = "10000-01-01T00:59:59Z";

/// A kind in the tenant's namespace: the path of its objects, and a valid object.
fn of_kind(kind: &str) -> (&'static str, Value) {
    let template = json!({
        "metadata": { "labels": { "app": "odd" } },
        "spec": { "containers": [{ "name": "c", "image": "registry.example/odd:1" }] },
    });
    let selector = json!({ "matchLabels": { "app": "odd" } });
    match kind {
        "Deployment" => (
            "/apis/apps/v1/namespaces/tenant/deployments",
            json!({ "spec": { "replicas": 3, "selector": selector, "template": template } }),
        ),
        "StatefulSet" => (
            "/apis/apps/v1/namespaces/tenant/statefulsets",
            json!({ "spec": { "replicas": 3, "serviceName": "odd", "selector": selector, "template": template } }),
        ),
        "ReplicaSet" => (
            "/apis/apps/v1/namespaces/tenant/replicasets",
            json!({ "spec": { "replicas": 3, "selector": selector, "template": template } }),
        ),
        "DaemonSet" => (
            "/apis/apps/v1/namespaces/tenant/daemonsets",
            json!({ "spec": { "selector": selector, "template": template }, "status": { "desiredNumberScheduled": 2 } }),
        ),
        "NetworkPolicy" => (
            "/apis/networking.k8s.io/v1/namespaces/tenant/networkpolicies",
            json!({ "spec": { "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": "192.0.2.0/24" } }] }] } }),
        ),
        "PodDisruptionBudget" => (
            "/apis/policy/v1/namespaces/tenant/poddisruptionbudgets",
            json!({
                "spec": { "maxUnavailable": 0, "selector": {} },
                "status": { "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 },
            }),
        ),
        "ResourceQuota" => (
            "/api/v1/namespaces/tenant/resourcequotas",
            json!({ "spec": { "hard": { "services": "0" } }, "status": { "hard": { "services": "0" }, "used": { "services": "9" } } }),
        ),
        "Pod" => (
            "/api/v1/namespaces/tenant/pods",
            json!({
                "spec": { "nodeName": "a", "containers": [{ "name": "c", "resources": { "requests": { "cpu": "20P" } } }] },
                "status": { "phase": "Pending" },
            }),
        ),
        "Service" => (
            "/api/v1/namespaces/tenant/services",
            json!({ "spec": { "type": "ExternalName", "externalName": "odd.example" } }),
        ),
        "EndpointSlice" => (
            "/apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices",
            json!({ "addressType": "IPv4", "endpoints": [{ "addresses": ["192.0.2.7"] }], "ports": [{ "port": 80, "protocol": "TCP" }] }),
        ),
        other => unreachable!("no such kind: {other}"),
    }
}

/// The objects of a kind with a defect; changing objects depend on `round`.
fn strange(kind: &str, what: &str, round: usize) -> Vec<(String, Value)> {
    let (place, object) = of_kind(kind);
    let named = |name: &str| {
        let mut object = object.clone();
        object["metadata"] =
            json!({ "namespace": "tenant", "name": name, "creationTimestamp": "2026-01-01T00:00:00Z" });
        object
    };
    let one = |change: Value| {
        let mut object = named("odd");
        json_merge(&mut object, &change);
        vec![(format!("{place}/odd"), object)]
    };
    match what {
        "unreadable" => one(
            json!({ "metadata": { "managedFields": [{ "manager": "tenant", "operation": "Update", "time": LATE }] } }),
        ),
        "large" => {
            one(json!({ "metadata": { "annotations": { "odd.example/large": "x".repeat(200_000) } } }))
        }
        "many" => (0..MANY)
            .map(|number| {
                let name = format!("odd-{number}");
                (format!("{place}/{name}"), named(&name))
            })
            .collect(),
        "changing" => {
            one(json!({ "metadata": { "annotations": { "odd.example/round": round.to_string() } } }))
        }
        "with labels of ours" => one(json!({ "metadata": { "labels": {
            names::COMPONENT_LABEL: names::TRAFFIC_COMPONENT,
            "replumb.dev/service": "web",
            "replumb.dev/address": "new",
        } } })),
        other => unreachable!("unknown defect: {other}"),
    }
}

fn json_merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (name, value) in change {
                json_merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change.clone(),
    }
}

fn put(api: &FakeApi, kind: &str, what: &str, round: usize) {
    if what == "changing" || round == 0 {
        for (path, object) in strange(kind, what, round) {
            api.put(&path, object);
        }
    }
}

const KINDS: [&str; 10] = [
    "Deployment",
    "StatefulSet",
    "ReplicaSet",
    "DaemonSet",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ResourceQuota",
    "Pod",
    "Service",
    "EndpointSlice",
];

#[rstest]
#[case::unreadable("unreadable")]
#[case::large("large")]
#[case::many("many")]
#[case::changing("changing")]
#[case::with_labels_of_ours("with labels of ours")]
#[tokio::test]
async fn other_services_move_forward_and_back(#[case] what: &str) {
    for kind in KINDS {
        let mut world = World::new();
        world.by_hand("shop/web", "10.96.0.5");
        for (is_there, desired) in [(true, "Run"), (false, "Rollback")] {
            world
                .api
                .edit(MIGRATION, &json!({ "spec": { "desired": desired } }));
            let mut round = 0;
            while world.count("shop", is_there) == 0 {
                put(&world.api, kind, what, round);
                world.pass().await;
                round += 1;
                assert!(
                    round < 30,
                    "{kind}, {what}, {desired}: {}",
                    world.status().message
                );
            }
        }
    }
}

#[rstest]
#[case::unreadable("unreadable")]
#[case::large("large")]
#[case::many("many")]
#[case::changing("changing")]
#[case::with_labels_of_ours("with labels of ours")]
#[tokio::test]
async fn other_pods_restart(#[case] what: &str) {
    for kind in KINDS {
        let mut world = world();
        for round in 0..10 {
            put(&world.api, kind, what, round);
            world.pass().await;
            for node in NODES {
                answers(&world, node, told(&world, node));
            }
        }
        let status = world.status();
        for node in NODES {
            assert_eq!(
                world.api.get(&web(node)),
                None,
                "{kind}, {what}: {}",
                status.message
            );
        }
        let stage = status.service_cidr.unwrap().stage.unwrap().name;
        assert!(
            stage > Stage::Restart,
            "{kind}, {what}: {stage:?}, {}",
            status.message
        );
    }
}
