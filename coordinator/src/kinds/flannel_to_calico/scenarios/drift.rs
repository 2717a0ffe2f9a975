//! Another writer changes a value of the migration: the value is restored in the next pass, the rollout stops and names it, and
//! continues when the user resumes it.

use api::names;
use serde_json::{Value, json};

use super::in_place::{in_place, mark};
use super::{
    CALICO, CALICO_GROUP, FLANNEL, MIGRATION, NODES, node_migration, run_to_the_end, run_until, world_moves,
};
use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::pass::pass;

const POOL: &str = "ippools/default-ipv4-ippool";

fn status(api: &FakeApi) -> Value {
    api.get(MIGRATION).unwrap()["status"].clone()
}

pub(super) fn label(api: &FakeApi, node: &str) -> Value {
    api.get(&format!("{NODES}/{node}")).unwrap()["metadata"]["labels"][names::NODE_NETWORK_LABEL].clone()
}

fn write_label(api: &FakeApi, node: &str, value: &Value) {
    let change = json!({ "metadata": { "labels": { names::NODE_NETWORK_LABEL: value } } });
    api.edit(&format!("{NODES}/{node}"), &change);
}

/// Two passes some time after the last one: Calico's objects are read again; a change is announced in the first pass, and
/// restored in the second.
async fn look(api: &FakeApi, memory: &mut Memory) {
    for _ in 0..2 {
        memory.drift_read_at = None;
        pass(&api.context(), &api.cache(), memory).await.unwrap();
    }
}

fn resume(api: &FakeApi) {
    let at = jiff::Timestamp::now().to_string();
    api.edit(MIGRATION, &json!({ "spec": { "resumedAt": at } }));
}

/// Node a is on Calico with a pod of flannel, node b waits for its turn.
async fn half_way() -> (FakeApi, Memory) {
    let api = in_place();
    let mut memory = Memory::default();
    for _ in 0..100 {
        let done = api
            .get(&node_migration("a"))
            .is_some_and(|object| object["spec"]["finishedAt"].is_string());
        if done {
            let waits = api.get(&node_migration("b")).unwrap();
            assert_ne!(waits["spec"]["started"], true, "{waits}");
            return (api, memory);
        }
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(&api);
    }
    panic!("node a is not done: {}", status(&api));
}

/// The status reports the change, no node starts, and the rollout completes after it is resumed.
async fn assert_stops_and_continues(api: &FakeApi, memory: &mut Memory, words: &[&str]) {
    let stopped = status(api);
    assert_eq!(
        (&stopped["phase"], &stopped["reason"], &stopped["paused"]),
        (&json!("Halted"), &json!("Drift"), &json!(true)),
        "{stopped}"
    );
    let message = stopped["message"].as_str().unwrap();
    for word in words.iter().chain(&["kubectl replumb resume"]) {
        assert!(message.contains(word), "no {word:?} in {message}");
    }
    for _ in 0..10 {
        look(api, memory).await;
        world_moves(api);
    }
    let waits = api.get(&node_migration("b")).unwrap();
    assert_ne!(waits["spec"]["started"], true, "{waits}");
    assert_eq!(status(api)["drift"], stopped["drift"], "announced once");
    resume(api);
    run_until(api, "Mixed").await.unwrap();
    for node in ["a", "b"] {
        api.remove(&mark(node));
    }
    run_to_the_end(api).await.unwrap();
}

/// Calico's pod on a host of flannel would assign addresses of live pods to new ones.
#[tokio::test]
async fn the_label_of_a_waiting_node_is_restored_to_flannel() {
    for wrong in [json!("calico"), json!("none"), json!("odd"), Value::Null] {
        let (api, mut memory) = half_way().await;
        write_label(&api, "b", &wrong);
        look(&api, &mut memory).await;
        assert_eq!(label(&api, "b"), "flannel", "after {wrong}");
        let words = ["Node b", names::NODE_NETWORK_LABEL, "needed \"flannel\""];
        assert_stops_and_continues(&api, &mut memory, &words).await;
    }
}

