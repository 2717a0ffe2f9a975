//! Rollbacks against a fake API server: from every state of the migration, the cluster returns to its previous state.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::in_place::in_place;
use super::{
    CALICO_GROUP, FLANNEL, MIGRATION, NODES, assert_in_order, assert_same, cluster, crash_after,
    node_migration, run_to_the_end, run_until, steady, story, world_moves,
};
use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::pass::pass;
use crate::walk;

pub(super) fn drained() -> FakeApi {
    let api = cluster();
    // Agents report the state of their hosts, which a rollback needs.
    api.put("/test/in-place", json!({}));
    api.take_changes();
    api
}

pub(super) fn ask(api: &FakeApi, spec: &Value) {
    api.edit(MIGRATION, &json!({ "spec": spec }));
}

pub(super) async fn passes(api: &FakeApi, number: usize) {
    let mut memory = Memory::default();
    for _ in 0..number {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(api);
    }
}

/// The state that must be restored: Nodes, DaemonSets, Calico's objects.
fn cluster_state(api: &FakeApi) -> BTreeMap<String, Value> {
    let mut state = steady(api.everything());
    state.retain(|path, _| {
        path.starts_with(NODES) || path.starts_with(CALICO_GROUP) || path.contains("/daemonsets/")
    });
    for object in state.values_mut() {
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.remove("resourceVersion");
        metadata.remove("generation");
        // An empty node selector equals a missing one.
        if object["spec"]["template"]["spec"]["nodeSelector"] == json!({}) {
            let pod = object["spec"]["template"]["spec"].as_object_mut().unwrap();
            pod.remove("nodeSelector");
        }
    }
    state
}

fn assert_as_before(before: &BTreeMap<String, Value>, api: &FakeApi, when: &str) {
    assert_same(before, &cluster_state(api), when);
    for node in ["a", "b"] {
        let Some(object) = api.get(&node_migration(node)) else {
            continue;
        };
        assert_eq!(
            object["spec"]["flannelToCalico"]["goal"], "Hold",
            "{when}: {object}"
        );
        assert_ne!(object["spec"]["started"], true, "{when}: {object}");
        assert_ne!(object["spec"]["rollingBack"], true, "{when}: {object}");
    }
}

#[tokio::test]
async fn a_rollback_from_every_state_restores_the_cluster() {
    for make in [drained as fn() -> FakeApi, in_place] {
        let before = cluster_state(&make());
        for number in 0..40 {
            let api = make();
            passes(&api, number).await;
            if api.get(FLANNEL).is_none() {
                assert!(number > 20, "flannel was gone after {number} passes");
                break;
            }
            ask(&api, &json!({ "desired": "Rollback" }));
            run_until(&api, "RolledBack")
                .await
                .unwrap_or_else(|error| panic!("after {number} passes: {error}"));
            assert_as_before(&before, &api, &format!("back after {number} passes"));
        }
    }
}

#[tokio::test]
async fn a_rollback_moves_no_pod_of_flannel_and_writes_in_order() {
    let api = in_place();
    run_until(&api, "Mixed").await.unwrap();
    api.take_changes();
    ask(&api, &json!({ "desired": "Rollback" }));
    run_until(&api, "RolledBack").await.unwrap();
    let story = story(&api.take_changes());
    let in_order = [
        "label b none",
        "goal b Flannel",
        "label b flannel",
        "probe b",
        "delete ipamhandles k8s-pod-network.sandbox-b",
        "goal b Hold",
        "label a none",
        "goal a Flannel",
        "label a flannel",
        "probe a",
        "goal a Hold",
        "delete blockaffinities a-10-244-1-0-26",
        "delete ipamblocks 10-244-1-0-26",
        "delete felixconfigurations default",
        "delete ippools default-ipv4-ippool",
        "delete ipamconfigs default",
        "patch kube-flannel-ds",
        "label a removed",
    ];
    assert_in_order(&story, &in_order);
    assert!(!story.iter().any(|line| line.starts_with("evict")), "{story:#?}");
    assert!(!story.iter().any(|line| line.starts_with("cordon")), "{story:#?}");
}

#[tokio::test]
async fn pods_with_calicos_addresses_are_evicted_once_new_ones_wait() {
    let api = drained();
    let mut memory = Memory::default();
    while api.get(&node_migration("a")).unwrap_or_default()["spec"]["finishedAt"].is_null() {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(&api);
    }
    world_moves(&api);
    ask(&api, &json!({ "desired": "Rollback" }));
    api.take_changes();
    run_until(&api, "RolledBack").await.unwrap();
    let story = story(&api.take_changes());
    assert_in_order(
        &story,
        &[
            "label a none",
            "goal a Flannel",
            "evict log-a",
            "label a flannel",
            "probe a",
        ],
    );
}

#[tokio::test]
async fn a_crash_after_any_write_leads_to_the_same_end() {
    let mixed = async || {
        let api = in_place();
        run_until(&api, "Mixed").await.unwrap();
        ask(&api, &json!({ "desired": "Rollback" }));
        api.take_changes();
        api
    };
    let undisturbed = walk::undisturbed(mixed, async |api| {
        run_until(api, "RolledBack").await.unwrap();
    })
    .await;
    let writes = undisturbed.changes.len();
    assert!(writes > 30, "{writes} writes");
    let before = cluster_state(&in_place());
    assert_as_before(&before, &undisturbed.api, "undisturbed");
    walk::crash_after_each(0..writes, mixed, crash_after, async |api, when| {
        run_until(api, "RolledBack")
            .await
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_as_before(&before, api, when);
    })
    .await;
}

