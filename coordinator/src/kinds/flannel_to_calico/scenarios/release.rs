//! A node that does not take its first step, forward or back, delays no other node, whichever of its writes is refused, and also
//! if its agent holds it.

use api::names;
use rstest::rstest;
use serde_json::{Value, json};

use super::back::{ask, drained};
use super::foreign_object::passes_of_one;
use super::in_place::in_place;
use super::{MIGRATION, NODES, node_migration, put_node, run_to_the_end, run_until};
use crate::fake_api::FakeApi;

const WORDS: &str = "denied by policy: the node is frozen";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// The agent of the node is not Ready.
    ByTheAgent,
    /// The cordon is refused.
    AtTheCordon,
    /// The label is refused, which comes after the cordon.
    AfterTheCordon,
    /// The label is refused, and the cordon cannot be removed.
    AtTheUncordon,
}

fn is_cordon(patch: &Value) -> bool {
    patch["spec"]["unschedulable"] == true
}

fn is_uncordon(patch: &Value) -> bool {
    patch["spec"].get("unschedulable").is_some_and(Value::is_null)
}

fn is_label(patch: &Value) -> bool {
    !patch["metadata"]["labels"][names::NODE_NETWORK_LABEL].is_null()
}

impl Held {
    fn begin(self, api: &FakeApi, node: &str) {
        let path = format!("{NODES}/{node}");
        match self {
            Self::ByTheAgent => set_agent(api, node, "False"),
            Self::AtTheCordon => api.deny_where(&path, WORDS, is_cordon),
            Self::AfterTheCordon => api.deny_where(&path, WORDS, is_label),
            Self::AtTheUncordon => {
                api.deny_where(&path, WORDS, is_label);
                api.deny_where(&path, WORDS, is_uncordon);
            }
        }
    }

    fn repair(self, api: &FakeApi, node: &str) {
        match self {
            Self::ByTheAgent => set_agent(api, node, "True"),
            Self::AtTheCordon | Self::AfterTheCordon | Self::AtTheUncordon => api.refuse(None),
        }
    }

    /// Whether the status reports it.
    fn is_reported(self, status: &Value, node: &str) -> bool {
        let says = |words: &str| {
            status["message"]
                .as_str()
                .is_some_and(|message| message.contains(words))
        };
        match self {
            Self::ByTheAgent => {
                status["reason"] == "AgentSilent" && says(&format!("no agent is Ready on node {node}"))
            }
            Self::AtTheCordon | Self::AfterTheCordon => {
                status["reason"] == "RequestRefused" && says(WORDS) && says(&format!("Node {node}"))
            }
            Self::AtTheUncordon => {
                says(WORDS) && says("keeps its place in the rollout, because its cordon cannot be removed")
            }
        }
    }
}

fn set_agent(api: &FakeApi, node: &str, ready: &str) {
    api.edit(
        &format!("/api/v1/namespaces/replumb-system/pods/agent-{node}"),
        &json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } }),
    );
}

/// Puts a pod that an eviction moves: without one no node is cordoned during a rollback.
pub(super) fn put_web(api: &FakeApi, node: &str, address: &str) {
    let name = format!("web-{node}");
    api.put(
        &format!("/api/v1/namespaces/default/pods/{name}"),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "default",
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": true,
                }],
            },
            "spec": { "nodeName": node, "containers": [] },
            "status": { "phase": "Running", "podIP": address, "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
    );
}

fn spec(api: &FakeApi, node: &str) -> Value {
    api.get(&node_migration(node)).unwrap()["spec"].clone()
}

fn status(api: &FakeApi) -> Value {
    api.get(MIGRATION).unwrap()["status"].clone()
}

/// Number of unavailable nodes with which another node continues: a node that keeps its cordon is unavailable.
fn allow(api: &FakeApi, held: Held) {
    let limit = if held == Held::AtTheUncordon { 2 } else { 1 };
    ask(api, &json!({ "rollout": { "maxUnavailable": limit } }));
}

fn is_cordoned(api: &FakeApi, node: &str) -> bool {
    api.get(&format!("{NODES}/{node}")).unwrap()["spec"]["unschedulable"] == true
}

