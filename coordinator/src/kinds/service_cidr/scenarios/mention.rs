//! A tenant's object contains a source address: the pods of other users restart, forward and back, and the object is named at
//! once. Whole passes on an API server in memory.

use api::migration::MigrationPhase;
use engine::decision::Direction;
use rstest::rstest;
use serde_json::{Value, json};
use service_cidr::step::Stage;

use super::crowd::{RANGES, World};
use super::silent::{MANY, NODES, all_answer, answered_passes, balancer, pod, web, world};
use crate::fake_api::MIGRATION;

/// An object of this kind that contains this address, with its path.
fn says(kind: &str, namespace: &str, address: &str) -> (String, Value) {
    let container = json!({ "name": "c", "env": [{ "name": "X", "value": address }] });
    let template = json!({ "spec": { "containers": [container] } });
    let (group, plural, spec) = match kind {
        "Deployment" => (
            "apps",
            "deployments",
            json!({ "replicas": 1, "selector": {}, "template": template }),
        ),
        "StatefulSet" => (
            "apps",
            "statefulsets",
            json!({ "replicas": 1, "selector": {}, "template": template }),
        ),
        "DaemonSet" => (
            "apps",
            "daemonsets",
            json!({ "selector": {}, "template": template }),
        ),
        _ => {
            let block = json!({ "ipBlock": { "cidr": format!("{address}/32") } });
            let spec = json!({ "podSelector": {}, "egress": [{ "to": [block] }] });
            ("networking.k8s.io", "networkpolicies", spec)
        }
    };
    let object = json!({
        "metadata": { "namespace": namespace, "name": "many", "creationTimestamp": "2026-01-01T00:00:00Z" }, "spec": spec,
    });
    (
        format!("/apis/{group}/v1/namespaces/{namespace}/{plural}/many"),
        object,
    )
}

/// Every Service has its target address, and a pod on each node was given a source address.
fn world_led(direction: Direction) -> World {
    let mut world = world();
    world.api.edit(
        MIGRATION,
        &json!({ "spec": { "serviceCidr": { "soakSeconds": 0 } } }),
    );
    for node in NODES {
        let owner = json!({ "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "name": "m", "uid": "m-1", "controller": true });
        world.api.put(
            &format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}"),
            json!({
                "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration",
                "metadata": { "name": node, "ownerReferences": [owner] },
                "spec": { "migration": "m", "nodeName": node, "started": false, "position": 0 },
            }),
        );
    }
    if direction == Direction::Rollback {
        world.api_server_serves("10.96.0.0/12");
        world.range("kubernetes", "10.96.0.0/12", true);
        world.service("default/kubernetes", "10.96.0.1");
        let mut status = world.status();
        let known = status.service_cidr.as_mut().unwrap();
        known.stage.as_mut().unwrap().direction = direction;
        let status = serde_json::to_value(&status).unwrap();
        world.api.edit(
            MIGRATION,
            &json!({ "spec": { "desired": "Rollback" }, "status": status }),
        );
    }
    assert!(world.api.get(&format!("{RANGES}/replumb-new")).is_none());
    world
}

fn left(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "10.96.0.1",
        Direction::Rollback => "172.16.0.1",
    }
}

/// A pod of the object, created before every Service had its address, or afterwards.
fn put_pod(world: &World, kind: &str, is_again: bool) {
    let (owner_kind, owner) = match kind {
        "Deployment" => ("ReplicaSet", "many-1"),
        other => (other, "many"),
    };
    let mut object = pod("crowd", "many-1", "a", owner_kind, owner);
    object["metadata"]["labels"] = json!({ "pod-template-hash": "1" });
    if is_again {
        object["metadata"]["creationTimestamp"] = json!("2026-03-01T13:00:00Z");
    }
    world.api.put(MANY, object);
}

fn warns_of(world: &World, words: &str) -> bool {
    let warnings = world.status().warnings;
    warnings.is_some_and(|warnings| warnings.items.iter().any(|line| line.contains(words)))
}

