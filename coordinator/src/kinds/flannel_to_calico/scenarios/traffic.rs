//! Migrations with traffic pods: they follow the networks, a path with losses stops the rollout, and the rollout continues when
//! the user resumes it.

use std::collections::{BTreeMap, BTreeSet};

use api::names;
use flannel_to_calico::facts::LegacyPod;
use serde_json::{Value, json};

use super::back::drained;
use super::in_place::{in_place, mark};
use super::{
    MIGRATION, assert_in_order, assert_same, cluster, crash_after, node_migration, number_of, put_node,
    run_to_the_end, run_until, steady, story, world_moves,
};
use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::pass::pass;
use crate::walk;

const PODS: &str = "/api/v1/namespaces/replumb-system/pods";

pub(super) fn traffic_pods(api: &FakeApi) -> Vec<Value> {
    let mut pods = api.below(PODS);
    pods.retain(|pod| pod["metadata"]["labels"][names::COMPONENT_LABEL] == names::TRAFFIC_COMPONENT);
    pods
}

fn network(pod: &Value) -> &str {
    pod["metadata"]["labels"][names::TRAFFIC_NETWORK_LABEL]
        .as_str()
        .unwrap()
}

/// The node's traffic pod on flannel's network.
fn old_pod(api: &FakeApi, node: &str) -> Option<Value> {
    traffic_pods(api)
        .into_iter()
        .find(|pod| pod["spec"]["nodeName"] == node && network(pod) == names::NETWORK_FLANNEL)
}

/// Whether a traffic pod on flannel's network exists on this node.
pub(super) fn lives_on_old(api: &FakeApi, node: &str) -> bool {
    old_pod(api, node).is_some()
}

/// The node's traffic pod as the agent reports it among the legacy pods.
pub(super) fn legacy_pod(api: &FakeApi, node: &str) -> Option<LegacyPod> {
    let pod = old_pod(api, node)?;
    let address = pod["status"]["podIP"].as_str()?;
    Some(LegacyPod {
        other_link: None,
        namespace: "replumb-system".to_owned(),
        name: pod["metadata"]["name"].as_str().unwrap().to_owned(),
        sandbox: format!("Traffic-{node}"),
        link: "veth2".to_owned(),
        addresses: vec![address.parse().unwrap()],
        attached: true,
        routed: true,
        mac: String::new(),
        pod_link: None,
        obstacle: None,
        not_taken_within: None,
    })
}

/// The kubelets start the traffic pods.
pub(super) fn pods_run(api: &FakeApi) {
    for pod in traffic_pods(api) {
        let number = number_of(pod["spec"]["nodeName"].as_str().unwrap());
        let place = if network(&pod) == names::NETWORK_FLANNEL {
            30
        } else {
            31
        };
        run(api, &pod, &format!("10.244.{number}.{place}"));
    }
}

/// A kubelet starts this traffic pod.
pub(super) fn run(api: &FakeApi, pod: &Value, address: &str) {
    let name = pod["metadata"]["name"].as_str().unwrap();
    api.edit(
        &format!("{PODS}/{name}"),
        &json!({ "status": {
            "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": "True" }],
            "containerStatuses": [{
                "name": "traffic", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": { "running": {} },
            }],
        } }),
    );
}

