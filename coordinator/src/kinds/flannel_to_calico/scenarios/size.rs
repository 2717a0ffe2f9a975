//! Many nodes on a fake API server: a pass without changes sends no request; and its processor time.

use serde_json::{Value, json};

use super::super::scenarios;
use super::node_migration;
use super::traffic;
use crate::fake_api::{FakeApi, MIGRATION};
use crate::pass_cost::{self, Cost};

/// Pods to be evicted from one node.
const PODS_OF_A_NODE: usize = 30;

fn name(number: usize) -> String {
    format!("node-{number:05}")
}

fn parts(number: usize) -> [u8; 2] {
    [number / 250, number % 250].map(|part| u8::try_from(part).unwrap())
}

/// The first three parts of a node's pod addresses.
fn prefix(number: usize) -> String {
    let [high, low] = parts(number);
    format!("10.{}.{low}", 100 + high)
}

/// `nodes` nodes on flannel with their pods; the migration is started, and a tenth of the nodes may be unavailable.
fn cluster(nodes: usize, strategy: &str) -> FakeApi {
    let api = scenarios::empty();
    api.edit(
        MIGRATION,
        &json!({
            "spec": {
                "flannelToCalico": { "strategy": strategy, "soakSeconds": 0 }, "rollout": { "maxUnavailable": "10%" }, "gates": { "traffic": "Watch" },
            },
            "status": { "flannelToCalico": { "settings": { "flannelNetwork": { "value": "10.0.0.0/8" } } } },
        }),
    );
    for number in 0..nodes {
        let [high, low] = parts(number);
        let prefix = prefix(number);
        scenarios::put_node_with(&api, &name(number), &prefix, [192, 168, high, low]);
        for pod in 1..PODS_OF_A_NODE {
            scenarios::put_pod(
                &api,
                "default",
                &format!("web-{number:05}-{pod}"),
                &name(number),
                "log",
                false,
                Some(&format!("{prefix}.{}", pod + 9)),
            );
        }
    }
    api
}

/// Each agent reports once that its host is unchanged, and that each traffic pod sends as ordered. Kubelets start the traffic
/// pods.
fn agents_report(api: &FakeApi, nodes: usize) {
    for pod in traffic::traffic_pods(api) {
        let node = pod["spec"]["nodeName"].as_str().unwrap();
        let number = node.trim_start_matches("node-").parse().unwrap();
        if pod["status"]["podIP"].is_null() {
            traffic::run(api, &pod, &format!("{}.200", prefix(number)));
        }
    }
    for number in 0..nodes {
        let path = node_migration(&name(number));
        let Some(object) = api.get(&path) else { continue };
        if object["status"]["flannelToCalico"]["phase"] == Value::Null {
            let status = json!({ "message": "as it was", "flannelToCalico": { "phase": "Flannel", "goal": "Hold", "changes": [] } });
            api.edit(&path, &json!({ "status": status }));
        }
        let report = traffic::report(api, &name(number), &object);
        if !report.is_null() && report["reporting"] != object["status"]["traffic"]["reporting"] {
            api.edit(&path, &json!({ "status": { "traffic": report } }));
        }
    }
}

/// Cost of passes while a tenth of the nodes waits for flannel pods that do not terminate here.
async fn cost(nodes: usize, strategy: &str) -> Cost {
    let api = cluster(nodes, strategy);
    let cost = pass_cost::of_passes_without_change(&api, |api| agents_report(api, nodes)).await;
    let status = &api.get(MIGRATION).unwrap()["status"];
    let working = status["progress"]["working"].as_array().map(Vec::len);
    assert!(working.is_some_and(|working| working > 0), "{strategy}: {status}");
    cost
}

#[tokio::test]
async fn a_pass_without_changes_sends_no_request() {
    for strategy in ["Drain", "InPlace"] {
        assert_eq!(cost(30, strategy).await.requests, [""; 0], "{strategy}");
    }
}

/// `cargo test --release -p coordinator --lib flannel_to_calico::scenarios::size::processor_time -- --ignored --nocapture`
#[tokio::test]
#[ignore = "a benchmark that needs memory and time"]
async fn processor_time() {
    for strategy in ["Drain", "InPlace"] {
        for nodes in [500, 5000] {
            println!(
                "flannelToCalico, {strategy}, {nodes} nodes: {}",
                cost(nodes, strategy).await
            );
        }
    }
}
