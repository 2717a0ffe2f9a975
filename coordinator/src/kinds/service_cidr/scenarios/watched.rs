//! Services exchange their addresses with traffic probes: whole passes on an API server in memory, with running traffic pods and
//! agents that report, or do not.

use api::names;
use rstest::rstest;
use serde_json::{Value, json};

use super::crowd::World;
use crate::fake_api::MIGRATION;

const NODES: [&str; 3] = ["a", "b", "c"];
const PODS: &str = "/api/v1/namespaces/replumb-system/pods";

fn node_migration(node: &str) -> String {
    format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}")
}

/// Three nodes with their agents, and Services without endpoints: their exchange asks no node.
fn world() -> World {
    let world = World::new();
    world
        .api
        .edit(MIGRATION, &json!({ "spec": { "gates": { "traffic": "Watch" } } }));
    for node in NODES {
        world.node(node);
    }
    for number in 0..5 {
        world.service(&format!("shop/web-{number}"), &format!("10.97.0.{}", number + 1));
    }
    world
}

/// Kubelets start the traffic pods, and the agents report; those of `odd` report nonsense instead.
async fn turn(world: &mut World, odd: &[&str]) {
    // A refused write is due again.
    world.context.obstacles.forget();
    world.pass().await;
    for pod in world.api.below(PODS) {
        if pod["metadata"]["labels"][names::COMPONENT_LABEL] == names::TRAFFIC_COMPONENT {
            let path = format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap());
            let running = json!({
                "phase": "Running", "podIP": "10.244.0.9", "conditions": [{ "type": "Ready", "status": "True" }],
                "containerStatuses": [{
                    "name": "traffic", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": {} },
                }],
            });
            world.api.edit(&path, &json!({ "status": running }));
        }
    }
    for node in NODES {
        let Some(object) = world.api.get(&node_migration(node)) else {
            continue;
        };
        let flows = object["spec"]["flows"].as_array();
        let sources: Vec<Value> = flows
            .into_iter()
            .flatten()
            .map(|flow| flow["source"].clone())
            .collect();
        let traffic = json!({
            "lossesCountedSince": object["spec"]["lossesCountedSince"], "flows": 1, "reporting": sources, "breaches": [], "classes": [],
            "at": "2026-01-01T00:00:00Z",
        });
        let phase = if odd.contains(&node) {
            json!("nonsense")
        } else {
            Value::Null
        };
        world.api.edit(
            &node_migration(node),
            &json!({ "status": { "flannelToCalico": { "phase": phase }, "traffic": traffic } }),
        );
    }
}

/// Number of Services of namespace shop whose address starts with this prefix.
fn count(world: &World, with: &str) -> usize {
    let names = (0..5).map(|number| format!("/api/v1/namespaces/shop/services/web-{number}"));
    let addresses =
        names.filter_map(|path| Some(world.api.get(&path)?["spec"]["clusterIP"].as_str()?.to_owned()));
    addresses.filter(|address| address.starts_with(with)).count()
}

async fn turns(world: &mut World, odd: &[&str], until: impl Fn(&World) -> bool) {
    for _ in 0..60 {
        if until(world) {
            return;
        }
        turn(world, odd).await;
    }
    panic!("not reached after 60 passes: {:?}", world.status());
}

/// One agent with a malformed report delays nothing: every Service moves, forward and back.
#[rstest]
#[case::no_node(&[])]
#[case::one_node(&["b"])]
#[tokio::test]
async fn one_malformed_report_delays_no_service(#[case] odd: &[&str]) {
    let mut world = world();
    turns(&mut world, odd, |world| count(world, "172.") == 5).await;
    world
        .api
        .edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    turns(&mut world, odd, |world| count(world, "10.97.") == 5).await;
}

/// With malformed reports of most agents nothing starts on the way forward, and everything rolls back.
#[tokio::test]
async fn most_reports_malformed_delay_forward_steps_and_no_rollback() {
    let mut world = world();
    turns(&mut world, &[], |world| count(world, "172.") > 0).await;
    for _ in 0..20 {
        turn(&mut world, &["b", "c"]).await;
    }
    // Exchanges that had started have ended.
    let there = count(&world, "172.");
    world.service("shop/late", "10.97.0.9");
    for _ in 0..10 {
        turn(&mut world, &["b", "c"]).await;
    }
    let status = world.status();
    assert_eq!(status.reason, "TrafficUnwatched", "{}", status.message);
    let words =
        "traffic is watched on 1 of 3 nodes, needed 2; node b: what its agent reports is not understood";
    assert!(status.message.contains(words), "{}", status.message);
    assert_eq!(count(&world, "172."), there);
    world
        .api
        .edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    turns(&mut world, &["b", "c"], |world| count(world, "10.97.") == 5).await;
}
