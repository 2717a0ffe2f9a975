//! Foreign objects of every kind that the coordinator reads for a migration from flannel to Calico: unreadable, very large, very
//! many, changing all the time, or with replumb's labels. Both nodes are migrated and rolled back with each strategy.

use api::names;
use rstest::rstest;
use serde_json::{Value, json};

use super::back::{ask, drained};
use super::in_place::in_place;
use super::{CALICO_GROUP, node_migration, world_moves};
use crate::evict;
use crate::fake_api::{FakeApi, MIGRATION, merge};
use crate::memory::Memory;
use crate::pass::pass;

/// More objects than a user would ever create.
const MANY: usize = 200;
/// The API server stores this time, and prints a year of five digits.
const LATE: &str = "10000-01-01T00:59:59Z";
/// Most passes of one direction; alone it takes about forty.
const PASSES: usize = 200;

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Kinds in a tenant's namespace, and cluster-wide kinds that another program writes.
const KINDS: [&str; 13] = [
    "Pod",
    "PodDisruptionBudget",
    "DaemonSet",
    "ConfigMap",
    "Service",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "IPPool",
    "IPAMBlock",
    "BlockAffinity",
    "IPAMHandle",
    "NodeMigration",
];

/// A kind: the path of its objects, and a normal one. It uses no range of the migration.
fn of_kind(kind: &str) -> (String, Value) {
    let webhook = json!({ "webhooks": [{
        "name": "odd.example", "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": { "service": { "namespace": "tenant", "name": "odd" } },
        "rules": [{ "apiGroups": ["odd.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["odds"] }],
    }] });
    let in_tenant = |plural: &str| format!("/api/v1/namespaces/tenant/{plural}");
    let of_calico = |plural: &str| format!("{CALICO_GROUP}/{plural}");
    match kind {
        "Pod" => (
            in_tenant("pods"),
            json!({
                "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
                "status": { "phase": "Pending" },
            }),
        ),
        "PodDisruptionBudget" => (
            "/apis/policy/v1/namespaces/tenant/poddisruptionbudgets".to_owned(),
            json!({
                "spec": { "maxUnavailable": 0, "selector": {} },
                "status": { "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 },
            }),
        ),
        "DaemonSet" => (
            "/apis/apps/v1/namespaces/tenant/daemonsets".to_owned(),
            json!({
                "spec": {
                    "selector": { "matchLabels": { "app": "odd" } },
                    "template": {
                        "metadata": { "labels": { "app": "odd" } },
                        "spec": { "containers": [{ "name": "c", "image": "registry.example/odd:1" }] },
                    },
                },
                "status": { "desiredNumberScheduled": 2 },
            }),
        ),
        "ConfigMap" => (
            in_tenant("configmaps"),
            json!({ "data": { "net-conf.json": "{" } }),
        ),
        "Service" => (
            in_tenant("services"),
            json!({ "spec": { "type": "ExternalName", "externalName": "odd.example" } }),
        ),
        "ValidatingWebhookConfiguration" => (format!("{ADMISSION}/validatingwebhookconfigurations"), webhook),
        "MutatingWebhookConfiguration" => (format!("{ADMISSION}/mutatingwebhookconfigurations"), webhook),
        "ValidatingAdmissionPolicy" => (
            format!("{ADMISSION}/validatingadmissionpolicies"),
            json!({ "spec": { "validations": [{ "expression": "true" }] } }),
        ),
        "IPPool" => (
            of_calico("ippools"),
            json!({ "spec": { "cidr": "10.99.0.0/16", "blockSize": 26, "disabled": true } }),
        ),
        "IPAMBlock" => (
            of_calico("ipamblocks"),
            json!({ "spec": { "cidr": "10.99.0.0/26", "affinity": "host:z", "allocations": [], "attributes": [] } }),
        ),
        "BlockAffinity" => (
            of_calico("blockaffinities"),
            json!({ "spec": { "node": "z", "cidr": "10.99.0.0/26", "state": "confirmed", "deleted": "false" } }),
        ),
        "IPAMHandle" => (
            of_calico("ipamhandles"),
            json!({ "spec": { "handleID": "odd", "block": {} } }),
        ),
        "NodeMigration" => (
            "/apis/replumb.dev/v1alpha1/nodemigrations".to_owned(),
            json!({ "spec": { "nodeName": "z", "migration": "another" } }),
        ),
        other => unreachable!("no such kind: {other}"),
    }
}

/// The objects of a kind with this anomaly; changing ones depend on `round`.
fn anomalous(kind: &str, what: &str, round: usize) -> Vec<(String, Value)> {
    let (place, object) = of_kind(kind);
    let named = |name: &str, metadata: Value| {
        let mut object = object.clone();
        object["metadata"] =
            json!({ "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z" });
        if place.contains("/namespaces/") {
            object["metadata"]["namespace"] = json!("tenant");
        }
        merge(&mut object["metadata"], &metadata);
        (format!("{place}/{name}"), object)
    };
    match what {
        "not readable" => {
            let fields = json!([{ "manager": "tenant", "operation": "Update", "time": LATE }]);
            vec![named("odd", json!({ "managedFields": fields }))]
        }
        "malformed" => {
            let (path, mut object) = named("odd", json!({}));
            for (name, part) in object.as_object_mut().into_iter().flatten() {
                if name != "metadata" {
                    change_types(part);
                }
            }
            vec![(path, object)]
        }
        "large" => vec![named(
            "odd",
            json!({ "annotations": { "odd.example/large": "x".repeat(200_000) } }),
        )],
        "many" => (0..MANY)
            .map(|number| named(&format!("odd-{number}"), json!({})))
            .collect(),
        "changing" => vec![named(
            "odd",
            json!({ "annotations": { "odd.example/round": round.to_string() } }),
        )],
        "with labels of ours" => vec![named(
            "odd",
            json!({ "labels": {
                names::COMPONENT_LABEL: names::PROBE_COMPONENT,
                names::NODE_NETWORK_LABEL: names::NETWORK_CALICO,
                "app.kubernetes.io/name": "replumb-agent",
                "app.kubernetes.io/part-of": "replumb",
            } }),
        )],
        other => unreachable!("unknown anomaly: {other}"),
    }
}

/// Changes every value to another type, except ranges: an unknown range may be that of the migration, and holds everything that a
/// pool of it would.
fn change_types(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name != "cidr" {
                    change_types(value);
                }
            }
        }
        Value::Array(_) => *part = json!("none"),
        Value::Null | Value::Bool(_) | Value::Number(_) => *part = json!({ "no": "value" }),
        Value::String(_) => *part = json!(7),
    }
}

fn put(api: &FakeApi, kind: &str, what: &str, round: usize) {
    if what == "changing" || round == 0 {
        for (path, object) in anomalous(kind, what, round) {
            api.put(&path, object);
        }
    }
}

fn phase(api: &FakeApi) -> String {
    let phase = &api.get(MIGRATION).unwrap()["status"]["phase"];
    phase.as_str().unwrap_or_default().to_owned()
}

/// Runs passes until the migration is in a phase, with the objects in place.
async fn passes(api: &FakeApi, kind: &str, what: &str, ends: &[&str], mut until: impl FnMut() -> bool) {
    let (context, mut memory) = (api.context(), Memory::default());
    for round in 0..PASSES {
        put(api, kind, what, round);
        if ends.contains(&phase(api).as_str()) || until() {
            return;
        }
        let _ = pass(&context, &api.cache(), &mut memory).await;
        context.obstacles.hurry();
        evict::collect(&context.metrics, &mut memory);
        world_moves(api);
    }
    panic!(
        "{kind}, {what}: not {ends:?}: {}",
        api.get(MIGRATION).unwrap()["status"]
    );
}

#[rstest]
#[case::not_readable("not readable")]
#[case::malformed("malformed")]
#[case::large("large")]
#[case::many("many")]
#[case::changing("changing")]
#[case::with_replumb_labels("with labels of ours")]
#[tokio::test]
async fn foreign_objects_do_not_stop_a_migration_or_a_rollback(#[case] what: &str) {
    for kind in KINDS {
        for make in [drained as fn() -> FakeApi, in_place] {
            let there = make();
            passes(&there, kind, what, &["Mixed", "Completed"], || false).await;
            // The rollback starts halfway: a drained cluster that has completed has none.
            let back = make();
            let is_done = || {
                let node = back.get(&node_migration("a")).unwrap_or_default();
                !node["spec"]["finishedAt"].is_null()
            };
            passes(&back, kind, what, &["Mixed"], is_done).await;
            ask(&back, &json!({ "desired": "Rollback" }));
            passes(&back, kind, what, &["RolledBack"], || false).await;
        }
    }
}
