//! Programs that would replace the source addresses of moved pods: kube-proxy that knows only the old range, as its rules on a
//! node show it, and any other program, as the traffic pods see it.

use serde_json::{Value, json};

use super::desire;
use super::fixture::{
    MIGRATION, NODE_NAMES, POOLS, cluster, run_until, turn, turn_without_world, world_moves,
};
use super::foreign_object::{have_moved, status};
use crate::fake_api::FakeApi;

/// Adds to the report of each agent, as of the last move of the world.
fn report(api: &FakeApi, of_node: impl Fn(&str, &Value) -> Value) {
    for node in NODE_NAMES {
        let path = format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}");
        // Before the first pass an agent has no NodeMigration.
        if let Some(object) = api.get(&path) {
            api.edit(&path, &json!({ "status": of_node(node, &object) }));
        }
    }
}

/// kube-proxy's rules recognize pods by this range.
fn by_range(range: &str) -> Value {
    json!({ "podCidr": { "localTraffic": { "present": { "ranges": [range] }, "absent": null } } })
}

/// Passes with these reports.
async fn turns(api: &FakeApi, count: usize, of_node: impl Fn(&str, &Value) -> Value) {
    for _ in 0..count {
        report(api, &of_node);
        turn(api).await;
    }
}

/// Passes with these reports until the migration is in this phase.
async fn turns_until(api: &FakeApi, phase: &str, of_node: impl Fn(&str, &Value) -> Value) {
    for _ in 0..60 {
        turns(api, 1, &of_node).await;
        if status(api)["phase"] == phase {
            return;
        }
    }
    panic!("{:#}", status(api));
}

/// The user restarts kube-proxy on one node after the other. Before the last one has both ranges, no pod may get an address of
/// the new range. The first reports arrive when the pool exists already.
#[tokio::test]
async fn no_pool_opens_before_the_rules_of_each_node_have_both_ranges() {
    let api = cluster("Watch");
    let (old, both) = ("10.244.0.0/16", "10.192.0.0/10");
    turns(&api, 6, |_, _| by_range(old)).await;
    let found = status(&api);
    assert_eq!(found["reason"], "ConfigurationFollowUp", "{found:#}");
    let message = found["message"].as_str().unwrap();
    for words in [
        "rules of kube-proxy on nodes a, b",
        "found 10.244.0.0/16",
        "restart kube-proxy there",
    ] {
        assert!(message.contains(words), "{message}");
    }
    turns(&api, 3, |node, _| by_range(if node == "a" { both } else { old })).await;
    let message = status(&api)["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("rules of kube-proxy on node b: found"),
        "{message}"
    );
    for pool in api.below(POOLS) {
        let is_old = pool["metadata"]["name"] == "old";
        let is_open = pool["spec"]["disabled"] != true && pool["spec"]["nodeSelector"] != "!all()";
        assert_eq!(is_open, is_old, "{pool:#}");
    }
    turns_until(&api, "Completed", |_, _| by_range(both)).await;
}

/// Packets from the new range that arrive with the address of a node.
fn masquerade(object: &Value) -> Value {
    let flows = object["spec"]["flows"].as_array().cloned().unwrap_or_default();
    let of_new = flows
        .iter()
        .filter(|flow| ["NewToOld", "NewToNew"].contains(&flow["class"].as_str().unwrap()));
    let found: Vec<Value> = of_new
        .map(|flow| json!({ "flow": flow, "sourceSeen": "192.0.2.7" }))
        .collect();
    json!({ "traffic": { "masquerades": found } })
}

#[tokio::test]
async fn the_canary_waits_while_its_packets_arrive_from_a_node() {
    let api = cluster("Watch");
    turns(&api, 30, |_, object| masquerade(object)).await;
    let found = status(&api);
    assert_eq!(found["reason"], "PodsMasqueraded", "{found:#}");
    assert_eq!(found["podCidr"]["stage"]["name"], "Canary", "{found:#}");
    let message = found["message"].as_str().unwrap();
    for words in [
        "arrive from 192.0.2.7",
        "gates.sourceAddresses: Ignore",
        "ip-masq-agent",
    ] {
        assert!(message.contains(words), "{message}");
    }
    assert!(have_moved(&api, "10.244."), "{found:#}");
    // The program that masquerades is corrected.
    run_until(&api, "Completed").await;
}

#[tokio::test]
async fn a_user_may_accept_that_packets_are_masqueraded() {
    let api = cluster("Watch");
    api.edit(
        MIGRATION,
        &json!({ "spec": { "gates": { "sourceAddresses": "Ignore" } } }),
    );
    turns_until(&api, "Completed", |_, object| masquerade(object)).await;
}

/// It begins when half of the pods have moved: no further pod moves, and a rollback is not stopped.
#[tokio::test]
async fn later_masquerading_holds_the_moves_and_no_rollback() {
    let api = cluster("Watch");
    for _ in 0..60 {
        turn_without_world(&api).await;
        if status(&api)["podCidr"]["stage"]["name"] == "Move" {
            break;
        }
        world_moves(&api);
    }
    assert_eq!(
        status(&api)["podCidr"]["stage"]["name"],
        "Move",
        "{:#}",
        status(&api)
    );
    turns(&api, 3, |_, object| masquerade(object)).await;
    api.take_changes();
    turns(&api, 4, |_, object| masquerade(object)).await;
    assert_eq!(status(&api)["reason"], "PodsMasqueraded", "{:#}", status(&api));
    desire(&api, "Rollback");
    turns_until(&api, "RolledBack", |_, object| masquerade(object)).await;
}

/// A user restarts kube-proxy, as stage Widen asks for: new endpoints of a Service do not answer meanwhile. The migration waits
/// before its first change, and needs no `resume`.
#[tokio::test]
async fn a_loss_before_the_first_change_is_waited_for_and_halts_nothing() {
    let api = cluster("Watch");
    let policy = "/apis/crd.projectcalico.org/v1/globalnetworkpolicies/web";
    let nets = |ranges: &[&str]| {
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkPolicy", "metadata": { "name": "web" },
            "spec": { "ingress": [{ "action": "Allow", "source": { "nets": ranges } }] },
        })
    };
    api.put(policy, nets(&["10.244.0.0/16"]));
    let breach = |_: &str, object: &Value| {
        let flows = object["spec"]["flows"].as_array().cloned().unwrap_or_default();
        let found: Vec<Value> = flows
            .iter()
            .map(|flow| {
                json!({ "flow": flow, "since": "2026-03-01T10:00:00Z", "message": "pod→Service: no answer" })
            })
            .collect();
        json!({ "traffic": { "breaches": found } })
    };
    turns(&api, 6, breach).await;
    assert_eq!(
        status(&api)["reason"],
        "ConfigurationFollowUp",
        "{:#}",
        status(&api)
    );
    api.put(policy, nets(&["10.244.0.0/16", "10.200.0.0/16"]));
    turns(&api, 6, breach).await;
    let found = status(&api);
    assert_eq!(found["reason"], "TrafficUnwatched", "{found:#}");
    let message = found["message"].as_str().unwrap();
    for words in ["has changed nothing for pods yet", "pod→Service: no answer"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(api.below(POOLS).len(), 1, "no pool is created");
    run_until(&api, "Completed").await;
}