/// The agent's report on its paths; those to the node that the test names lose probes.
pub(super) fn report(api: &FakeApi, node: &str, object: &Value) -> Value {
    let silent = api.get("/test/silent").map(|test| test["nodes"].clone());
    let is_silent = |nodes: &Value| nodes.as_array().is_none_or(|nodes| nodes.contains(&json!(node)));
    if silent.is_some_and(|nodes| is_silent(&nodes)) {
        return Value::Null;
    }
    // The agent has not read the latest spec yet.
    if api.get("/test/deaf").is_some() {
        return object["status"]["traffic"].clone();
    }
    let flows = object["spec"]["flows"].as_array().cloned().unwrap_or_default();
    if flows.is_empty() {
        return last_report(api, node, object);
    }
    let lost_to = api
        .get("/test/lost-to")
        .map(|test| test["node"].as_str().unwrap().to_owned());
    let sources: BTreeSet<&str> = flows.iter().filter_map(|flow| flow["source"].as_str()).collect();
    let breaches: Vec<Value> = flows
        .iter()
        .filter(|flow| {
            lost_to
                .as_ref()
                .is_some_and(|lost| flow["to"] == format!("node {lost}"))
        })
        .map(|flow| {
            json!({
                "flow": flow, "protocol": "Udp", "since": "2026-01-01T00:00:00Z",
                "message": format!(
                    "{}, UDP from node {node} to {}",
                    flow["class"].as_str().unwrap(),
                    flow["to"].as_str().unwrap()
                ),
            })
        })
        .collect();
    json!({
        "lossesCountedSince": object["spec"]["lossesCountedSince"],
        "flows": flows.len(), "reporting": sources, "breaches": breaches, "at": "2026-01-01T00:00:00Z",
        "classes": [{ "class": "OldToOld", "sent": 100, "lost": 1, "longestGapMilliseconds": 100 }],
    })
}

const LAST_WORD: &str = "/test/last-word";

/// The agent's last report. With the mark of a test the agent answers late, and more was lost until then.
fn last_report(api: &FakeApi, node: &str, object: &Value) -> Value {
    let before = &object["status"]["traffic"];
    let Some(word) = api.get(LAST_WORD).filter(|_| before.is_object()) else {
        return Value::Null;
    };
    let moves = word["moves"].as_u64().unwrap();
    if moves > 0 {
        api.edit(LAST_WORD, &json!({ "moves": moves - 1 }));
        return before.clone();
    }
    let generation = &object["metadata"]["generation"];
    api.edit(
        &node_migration(node),
        &json!({ "status": { "observedGeneration": generation } }),
    );
    json!({
        "flows": 0, "reporting": [], "breaches": [], "at": "2026-01-01T00:00:00Z",
        "classes": [{ "class": "OldToOld", "sent": 100, "lost": 7, "longestGapMilliseconds": 700 }],
    })
}

pub(super) fn watched(api: FakeApi) -> FakeApi {
    api.edit(MIGRATION, &json!({ "spec": { "gates": { "traffic": "Watch" } } }));
    api.take_changes();
    api
}

/// Probes to node b are lost before the first change.
async fn stopped_at_the_start() -> (FakeApi, Memory) {
    let api = watched(cluster());
    api.put("/test/lost-to", json!({ "node": "b" }));
    let mut memory = Memory::default();
    passes(&api, &mut memory, 20).await;
    assert_eq!(status(&api)["reason"], "GateBreached");
    (api, memory)
}

fn resume(api: &FakeApi) {
    api.edit(
        MIGRATION,
        &json!({ "spec": { "resumedAt": "2026-02-01T00:00:00Z" } }),
    );
}

fn status(api: &FakeApi) -> Value {
    api.get(MIGRATION).unwrap()["status"].clone()
}

async fn passes(api: &FakeApi, memory: &mut Memory, count: usize) {
    for _ in 0..count {
        let _ = pass(&api.context(), &api.cache(), memory).await;
        world_moves(api);
    }
}

fn is_done(api: &FakeApi, node: &str) -> bool {
    api.get(&node_migration(node)).unwrap_or_default()["spec"]["finishedAt"].is_string()
}

#[tokio::test]
async fn in_a_drain_traffic_pods_follow_the_networks() {
    let api = watched(cluster());
    let mut seen = BTreeSet::new();
    let mut memory = Memory::default();
    for _ in 0..200 {
        passes(&api, &mut memory, 1).await;
        if status(&api)["phase"] == "Completed" {
            break;
        }
        for object in ["a", "b"].map(|node| api.get(&node_migration(node)).unwrap_or_default()) {
            for flow in object["spec"]["flows"].as_array().into_iter().flatten() {
                seen.insert(flow["class"].as_str().unwrap().to_owned());
            }
        }
    }
    assert_eq!(status(&api)["phase"], "Completed", "{}", status(&api));
    let classes: Vec<&str> = seen.iter().map(String::as_str).collect();
    assert_eq!(classes, ["NewToNew", "NewToOld", "OldToNew", "OldToOld"]);
    assert_eq!(traffic_pods(&api), Vec::<Value>::new());
    for node in ["a", "b"] {
        assert!(api.get(&node_migration(node)).unwrap()["spec"]["flows"].is_null());
    }
    let sum = &status(&api)["traffic"][0];
    assert_eq!((sum["sent"].as_u64(), sum["lost"].as_u64()), (Some(200), Some(2)));
}