/// flannel's pod would create its tunnel again beside Calico's; without a label neither network runs.
#[tokio::test]
async fn the_label_of_a_finished_node_is_restored_to_calico() {
    for wrong in [json!("flannel"), json!("none"), Value::Null] {
        let (api, mut memory) = half_way().await;
        write_label(&api, "a", &wrong);
        look(&api, &mut memory).await;
        assert_eq!(label(&api, "a"), "calico", "after {wrong}");
        assert_stops_and_continues(&api, &mut memory, &["Node a", "needed \"calico\""]).await;
    }
}

/// A node in progress whose agent has an order and has not executed it yet.
#[tokio::test]
async fn the_label_of_a_started_node_is_restored_to_none() {
    let (api, mut memory) = half_way().await;
    for _ in 0..20 {
        if api.get(&node_migration("b")).unwrap()["spec"]["flannelToCalico"]["goal"] == "Held" {
            break;
        }
        look(&api, &mut memory).await;
        if label(&api, "b") == "none" {
            // The agent is slow, and flannel's pod is gone.
            api.remove("/api/v1/namespaces/kube-flannel/pods/flannel-b");
        } else {
            world_moves(&api);
        }
    }
    for wrong in ["calico", "flannel"] {
        write_label(&api, "b", &json!(wrong));
        look(&api, &mut memory).await;
        assert_eq!(label(&api, "b"), "none", "after {wrong}");
    }
    let told = status(&api)["drift"]["differences"].as_array().unwrap().clone();
    assert_eq!(told.len(), 2, "{told:?}");
    for what in told {
        let what = what.as_str().unwrap();
        assert!(
            what.contains("Node b") && what.contains("needed \"none\""),
            "{what}"
        );
    }
    run_until(&api, "Halted").await.unwrap();
}

#[tokio::test]
async fn cluster_wide_objects_are_restored() {
    type Break = fn(&FakeApi, &str);
    let cases: [(&str, Break, &str); 7] = [
        (POOL, FakeApi::remove, "IPPool default-ipv4-ippool was deleted"),
        (
            "ipamconfigs/default",
            FakeApi::remove,
            "IPAMConfig default was deleted",
        ),
        (
            "ipamconfigs/default",
            |api, path| api.edit(path, &json!({ "spec": { "strictAffinity": false } })),
            "IPAMConfig default: strictAffinity is false, needed true",
        ),
        (
            "felixconfigurations/default",
            |api, path| api.edit(path, &json!({ "spec": { "vxlanPort": 4789 } })),
            "FelixConfiguration default: vxlanPort is 4789, needed 8472",
        ),
        (
            "felixconfigurations/default",
            |api, path| api.edit(path, &json!({ "spec": { "vxlanEnabled": false } })),
            "FelixConfiguration default: vxlanEnabled is false, needed none",
        ),
        (
            FLANNEL,
            deselect,
            "DaemonSet kube-flannel/kube-flannel-ds: node selector",
        ),
        (
            CALICO,
            deselect,
            "DaemonSet kube-system/calico-node: node selector",
        ),
    ];
    for (place, spoil, words) in cases {
        let (api, mut memory) = half_way().await;
        let path = if place.starts_with('/') {
            place.to_owned()
        } else {
            format!("{CALICO_GROUP}/{place}")
        };
        let before = api.get(&path).unwrap()["spec"].clone();
        spoil(&api, &path);
        look(&api, &mut memory).await;
        assert_eq!(api.get(&path).unwrap()["spec"], before, "{words}");
        assert_stops_and_continues(&api, &mut memory, &[words]).await;
    }
}

fn deselect(api: &FakeApi, path: &str) {
    let change = json!({ "spec": { "template": { "spec": {
        "nodeSelector": { names::NODE_NETWORK_LABEL: null } } } } });
    api.edit(path, &change);
}

/// A change with an unknown reason is not reverted: it stops the rollout while it lasts.
#[tokio::test]
async fn a_changed_pool_is_reported_and_not_restored() {
    let (api, mut memory) = half_way().await;
    let path = format!("{CALICO_GROUP}/{POOL}");
    api.edit(&path, &json!({ "spec": { "vxlanMode": "Never" } }));
    look(&api, &mut memory).await;
    assert_eq!(api.get(&path).unwrap()["spec"]["vxlanMode"], "Never");
    resume(&api);
    // At once: a recent read is repeated.
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(status(&api)["reason"], "Drift", "the change lasts");
    let waits = api.get(&node_migration("b")).unwrap();
    assert_ne!(waits["spec"]["started"], true, "{waits}");
    api.edit(&path, &json!({ "spec": { "vxlanMode": "Always" } }));
    resume(&api);
    look(&api, &mut memory).await;
    assert_ne!(status(&api)["reason"], "Drift");
    assert_eq!(status(&api)["drift"], Value::Null, "the change is reverted");
}