#[rstest]
#[case(Held::ByTheAgent)]
#[case(Held::AtTheCordon)]
#[case(Held::AfterTheCordon)]
#[case(Held::AtTheUncordon)]
#[tokio::test]
async fn going_forward_other_nodes_continue(#[case] held: Held) {
    let api = drained();
    // A node that proves the others while the first is held.
    put_node(&api, "c", 3);
    run_until(&api, "Rolling").await.unwrap();
    allow(&api, held);
    held.begin(&api, "a");
    let is_done = |node: &str| !spec(&api, node)["finishedAt"].is_null();
    passes_of_one(&api, 300, || is_done("b") && is_done("c")).await;
    assert!(!is_done("a"));
    passes_of_one(&api, 5, || held.is_reported(&status(&api), "a")).await;
    // Between attempts it is in its previous state, and retried.
    match held {
        Held::AtTheUncordon => assert!(is_cordoned(&api, "a") && spec(&api, "a")["started"] == true),
        Held::ByTheAgent | Held::AtTheCordon | Held::AfterTheCordon => {
            let rests = || spec(&api, "a")["started"] != true && spec(&api, "a")["skipped"] == true;
            passes_of_one(&api, 5, rests).await;
            assert!(!is_cordoned(&api, "a"));
            assert_eq!(status(&api)["progress"]["deferred"], json!(["a"]));
        }
    }
    held.repair(&api, "a");
    run_to_the_end(&api).await.unwrap();
    assert!(!is_cordoned(&api, "a"));
}

#[rstest]
#[case(Held::ByTheAgent)]
#[case(Held::AtTheCordon)]
#[case(Held::AfterTheCordon)]
#[case(Held::AtTheUncordon)]
#[tokio::test]
async fn during_a_rollback_other_nodes_continue(#[case] held: Held) {
    let api = in_place();
    put_node(&api, "c", 3);
    run_until(&api, "Mixed").await.unwrap();
    for (node, address) in [("a", "10.244.1.30"), ("b", "10.244.2.30"), ("c", "10.244.3.30")] {
        put_web(&api, node, address);
    }
    allow(&api, held);
    // The last node is rolled back first.
    held.begin(&api, "c");
    let finished = spec(&api, "c")["finishedAt"].clone();
    ask(&api, &json!({ "desired": "Rollback" }));
    let is_back = |node: &str| !spec(&api, node)["returnedAt"].is_null();
    passes_of_one(&api, 300, || is_back("a") && is_back("b")).await;
    assert!(!is_back("c"));
    passes_of_one(&api, 5, || held.is_reported(&status(&api), "c")).await;
    match held {
        Held::AtTheUncordon => assert!(is_cordoned(&api, "c") && spec(&api, "c")["rollingBack"] == true),
        Held::ByTheAgent | Held::AtTheCordon | Held::AfterTheCordon => {
            // Between attempts it is finished, in its previous state.
            passes_of_one(&api, 5, || spec(&api, "c")["finishedAt"] == finished).await;
            assert!(!is_cordoned(&api, "c"));
            assert_ne!(spec(&api, "c")["rollingBack"], true);
        }
    }
    held.repair(&api, "c");
    run_until(&api, "RolledBack").await.unwrap();
    assert!(!is_cordoned(&api, "c"));
}

/// Reason why a pod stays on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    /// No controller recreates it.
    Bare,
    /// Its eviction is refused, like by a budget.
    Refused,
    /// Pod of a `DaemonSet`, which leaves once the node's network has begun to change, and whose budget allows no disruption.
    OfDaemonSet,
    /// The same with an endless grace period.
    Endless,
}

const SHOP: &str = "/api/v1/namespaces/shop/pods";
const BUDGET: &str = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/stays";

