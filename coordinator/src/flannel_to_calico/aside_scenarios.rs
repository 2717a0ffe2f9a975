//! A node that does not take its first step, there or back, keeps no other node from it, whichever of its writes is refused, and where its
//! agent holds it.

use api::names;
use rstest::rstest;
use serde_json::{Value, json};

use super::back_scenarios::{ask, drained};
use super::in_place_scenarios::in_place;
use super::scenarios::{MIGRATION, NODES, node_migration, put_node, run_to_the_end, run_until};
use super::stranger_scenarios::passes_of_one;
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
    /// The same, and the cordon cannot be lifted.
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

    fn mend(self, api: &FakeApi, node: &str) {
        match self {
            Self::ByTheAgent => set_agent(api, node, "True"),
            Self::AtTheCordon | Self::AfterTheCordon | Self::AtTheUncordon => api.refuse(None),
        }
    }

    /// What the status says of it.
    fn is_told(self, status: &Value, node: &str) -> bool {
        let says = |words: &str| {
            status["message"]
                .as_str()
                .is_some_and(|message| message.contains(words))
        };
        match self {
            Self::ByTheAgent => {
                status["blocked"] == "AgentSilent" && says(&format!("no agent is Ready on node {node}"))
            }
            Self::AtTheCordon | Self::AfterTheCordon => {
                status["blocked"] == "RequestRefused" && says(WORDS) && says(&format!("Node {node}"))
            }
            Self::AtTheUncordon => says(WORDS) && says("keeps its place, since its cordon cannot be lifted"),
        }
    }
}

fn set_agent(api: &FakeApi, node: &str, ready: &str) {
    api.edit(
        &format!("/api/v1/namespaces/replumb-system/pods/agent-{node}"),
        &json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } }),
    );
}

/// Puts a pod that an eviction moves: without one nothing is cordoned on the way back.
fn put_web(api: &FakeApi, node: &str, address: &str) {
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

/// How many nodes may be out of work so that another one goes on: one that keeps its cordon is out of work.
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
async fn on_the_way_there_other_nodes_go_on(#[case] held: Held) {
    let api = drained();
    // One that proves the others while the first is held.
    put_node(&api, "c", 3);
    run_until(&api, "Rolling").await.unwrap();
    allow(&api, held);
    held.begin(&api, "a");
    let is_done = |node: &str| !spec(&api, node)["finishedAt"].is_null();
    passes_of_one(&api, 300, || is_done("b") && is_done("c")).await;
    assert!(!is_done("a"));
    passes_of_one(&api, 5, || held.is_told(&status(&api), "a")).await;
    // In between it is as it was before, and tried again.
    match held {
        Held::AtTheUncordon => assert!(is_cordoned(&api, "a") && spec(&api, "a")["admitted"] == true),
        Held::ByTheAgent | Held::AtTheCordon | Held::AfterTheCordon => {
            let rests = || spec(&api, "a")["admitted"] != true && spec(&api, "a")["skipped"] == true;
            passes_of_one(&api, 5, rests).await;
            assert!(!is_cordoned(&api, "a"));
            assert_eq!(status(&api)["progress"]["deferred"], json!(["a"]));
        }
    }
    held.mend(&api, "a");
    run_to_the_end(&api).await.unwrap();
    assert!(!is_cordoned(&api, "a"));
}

#[rstest]
#[case(Held::ByTheAgent)]
#[case(Held::AtTheCordon)]
#[case(Held::AfterTheCordon)]
#[case(Held::AtTheUncordon)]
#[tokio::test]
async fn on_the_way_back_other_nodes_go_on(#[case] held: Held) {
    let api = in_place();
    put_node(&api, "c", 3);
    run_until(&api, "Mixed").await.unwrap();
    for (node, address) in [("a", "10.244.1.30"), ("b", "10.244.2.30"), ("c", "10.244.3.30")] {
        put_web(&api, node, address);
    }
    allow(&api, held);
    // The last one is the first to go back.
    held.begin(&api, "c");
    let finished = spec(&api, "c")["finishedAt"].clone();
    ask(&api, &json!({ "desired": "Rollback" }));
    let is_back = |node: &str| !spec(&api, node)["returnedAt"].is_null();
    passes_of_one(&api, 300, || is_back("a") && is_back("b")).await;
    assert!(!is_back("c"));
    passes_of_one(&api, 5, || held.is_told(&status(&api), "c")).await;
    match held {
        Held::AtTheUncordon => assert!(is_cordoned(&api, "c") && spec(&api, "c")["returning"] == true),
        Held::ByTheAgent | Held::AtTheCordon | Held::AfterTheCordon => {
            // In between it is done, as it was before.
            passes_of_one(&api, 5, || spec(&api, "c")["finishedAt"] == finished).await;
            assert!(!is_cordoned(&api, "c"));
            assert_ne!(spec(&api, "c")["returning"], true);
        }
    }
    held.mend(&api, "c");
    run_until(&api, "RolledBack").await.unwrap();
    assert!(!is_cordoned(&api, "c"));
}

#[rstest]
#[case::there(false)]
#[case::back(true)]
#[tokio::test]
async fn a_cordon_that_cannot_be_lifted_takes_the_place(#[case] back: bool) {
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
    passes_of_one(&api, 60, || Held::AtTheUncordon.is_told(&status(&api), held)).await;
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
        "{other} waits for its place"
    );
    assert_eq!(status(&api)["progress"]["working"], json!([held]));
}