/// A rollback needs the objects, too, and is not stopped.
#[tokio::test]
async fn during_a_rollback_changes_are_restored_without_a_stop() {
    let (api, mut memory) = half_way().await;
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    look(&api, &mut memory).await;
    let path = format!("{CALICO_GROUP}/{POOL}");
    api.remove(&path);
    write_label(&api, "b", &json!("calico"));
    look(&api, &mut memory).await;
    assert!(api.get(&path).is_some());
    assert_eq!(label(&api, "b"), "flannel");
    assert_ne!(status(&api)["phase"], "Halted");
    run_until(&api, "RolledBack").await.unwrap();
    assert!(api.get(&path).is_none(), "created by this migration");
    assert_eq!(label(&api, "b"), Value::Null);
}

/// The pool had more than its range, and that was not saved.
#[tokio::test]
async fn a_deleted_earlier_pool_is_not_created_again() {
    let (api, mut memory) = half_way().await;
    let before = json!({ "IPPool": "[\"default-ipv4-ippool\"]" });
    api.edit(MIGRATION, &json!({ "status": { "savedState": before } }));
    let path = format!("{CALICO_GROUP}/{POOL}");
    api.remove(&path);
    look(&api, &mut memory).await;
    assert_eq!(api.get(&path), None);
    let message = status(&api)["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("create it again with its previous spec"),
        "{message}"
    );
}

/// A failed restore is reported, and does not prevent a rollback.
#[tokio::test]
async fn a_refused_restore_is_reported_and_does_not_block_a_rollback() {
    let (api, mut memory) = half_way().await;
    api.remove(&format!("{CALICO_GROUP}/{POOL}"));
    api.refuse(Some(&format!("{CALICO_GROUP}/ippools")));
    look(&api, &mut memory).await;
    let told = status(&api)["drift"]["differences"].to_string();
    assert!(told.contains("restoring it failed"), "{told}");
    let before = api.get(MIGRATION).unwrap()["metadata"]["resourceVersion"].clone();
    look(&api, &mut memory).await;
    let after = api.get(MIGRATION).unwrap()["metadata"]["resourceVersion"].clone();
    assert_eq!(before, after, "the status is written once");
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    run_until(&api, "RolledBack").await.unwrap();
}

/// A node that another tool has migrated before is taken over unchanged.
#[tokio::test]
async fn a_node_on_calico_before_the_start_keeps_its_label() {
    let api = in_place();
    write_label(&api, "b", &json!("calico"));
    let mut memory = Memory::default();
    for _ in 0..20 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(&api);
        assert_eq!(label(&api, "b"), "calico");
    }
    assert_eq!(status(&api)["drift"], Value::Null);
}

/// A user who stops an agent through its goal has not changed the label.
#[tokio::test]
async fn a_goal_changed_by_a_user_is_not_drift_of_the_label() {
    let (api, mut memory) = half_way().await;
    for _ in 0..40 {
        if label(&api, "b") == "calico" {
            break;
        }
        look(&api, &mut memory).await;
        world_moves(&api);
    }
    api.edit(
        &node_migration("b"),
        &json!({ "spec": { "flannelToCalico": { "goal": "Hold" } } }),
    );
    look(&api, &mut memory).await;
    assert_eq!(label(&api, "b"), "calico");
    assert_eq!(status(&api)["drift"], Value::Null);
}

/// An object that was never written is not missing.
#[tokio::test]
async fn a_rollback_during_the_preparation_creates_nothing() {
    let api = in_place();
    let mut memory = Memory::default();
    for _ in 0..50 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        if status(&api)["phase"] == "Preparing" {
            break;
        }
        world_moves(&api);
    }
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    api.take_changes();
    run_until(&api, "RolledBack").await.unwrap();
    let changes = api.take_changes();
    let created = changes
        .iter()
        .filter(|(call, _)| call.starts_with("POST ") && call.contains(CALICO_GROUP));
    assert_eq!(created.count(), 0, "{changes:?}");
    assert_eq!(status(&api)["drift"], Value::Null);
}