impl Stays {
    /// Puts such a pod on the node of this name, beside a pod that leaves.
    fn begin(self, api: &FakeApi, node: &str, address: &str) {
        put_web(api, node, &format!("{address}.30"));
        let name = format!("stays-{node}");
        let owned_by = |kind: &str| json!([{ "apiVersion": "apps/v1", "kind": kind, "name": "s", "uid": "s", "controller": true }]);
        let owners = match self {
            Self::Bare => json!([]),
            Self::Refused => owned_by("ReplicaSet"),
            Self::OfDaemonSet | Self::Endless => owned_by("DaemonSet"),
        };
        let grace = if self == Self::Endless { i32::MAX } else { 30 };
        api.put(
            &format!("{SHOP}/{name}"),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": name, "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": owners,
                    "labels": { "app": "stays" },
                },
                "spec": { "nodeName": node, "containers": [], "terminationGracePeriodSeconds": grace },
                "status": {
                    "phase": "Running", "podIP": format!("{address}.31"), "conditions": [{ "type": "Ready", "status": "True" }],
                },
            }),
        );
        match self {
            Self::Bare | Self::Endless => {}
            Self::Refused => api.deny(&format!("{SHOP}/{name}/eviction"), "the budget allows none"),
            Self::OfDaemonSet => api.put(
                BUDGET,
                json!({
                    "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                    "metadata": { "name": "stays", "namespace": "shop" },
                    "spec": { "selector": { "matchLabels": { "app": "stays" } } },
                    "status": { "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 },
                }),
            ),
        }
    }

    fn repair(self, api: &FakeApi, node: &str) {
        match self {
            Self::Bare | Self::Endless => {}
            Self::Refused => api.refuse(None),
            Self::OfDaemonSet => api.remove(BUDGET),
        }
        api.remove(&format!("{SHOP}/stays-{node}"));
    }

    /// Whether it leaves once the node's network has begun to change: then no other pod is moved without need before.
    fn leaves_later(self) -> bool {
        match self {
            Self::Bare | Self::Refused => false,
            Self::OfDaemonSet | Self::Endless => true,
        }
    }
}

/// Makes the drain of this node exceed its limit.
fn drain_is_overdue(api: &FakeApi, node: &str) {
    if spec(api, node)["step"]["name"] == "Drain" {
        let since = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(1);
        api.edit(
            &node_migration(node),
            &json!({ "spec": { "step": { "since": since } } }),
        );
    }
}

fn goes(api: &FakeApi, node: &str) -> bool {
    api.get(&format!("/api/v1/namespaces/default/pods/web-{node}"))
        .is_none()
}

fn names_the_pod(api: &FakeApi, node: &str) -> bool {
    status(api)["message"]
        .as_str()
        .is_some_and(|message| message.contains(&format!("shop/stays-{node}")))
}

#[rstest]
#[case(Stays::Bare, "Pause")]
#[case(Stays::Refused, "Pause")]
#[case(Stays::Bare, "Wait")]
#[case(Stays::Bare, "Skip")]
#[case(Stays::Refused, "Skip")]
#[case(Stays::OfDaemonSet, "Pause")]
#[case(Stays::OfDaemonSet, "Skip")]
#[case(Stays::Endless, "Pause")]
#[case(Stays::Endless, "Skip")]
#[tokio::test]
async fn going_forward_a_blocked_pod_is_handled_as_on_blocked_says(
    #[case] stays: Stays,
    #[case] on_blocked: &str,
) {
    let api = drained();
    put_node(&api, "c", 3);
    ask(&api, &json!({ "drain": { "onBlocked": on_blocked } }));
    run_until(&api, "Rolling").await.unwrap();
    stays.begin(&api, "a", "10.244.1");
    if !stays.leaves_later() {
        passes_of_one(&api, 30, || goes(&api, "a")).await;
    }
    passes_of_one(&api, 30, || names_the_pod(&api, "a")).await;
    assert_eq!(goes(&api, "a"), !stays.leaves_later(), "evicted without need");
    assert!(api.get(&format!("{SHOP}/stays-a")).is_some());
    let is_done = |node: &str| !spec(&api, node)["finishedAt"].is_null();
    if on_blocked == "Skip" {
        passes_of_one(&api, 300, || {
            drain_is_overdue(&api, "a");
            is_done("b") && is_done("c")
        })
        .await;
    } else {
        let mut left = 30;
        passes_of_one(&api, 40, || {
            drain_is_overdue(&api, "a");
            left -= 1;
            left == 0
        })
        .await;
        let is_halted = spec(&api, "a")["step"]["halted"] == true;
        assert_eq!(is_halted, on_blocked == "Pause", "{}", status(&api));
        assert_eq!(is_cordoned(&api, "a"), !stays.leaves_later());
        assert_eq!(status(&api)["progress"]["working"], json!(["a"]));
    }
    assert!(!is_done("a"));
    passes_of_one(&api, 10, || names_the_pod(&api, "a")).await;
    stays.repair(&api, "a");
    run_to_the_end(&api).await.unwrap();
}