/// With keepLoadBalancers off, a tenant's load balancer with an address of the new range does not delay a rollback.
#[tokio::test]
async fn a_load_balancer_of_a_tenant_keeps_its_address_in_a_rollback() {
    let mut world = world_led(Direction::Rollback);
    let nothing_is_kept = json!({ "spec": { "serviceCidr": { "keepLoadBalancers": false } } });
    world.api.edit(MIGRATION, &nothing_is_kept);
    balancer(&mut world, "crowd/many", "172.16.0.7");
    for _ in 0..32 {
        all_answer(&world);
        world.pass().await;
    }
    let status = world.status();
    assert_eq!(status.phase, MigrationPhase::RolledBack, "{}", status.message);
    let path = "/api/v1/namespaces/crowd/services/many";
    assert_eq!(world.api.get(path).unwrap()["spec"]["clusterIP"], "172.16.0.7");
    assert!(
        status.message.contains("1 load balancer, which keeps its"),
        "{}",
        status.message
    );
}

#[rstest]
#[case::deployment("Deployment", true)]
#[case::stateful_set("StatefulSet", true)]
#[case::daemon_set("DaemonSet", true)]
#[case::policy("NetworkPolicy", false)]
#[tokio::test]
async fn an_address_in_a_tenants_object_delays_no_other_pod_and_no_rollback(
    #[case] kind: &str,
    #[case] has_pod: bool,
    #[values(Direction::Forward, Direction::Rollback)] direction: Direction,
    #[values(true, false)] is_changed: bool,
) {
    let mut world = world_led(direction);
    let (path, object) = says(kind, "crowd", left(direction));
    world.api.put(&path, object);
    if has_pod {
        put_pod(&world, kind, false);
    }
    world.pass().await;
    let named = format!("{kind} crowd/many");
    assert!(
        warns_of(&world, &named),
        "not named at once: {:?}",
        world.status().warnings
    );
    let (mut evictions, mut is_pod_named) = (0, false);
    for _ in 0..32 {
        all_answer(&world);
        world.pass().await;
        is_pod_named |= warns_of(&world, "Pod crowd/many-1");
        // Its controller creates the pod again, and its manifest still contains the address.
        if has_pod && world.api.get(MANY).is_none() {
            evictions += 1;
            put_pod(&world, kind, true);
        }
    }
    let status = world.status();
    for node in NODES {
        assert_eq!(world.api.get(&web(node)), None, "{}", status.message);
    }
    assert_eq!(evictions, usize::from(has_pod), "{}", status.message);
    assert!(warns_of(&world, &named), "{:?}", status.warnings);
    assert_eq!(is_pod_named, has_pod, "{:?}", status.warnings);
    if direction == Direction::Rollback {
        assert_eq!(status.phase, MigrationPhase::RolledBack, "{}", status.message);
        return;
    }
    let stage = status.service_cidr.unwrap().stage.unwrap().name;
    assert_eq!(
        (stage, status.reason.as_str()),
        (Stage::Soak, "ConfigurationFollowUp"),
        "{}",
        status.message
    );
    assert!(status.message.contains(&named), "{}", status.message);
    if is_changed {
        // The owner or the operator deletes it.
        world.api.remove(&path);
        if has_pod {
            world.api.remove(MANY);
        }
    } else {
        let elapsed = json!({ "spec": { "gates": { "soak": "Elapsed" } } });
        world.api.edit(MIGRATION, &elapsed);
    }
    world.restart();
    answered_passes(&mut world).await;
    assert_eq!(
        world.status().phase,
        MigrationPhase::Completed,
        "{}",
        world.status().message
    );
}

/// The user changes an object of the cluster before any pod restarts, forward and back.
#[rstest]
#[tokio::test]
async fn an_address_in_an_object_of_the_cluster_is_changed_before_pods_restart(
    #[values(Direction::Forward, Direction::Rollback)] direction: Direction,
    #[values("kube-system", "replumb-system")] namespace: &str,
) {
    let mut world = world_led(direction);
    let (path, object) = says("DaemonSet", namespace, left(direction));
    world.api.put(&path, object);
    answered_passes(&mut world).await;
    let status = world.status();
    let stage = status.service_cidr.unwrap().stage.unwrap().name;
    assert_eq!(stage, Stage::FollowUp, "{}", status.message);
    assert!(
        status.message.contains(&format!("DaemonSet {namespace}/many")),
        "{}",
        status.message
    );
    assert!(world.api.get(&web("a")).is_some(), "{}", status.message);
    world.api.remove(&path);
    world.restart();
    for _ in 0..3 {
        answered_passes(&mut world).await;
    }
    let end = match direction {
        Direction::Forward => MigrationPhase::Completed,
        Direction::Rollback => MigrationPhase::RolledBack,
    };
    assert_eq!(world.status().phase, end, "{}", world.status().message);
}
