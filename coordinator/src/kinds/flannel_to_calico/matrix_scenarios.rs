//! Objects of others, of every kind that the coordinator reads for a change from flannel to Calico: not readable, absurdly large, absurdly
//! many, changing all the time, or with labels of ours. Both nodes go there and back, whichever strategy is asked for.

use api::names;
use rstest::rstest;
use serde_json::{Value, json};

use super::back_scenarios::{ask, drained};
use super::in_place_scenarios::in_place;
use super::scenarios::{CALICO_GROUP, node_migration, world_moves};
use crate::evict;
use crate::fake_api::{FakeApi, MIGRATION, merge};
use crate::memory::Memory;
use crate::pass::pass;

/// More than a person would ever make of them.
const MANY: usize = 200;
/// The API server stores it, and prints a year of five digits.
const LATE: &str = "10000-01-01T00:59:59Z";
/// Passes that a way may take; alone it takes some forty.
const PASSES: usize = 200;

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Kinds in a namespace of a tenant, and kinds of the cluster that another program writes.
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

/// A kind: where its objects are, and one as its owner means it. Nothing of it is in the ranges of the migration.
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

/// The objects of a kind by what is strange about them; those that change say `round`.
fn strange(kind: &str, what: &str, round: usize) -> Vec<(String, Value)> {
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
                    break_apart(part);
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
        other => unreachable!("nothing so strange: {other}"),
    }
}

/// Every value becomes one of another type, but ranges: one that is not known may be that of the migration, and holds what a pool of
/// it would.
fn break_apart(part: &mut Value) {
    match part {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name != "cidr" {
                    break_apart(value);
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
        for (path, object) in strange(kind, what, round) {
            api.put(&path, object);
        }
    }
}

fn phase(api: &FakeApi) -> String {
    let phase = &api.get(MIGRATION).unwrap()["status"]["phase"];
    phase.as_str().unwrap_or_default().to_owned()
}

/// Passes until the migration is in a phase, while the objects are there.
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
#[case::with_labels_of_ours("with labels of ours")]
#[tokio::test]
async fn objects_of_others_hold_no_node_there_and_back(#[case] what: &str) {
    for kind in KINDS {
        for make in [drained as fn() -> FakeApi, in_place] {
            let there = make();
            passes(&there, kind, what, &["Mixed", "Completed"], || false).await;
            // The way back begins in the middle: a drained cluster that has completed has none.
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