/// The fix that the wait names: the pod is evicted with that grace period, once new pods wait.
#[tokio::test]
async fn an_endless_pod_gets_the_grace_period_of_the_drain() {
    let api = drained();
    run_until(&api, "Rolling").await.unwrap();
    Stays::Endless.begin(&api, "a", "10.244.1");
    passes_of_one(&api, 30, || names_the_pod(&api, "a")).await;
    assert!(!is_cordoned(&api, "a"));
    ask(&api, &json!({ "drain": { "gracePeriodSeconds": 30 } }));
    run_to_the_end(&api).await.unwrap();
    let path = format!("{SHOP}/stays-a");
    assert_eq!(api.get(&path), None);
    assert_eq!(api.grace_period(&path), Some(30));
}

/// Two nodes are blocked: the one that is released does not wait for the other.
#[tokio::test]
async fn released_nodes_are_retried_in_turn() {
    let api = drained();
    put_node(&api, "c", 3);
    ask(&api, &json!({ "drain": { "onBlocked": "Skip" } }));
    run_until(&api, "Rolling").await.unwrap();
    for (node, address) in [("a", "10.244.1"), ("b", "10.244.2")] {
        Stays::Bare.begin(&api, node, address);
    }
    let is_done = |node: &str| !spec(&api, node)["finishedAt"].is_null();
    let overdue = || {
        drain_is_overdue(&api, "a");
        drain_is_overdue(&api, "b");
    };
    passes_of_one(&api, 300, || {
        overdue();
        is_done("c")
    })
    .await;
    Stays::Bare.repair(&api, "b");
    passes_of_one(&api, 300, || {
        overdue();
        is_done("b")
    })
    .await;
    assert!(!is_done("a"));
}

#[rstest]
#[case(Stays::Bare, "Pause")]
#[case(Stays::Bare, "Wait")]
#[case(Stays::Refused, "Pause")]
#[case(Stays::Refused, "Skip")]
#[case(Stays::OfDaemonSet, "Pause")]
#[case(Stays::OfDaemonSet, "Wait")]
#[case(Stays::Endless, "Pause")]
#[case(Stays::Endless, "Wait")]
#[tokio::test]
async fn during_a_rollback_a_blocked_pod_delays_no_other_node(
    #[case] stays: Stays,
    #[case] on_blocked: &str,
    #[values(false, true)] is_in_place: bool,
) {
    let api = if is_in_place { in_place() } else { drained() };
    put_node(&api, "c", 3);
    ask(&api, &json!({ "drain": { "onBlocked": on_blocked } }));
    let is_done = |node: &str| !spec(&api, node)["finishedAt"].is_null();
    if is_in_place {
        run_until(&api, "Mixed").await.unwrap();
    } else {
        // A drained cluster that has completed has no rollback.
        run_until(&api, "Rolling").await.unwrap();
        passes_of_one(&api, 200, || is_done("a") && is_done("b")).await;
    }
    let finished = spec(&api, "b")["finishedAt"].clone();
    stays.begin(&api, "b", "10.244.2");
    ask(&api, &json!({ "desired": "Rollback" }));
    let is_back =
        |node: &str| !spec(&api, node)["returnedAt"].is_null() || spec(&api, node)["started"] != true;
    let mut most_unavailable = 0;
    passes_of_one(&api, 300, || {
        drain_is_overdue(&api, "b");
        let out_of_work = ["a", "b", "c"]
            .into_iter()
            .filter(|node| is_cordoned(&api, node))
            .count();
        most_unavailable = most_unavailable.max(out_of_work);
        is_back("a") && is_back("c")
    })
    .await;
    assert!(most_unavailable <= 1, "{most_unavailable} nodes were unavailable");
    assert!(!is_back("b"));
    // The other pod went first, and between attempts the node is finished, in its previous state.
    passes_of_one(&api, 60, || {
        drain_is_overdue(&api, "b");
        let is_moved = goes(&api, "b") || stays.leaves_later();
        is_moved && spec(&api, "b")["finishedAt"] == finished
    })
    .await;
    assert!(!is_cordoned(&api, "b"));
    passes_of_one(&api, 20, || names_the_pod(&api, "b")).await;
    stays.repair(&api, "b");
    run_until(&api, "RolledBack").await.unwrap();
}

