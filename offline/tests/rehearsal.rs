//! Rehearsals of the base, and of clusters in which pods have no other place.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails with a panic")]

use offline::rehearsal::pace::Pace;
use offline::rehearsal::record::Rehearsal;
use offline::rehearsal::{Outcome, rehearse};
use offline::snapshot::Snapshot;
use rstest::rstest;
use serde_json::{Value, json};

const NAME: &str = "rehearsed";

async fn outcome(more: &str, spec: Value, pace: Pace) -> anyhow::Result<Outcome> {
    let migration = json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": NAME }, "spec": spec,
    });
    let text = format!(
        "apiVersion: replumb.dev/v1alpha1\nkind: ClusterSnapshot\nbase: good-flannel-cluster\nobjects:\n- {migration}\n{more}"
    );
    rehearse(Snapshot::parse(&text).unwrap(), NAME, pace).await
}

async fn rehearsed(more: &str, spec: Value) -> Rehearsal {
    match outcome(more, spec, Pace::USUAL).await.unwrap() {
        Outcome::Rehearsed(rehearsal) => *rehearsal,
        Outcome::Refused(judgement) => panic!("{judgement:#?}"),
    }
}

fn nodes(rehearsal: &Rehearsal) -> Vec<&str> {
    rehearsal.nodes.iter().map(|node| node.name.as_str()).collect()
}

fn steps(rehearsal: &Rehearsal, node: usize) -> Vec<&str> {
    rehearsal.nodes[node]
        .steps
        .iter()
        .map(|(step, _)| step.as_str())
        .collect()
}

#[tokio::test]
async fn a_drain_evicts_every_pod_node_by_node_and_is_the_same_each_time() {
    let spec = json!({ "flannelToCalico": { "strategy": "Drain" } });
    let rehearsal = rehearsed("", spec.clone()).await;
    assert_eq!(rehearsal.phase.as_str(), "Completed", "{}", rehearsal.message);
    assert_eq!(nodes(&rehearsal), ["worker-1", "worker-2", "control-1"]);
    assert_eq!(
        steps(&rehearsal, 0),
        [
            "Cordon",
            "Drain",
            "StopFlannel",
            "HoldNewPods",
            "Detach",
            "StartCalico",
            "Attach",
            "Probe",
            "Uncordon"
        ]
    );
    let mut order: Vec<&str> = rehearsal
        .evictions
        .iter()
        .map(|eviction| eviction.node.as_str())
        .collect();
    order.dedup();
    assert_eq!(order, ["worker-1", "worker-2", "control-1"], "{rehearsal:#?}");
    // Three replicas, and a budget of one.
    let web = rehearsal
        .workloads
        .iter()
        .find(|found| found.workload == "Deployment shop/web");
    assert_eq!(
        web.map(|web| (web.before, web.missing)),
        Some((3, 1)),
        "{rehearsal:#?}"
    );
    assert!(rehearsal.without_place.is_empty(), "{rehearsal:#?}");
    assert_eq!(rehearsed("", spec).await, rehearsal);
}

#[tokio::test]
async fn in_place_no_pod_is_evicted_or_missing() {
    let rehearsal = rehearsed("", json!({ "flannelToCalico": { "strategy": "InPlace" } })).await;
    assert_eq!(rehearsal.phase.as_str(), "Completed", "{}", rehearsal.message);
    assert!(steps(&rehearsal, 0).contains(&"Adopt"), "{rehearsal:#?}");
    assert!(
        rehearsal.evictions.is_empty() && rehearsal.workloads.is_empty(),
        "{rehearsal:#?}"
    );
}

#[tokio::test]
async fn two_nodes_at_a_time_take_less_time() {
    let one = rehearsed("", json!({ "flannelToCalico": { "strategy": "InPlace" } })).await;
    let two = rehearsed(
        "",
        json!({ "flannelToCalico": { "strategy": "InPlace" }, "rollout": { "maxUnavailable": 2 } }),
    )
    .await;
    let begins: Vec<f64> = two.nodes.iter().map(|node| node.begins).collect();
    assert!(begins[1] - begins[0] < 1.0, "{two:#?}");
    assert!(two.seconds < one.seconds, "{} and {}", two.seconds, one.seconds);
}