/// The traffic pod on flannel's network lives through the change, and does not count as a legacy pod.
#[tokio::test]
async fn in_place_the_old_traffic_pod_stays_and_is_not_counted() {
    let api = watched(in_place());
    let mut memory = Memory::default();
    for _ in 0..100 {
        passes(&api, &mut memory, 1).await;
        if status(&api)["phase"] == "Mixed" {
            break;
        }
        if is_done(&api, "a") {
            assert!(lives_on_old(&api, "a"));
        }
    }
    passes(&api, &mut memory, 5).await;
    assert_eq!(status(&api)["phase"], "Mixed", "{}", status(&api));
    let message = status(&api)["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("keep their addresses: 2 ("),
        "traffic pods are counted: {message}"
    );
    let pods: BTreeMap<String, usize> = traffic_pods(&api).iter().fold(BTreeMap::new(), |mut sum, pod| {
        *sum.entry(network(pod).to_owned()).or_default() += 1;
        sum
    });
    assert_eq!(
        pods,
        BTreeMap::from([("calico".to_owned(), 2), ("flannel".to_owned(), 2)])
    );
    let story = story(&api.take_changes());
    assert!(
        !story
            .iter()
            .any(|line| line.starts_with("delete replumb-traffic")),
        "{story:#?}"
    );
    for node in ["a", "b"] {
        api.remove(&mark(node));
    }
    run_to_the_end(&api).await.unwrap();
    assert_eq!(traffic_pods(&api), Vec::<Value>::new());
}

#[tokio::test]
async fn no_node_is_started_before_traffic_is_watched() {
    let api = watched(cluster());
    api.put("/test/silent", json!({}));
    let mut memory = Memory::default();
    passes(&api, &mut memory, 20).await;
    assert_eq!(status(&api)["reason"], "TrafficUnwatched");
    let message = status(&api)["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("traffic is watched on 0 of 2 nodes; node a: pod replumb-traffic-"),
        "{message}"
    );
    for node in ["a", "b"] {
        assert_ne!(
            api.get(&node_migration(node)).unwrap()["spec"]["started"],
            true,
            "node {node} is started"
        );
    }
    api.remove("/test/silent");
    run_to_the_end(&api).await.unwrap();
}

/// The rollout waits for an agent without a report. Then the agent is reported, and the other nodes continue, forward and back.
#[tokio::test]
async fn a_silent_agent_is_reported_and_other_nodes_continue() {
    for make in [drained as fn() -> FakeApi, in_place] {
        let api = watched(make());
        put_node(&api, "c", 3);
        api.put("/test/silent", json!({ "nodes": ["b"] }));
        let mut memory = Memory::default();
        passes(&api, &mut memory, 20).await;
        assert_eq!(status(&api)["reason"], "TrafficUnwatched", "{}", status(&api));
        for node in ["a", "b", "c"] {
            assert_ne!(
                api.get(&node_migration(node)).unwrap()["spec"]["started"],
                true,
                "{node}"
            );
        }
        memory.traffic.silences.hurry();
        passes(&api, &mut memory, 1).await;
        let warnings = status(&api)["warnings"].to_string();
        let words = "node b: its agent does not report its traffic pod (pod replumb-traffic-";
        assert!(warnings.contains(words), "{warnings}");
        for _ in 0..100 {
            passes(&api, &mut memory, 1).await;
        }
        assert!(is_done(&api, "a") && is_done(&api, "c"), "{}", status(&api));
        if api.get(super::FLANNEL).is_some() {
            api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
            run_until(&api, "RolledBack").await.unwrap();
        }
    }
}

/// With most agents silent, traffic is not a gate any more: that stops the way forward, and not a rollback.
#[tokio::test]
async fn with_most_agents_silent_no_node_starts_and_all_are_rolled_back() {
    for make in [drained as fn() -> FakeApi, in_place] {
        let api = watched(make());
        put_node(&api, "c", 3);
        let mut memory = Memory::default();
        while !is_done(&api, "a") {
            passes(&api, &mut memory, 1).await;
        }
        // A fix has to be confirmed by traffic.
        api.put("/test/lost-to", json!({ "node": "a" }));
        passes(&api, &mut memory, 40).await;
        assert_eq!(status(&api)["reason"], "GateBreached", "{}", status(&api));
        api.remove("/test/lost-to");
        api.put("/test/silent", json!({ "nodes": ["a", "b"] }));
        resume(&api);
        passes(&api, &mut memory, 20).await;
        memory.traffic.silences.hurry();
        passes(&api, &mut memory, 20).await;
        let held = status(&api);
        assert_eq!(held["reason"], "TrafficUnwatched", "{held}");
        let message = held["message"].as_str().unwrap();
        let words =
            "traffic is watched on 1 of 3 nodes, needed 2; node a: its agent does not report its traffic pod";
        assert!(message.starts_with(words), "{message}");
        assert!(!is_done(&api, "c"), "{held}");
        api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
        run_until(&api, "RolledBack").await.unwrap();
    }
}

#[tokio::test]
async fn losses_stop_the_rollout_and_resume_completes_it() {
    let api = watched(in_place());
    let mut memory = Memory::default();
    while !is_done(&api, "a") {
        passes(&api, &mut memory, 1).await;
    }
    // Node b is in progress or about to be, and is finished.
    api.put("/test/lost-to", json!({ "node": "a" }));
    passes(&api, &mut memory, 40).await;
    let stopped = status(&api);
    assert_eq!(
        (&stopped["phase"], &stopped["reason"], &stopped["paused"]),
        (&json!("Halted"), &json!("GateBreached"), &json!(true)),
        "{stopped}"
    );
    let message = stopped["message"].as_str().unwrap();
    assert!(
        message.contains("UDP from node b to node a") && message.contains("kubectl replumb resume"),
        "{message}"
    );
    // The cause is gone: the decision is still the user's.
    api.remove("/test/lost-to");
    for node in ["a", "b"] {
        api.remove(&mark(node));
    }
    passes(&api, &mut memory, 10).await;
    assert_eq!(status(&api)["phase"], "Halted");
    assert!(api.get(super::FLANNEL).is_some(), "a rollback is possible");
    resume(&api);
    run_to_the_end(&api).await.unwrap();
}

#[tokio::test]
async fn continued_losses_stop_it_again_and_not_a_rollback() {
    let (api, mut memory) = stopped_at_the_start().await;
    assert_ne!(api.get(&node_migration("a")).unwrap()["spec"]["started"], true);
    let first = status(&api)["breach"].clone();
    resume(&api);
    passes(&api, &mut memory, 3).await;
    assert_eq!(status(&api)["reason"], "GateBreached");
    assert_ne!(status(&api)["breach"], first);
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    run_until(&api, "RolledBack").await.unwrap();
    assert_eq!(traffic_pods(&api), Vec::<Value>::new());
}

/// Losses before the user resumes do not count; but no node is started before the agents have reported again.
#[tokio::test]
async fn a_resumed_rollout_waits_for_new_reports_of_all_agents() {
    let (api, mut memory) = stopped_at_the_start().await;
    api.remove("/test/lost-to");
    api.put("/test/deaf", json!({}));
    resume(&api);
    passes(&api, &mut memory, 5).await;
    assert_eq!(status(&api)["reason"], "TrafficUnwatched");
    assert_eq!(status(&api)["breach"]["cleanSince"], Value::Null);
    assert_ne!(api.get(&node_migration("a")).unwrap()["spec"]["started"], true);
    api.remove("/test/deaf");
    for node in ["a", "b"] {
        api.remove(&mark(node));
    }
    run_to_the_end(&api).await.unwrap();
    assert!(status(&api)["breach"]["cleanSince"].is_string());
}

/// Runs passes to the end. Once `has_come`, agents report their last counts late. Returns the reasons for waiting.
async fn reasons_with_late_reports(
    api: &FakeApi,
    end: &str,
    has_come: impl Fn(&Value) -> bool,
) -> Vec<String> {
    let mut memory = Memory::default();
    let mut reasons = Vec::new();
    for _ in 0..200 {
        let now = status(api);
        if now["phase"] == end {
            return reasons;
        }
        if api.get(LAST_WORD).is_none() && has_come(&now) {
            api.put(LAST_WORD, json!({ "metadata": {}, "moves": 12 }));
        }
        reasons.push(now["reason"].as_str().unwrap_or_default().to_owned());
        passes(api, &mut memory, 1).await;
    }
    panic!("not {end} after 200 passes: {}", status(api));
}

#[tokio::test]
async fn losses_just_before_the_end_are_in_the_sum_in_both_directions() {
    let lost = |api: &FakeApi| status(api)["traffic"][0]["lost"].as_u64();
    for make in [cluster as fn() -> FakeApi, drained] {
        let api = watched(make());
        let reasons =
            reasons_with_late_reports(&api, "Completed", |status| status["phase"] == "Finishing").await;
        assert!(reasons.contains(&"TrafficUnwatched".to_owned()), "{reasons:?}");
        assert_eq!(lost(&api), Some(14));
    }
    let api = watched(in_place());
    let mut memory = Memory::default();
    while !is_done(&api, "a") {
        passes(&api, &mut memory, 1).await;
    }
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    let reasons = reasons_with_late_reports(&api, "RolledBack", |status| {
        status["rollbackStartedAt"].is_string()
    })
    .await;
    assert!(reasons.contains(&"TrafficUnwatched".to_owned()), "{reasons:?}");
    assert_eq!(lost(&api), Some(14));
}

/// A traffic pod answers for some seconds after its deletion, and the host of its node waits for its end.
#[tokio::test]
async fn a_new_traffic_pod_goes_while_the_node_before_is_rolled_back() {
    let api = watched(in_place());
    let mut memory = Memory::default();
    for _ in 0..100 {
        passes(&api, &mut memory, 1).await;
        if is_done(&api, "a") && is_done(&api, "b") {
            break;
        }
    }
    passes(&api, &mut memory, 5).await;
    let lives = |node: &str| {
        let pods = traffic_pods(&api);
        let mut pods = pods.iter();
        pods.any(|pod| pod["spec"]["nodeName"] == node && network(pod) == names::NETWORK_CALICO)
    };
    assert!(lives("a") && lives("b"), "{:?}", traffic_pods(&api));
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    let mut is_ahead = false;
    for _ in 0..200 {
        passes(&api, &mut memory, 1).await;
        is_ahead |= is_done(&api, "a") && !is_done(&api, "b") && !lives("a");
        if status(&api)["phase"] == "RolledBack" {
            break;
        }
    }
    assert_eq!(status(&api)["phase"], "RolledBack", "{}", status(&api));
    assert!(is_ahead);
}

#[tokio::test]
async fn ignoring_traffic_deletes_the_pods_and_continues() {
    let api = watched(cluster());
    api.put("/test/silent", json!({}));
    let mut memory = Memory::default();
    passes(&api, &mut memory, 20).await;
    assert_eq!(traffic_pods(&api).len(), 2);
    api.edit(
        MIGRATION,
        &json!({ "spec": { "gates": { "traffic": "Ignore" } } }),
    );
    passes(&api, &mut memory, 3).await;
    assert_eq!(traffic_pods(&api), Vec::<Value>::new());
    run_to_the_end(&api).await.unwrap();
}

#[tokio::test]
async fn a_crash_after_any_write_leads_to_the_same_end() {
    let start = async || watched(cluster());
    let undisturbed = walk::undisturbed(start, async |api| run_to_the_end(api).await.unwrap()).await;
    let lines = story(&undisturbed.changes);
    assert_in_order(&lines, &["label a none", "label a calico", "label b none"]);
    let end = steady(undisturbed.api.everything());
    // Every third write: the writes that both have are each the last one in `scenarios`.
    let writes = (0..undisturbed.changes.len()).step_by(3);
    walk::crash_after_each(writes, start, crash_after, async |api, when| {
        run_to_the_end(api)
            .await
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_same(&end, &steady(api.everything()), when);
    })
    .await;
}