#[rstest]
#[case::there(false)]
#[case::back(true)]
#[tokio::test]
async fn a_node_with_a_stuck_cordon_keeps_its_place(#[case] back: bool) {
    let api = in_place();
    let (held, other) = if back { ("b", "a") } else { ("a", "b") };
    if back {
        run_until(&api, "Mixed").await.unwrap();
        put_web(&api, held, "10.244.2.30");
        ask(&api, &json!({ "desired": "Rollback" }));
    } else {
        ask(&api, &json!({ "flannelToCalico": { "strategy": "Drain" } }));
        run_until(&api, "Rolling").await.unwrap();
    }
    Held::AtTheUncordon.begin(&api, held);
    passes_of_one(&api, 60, || Held::AtTheUncordon.is_reported(&status(&api), held)).await;
    let before = spec(&api, other);
    let mut left = 20;
    passes_of_one(&api, 30, || {
        left -= 1;
        left == 0
    })
    .await;
    assert!(is_cordoned(&api, held));
    assert_eq!(
        spec(&api, other)["step"],
        before["step"],
        "{other} waits for its turn"
    );
    assert_eq!(status(&api)["progress"]["working"], json!([held]));
}

/// A user deletes the NodeMigration of a node halfway: it is created again, and the node continues from its state.
#[tokio::test]
async fn a_node_with_a_deleted_record_continues() {
    let api = drained();
    run_until(&api, "Rolling").await.unwrap();
    let label = |node: &str| {
        let labels = api.get(&format!("{NODES}/{node}")).unwrap()["metadata"]["labels"].clone();
        labels[names::NODE_NETWORK_LABEL].clone()
    };
    passes_of_one(&api, 60, || label("a") == "none").await;
    assert!(is_cordoned(&api, "a"));
    api.remove(&node_migration("a"));
    // The node is in progress, whatever delays others.
    ask(&api, &json!({ "desired": "Pause" }));
    let is_done = |node: &str| {
        let record = api.get(&node_migration(node));
        record.is_some_and(|record| !record["spec"]["finishedAt"].is_null())
    };
    let mut working = 0;
    passes_of_one(&api, 60, || {
        working = working.max(status(&api)["progress"]["working"].as_array().map_or(0, Vec::len));
        is_done("a")
    })
    .await;
    assert!(!is_cordoned(&api, "a") && working == 1, "{working}");
    ask(&api, &json!({ "desired": "Run" }));
    run_to_the_end(&api).await.unwrap();
}

/// The coordinator may die between a node's change of direction and its next write: its agent knows the time limit.
#[tokio::test]
async fn a_node_that_turns_around_keeps_its_time_limit() {
    let api = drained();
    run_until(&api, "Rolling").await.unwrap();
    passes_of_one(&api, 60, || spec(&api, "a")["step"]["name"] == "DrainDaemonSets").await;
    assert!(!spec(&api, "a")["step"]["timeLimit"].is_null());
    api.take_changes();
    ask(&api, &json!({ "desired": "Rollback" }));
    passes_of_one(&api, 10, || spec(&api, "a")["rollingBack"] == true).await;
    let turned: Vec<Value> = api
        .take_changes()
        .into_iter()
        .filter(|(call, body)| call.ends_with(&node_migration("a")) && body["spec"]["rollingBack"] == true)
        .map(|(_, body)| body["spec"]["step"].clone())
        .collect();
    assert!(!turned.is_empty());
    for step in turned {
        assert_ne!(
            step.get("timeLimit"),
            Some(&Value::Null),
            "the limit is missing: {step}"
        );
    }
}