#[tokio::test]
async fn abort_rolls_back_started_nodes_and_keeps_finished_ones() {
    let api = in_place();
    let mut memory = Memory::default();
    let in_work = |node: &str| {
        let object = api.get(&node_migration(node)).unwrap_or_default();
        object["spec"]["started"] == true && object["spec"]["flannelToCalico"]["goal"] == "Swapped"
    };
    while !in_work("b") {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(&api);
    }
    ask(&api, &json!({ "desired": "Abort" }));
    passes(&api, 30).await;
    let node = |name: &str| api.get(&node_migration(name)).unwrap();
    assert!(
        node("a")["spec"]["finishedAt"].is_string(),
        "node a is finished and stays: {}",
        node("a")
    );
    assert_eq!(node("b")["status"]["flannelToCalico"]["phase"], "Flannel");
    assert!(node("b")["spec"]["returnedAt"].is_string(), "{}", node("b"));
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(
        (&status["phase"], &status["paused"]),
        (&json!("Rolling"), &json!(true)),
        "{status}"
    );
    // Forward again.
    ask(&api, &json!({ "desired": "Run" }));
    run_until(&api, "Mixed").await.unwrap();
}

#[tokio::test]
async fn a_named_node_is_rolled_back_kept_and_migrated_again_on_request() {
    let api = in_place();
    run_until(&api, "Mixed").await.unwrap();
    ask(&api, &json!({ "flannelToCalico": { "rollbackNodes": ["a"] } }));
    passes(&api, 30).await;
    let node = |name: &str| api.get(&node_migration(name)).unwrap();
    assert_eq!(node("a")["status"]["flannelToCalico"]["phase"], "Flannel");
    assert_eq!(node("b")["status"]["flannelToCalico"]["phase"], "Mixed");
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["reason"], "Paused");
    assert!(
        status["message"].as_str().unwrap().contains("rollbackNodes: a"),
        "{status}"
    );
    ask(&api, &json!({ "flannelToCalico": { "rollbackNodes": null } }));
    run_until(&api, "Mixed").await.unwrap();
    assert_eq!(node("a")["status"]["flannelToCalico"]["phase"], "Mixed");
}

#[tokio::test]
async fn a_started_rollback_can_be_reversed() {
    let api = drained();
    run_until(&api, "Finishing").await.unwrap();
    ask(&api, &json!({ "desired": "Rollback" }));
    passes(&api, 12).await;
    assert_eq!(api.get(MIGRATION).unwrap()["status"]["phase"], "RollingBack");
    ask(&api, &json!({ "desired": "Run" }));
    run_to_the_end(&api).await.unwrap();
}

/// A migration whose nodes are on Calico, and whose soak time has not passed.
async fn soaking() -> FakeApi {
    let api = drained();
    ask(&api, &json!({ "flannelToCalico": { "soakSeconds": 3600 } }));
    let mut memory = Memory::default();
    for _ in 0..200 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(&api);
        let status = api.get(MIGRATION).unwrap()["status"].clone();
        assert_ne!(status["phase"], "Finishing", "{status}");
        if status["reason"] == "NetworkSoak" {
            return api;
        }
    }
    panic!("no soak: {}", api.get(MIGRATION).unwrap()["status"]);
}

#[tokio::test]
async fn flannel_is_kept_for_the_soak_time() {
    let api = soaking().await;
    passes(&api, 5).await;
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["phase"], "Rolling", "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("DaemonSet kube-flannel/kube-flannel-ds is kept until"),
        "{message}"
    );
    assert!(api.get(FLANNEL).is_some(), "the soak time has not passed");
    ask(&api, &json!({ "flannelToCalico": { "soakSeconds": 0 } }));
    run_to_the_end(&api).await.unwrap();
    assert!(api.get(FLANNEL).is_none());
}

#[tokio::test]
async fn everything_is_rolled_back_in_the_soak_time() {
    let api = soaking().await;
    ask(&api, &json!({ "desired": "Rollback" }));
    run_until(&api, "RolledBack").await.unwrap();
    assert!(api.get(FLANNEL).is_some());
}

#[tokio::test]
async fn a_rollback_past_the_point_of_no_return_is_refused() {
    let api = drained();
    run_until(&api, "Finishing").await.unwrap();
    api.remove(FLANNEL);
    ask(&api, &json!({ "desired": "Rollback" }));
    api.take_changes();
    passes(&api, 5).await;
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["reason"], "PastReturn");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("point of no return") && message.contains("resume"),
        "{message}"
    );
    let others = api.take_changes();
    assert!(
        others
            .iter()
            .all(|(call, _)| call.contains("/migrations/m/status")),
        "{others:?}"
    );
    ask(&api, &json!({ "desired": "Run" }));
    run_to_the_end(&api).await.unwrap();
}