/// One replica on each node, and none beside another: the one of the drained node waits until its node is back.
#[tokio::test]
async fn a_pod_without_another_place_waits_for_its_node() {
    let apart = "
patches:
  - object: {kind: Deployment, namespace: shop, name: web}
    patch:
      spec:
        template:
          spec:
            affinity:
              podAntiAffinity:
                requiredDuringSchedulingIgnoredDuringExecution:
                  - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}
";
    let rehearsal = rehearsed(apart, json!({ "flannelToCalico": { "strategy": "Drain" } })).await;
    assert_eq!(rehearsal.phase.as_str(), "Completed", "{}", rehearsal.message);
    let waited: Vec<Option<f64>> = rehearsal.without_place.iter().map(|pod| pod.seconds).collect();
    assert_eq!(waited.len(), 3, "{rehearsal:#?}");
    let node = rehearsal.nodes[0].seconds.unwrap();
    assert!(
        waited
            .iter()
            .all(|time| time.is_some_and(|time| time > node / 2.0)),
        "{waited:?}"
    );
}

/// The last of two replicas has no other place, and its budget keeps it: the drain exceeds its time.
#[tokio::test]
async fn a_drain_that_a_budget_blocks_for_ever_halts_with_the_budget() {
    let blocked = "
patches:
  - object: {kind: Deployment, namespace: shop, name: web}
    patch: {spec: {replicas: 2, template: {spec: {nodeSelector: {kubernetes.io/hostname: worker-1}}}}}
  - object: {kind: PodDisruptionBudget, namespace: shop, name: web}
    patch: {spec: {minAvailable: 1, maxUnavailable: null}, status: {disruptionsAllowed: 1, currentHealthy: 2, desiredHealthy: 1, expectedPods: 2}}
";
    let rehearsal = rehearsed(
        blocked,
        json!({ "flannelToCalico": { "strategy": "Drain" }, "drain": { "timeoutSeconds": 60 } }),
    )
    .await;
    assert_eq!(rehearsal.phase.as_str(), "Halted", "{rehearsal:#?}");
    assert!(
        rehearsal.message.starts_with("DrainBlocked") && rehearsal.message.contains("shop/web"),
        "{}",
        rehearsal.message
    );
    let [blocked] = rehearsal.blocked.as_slice() else {
        panic!("{rehearsal:#?}")
    };
    assert!(
        blocked.budget == "shop/web" && !blocked.is_evicted && blocked.seconds > 50.0,
        "{blocked:#?}"
    );
}

#[rstest]
#[case(Pace::QUICK)]
#[case(Pace::SLOW)]
#[tokio::test]
async fn every_pace_comes_to_the_end(#[case] pace: Pace) {
    let spec = json!({ "flannelToCalico": { "strategy": "Drain" } });
    let Outcome::Rehearsed(rehearsal) = outcome("", spec, pace).await.unwrap() else {
        panic!("refused")
    };
    assert_eq!(rehearsal.phase.as_str(), "Completed", "{}", rehearsal.message);
}

#[tokio::test]
async fn a_refused_migration_is_not_rehearsed() {
    let without_agents = "hosts: {worker-1: null}\n";
    let spec = json!({ "flannelToCalico": { "strategy": "Drain" } });
    let Outcome::Refused(judgement) = outcome(without_agents, spec, Pace::USUAL).await.unwrap() else {
        panic!("rehearsed")
    };
    assert!(
        judgement.refusals().any(|check| check.name == "AgentMissing"),
        "{judgement:#?}"
    );
}

#[tokio::test]
async fn another_kind_is_not_rehearsed() {
    let spec = json!({ "podCidr": { "from": "10.244.0.0/16", "to": "10.200.0.0/16" } });
    let error = outcome("", spec, Pace::USUAL).await.unwrap_err();
    assert_eq!(error.to_string(), "only flannelToCalico can be rehearsed");
}
