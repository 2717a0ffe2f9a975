//! Pods that were given a source address restart on the nodes that have answered, whatever another node's agent does: whole
//! passes on an API server in memory.

use std::time::Duration;

use engine::found::Found;
use engine::kernel::Listed;
use rstest::rstest;
use serde_json::{Value, json};
use service_cidr::host::{
    AddressOrigin, Connection, HostFacts, MAX_EXCLUDED, PodWithSourceAddress, PodsWithSourceAddresses,
    ProxyMode, ServicePort,
};
use service_cidr::step::Stage;

use super::crowd::{RANGES, World};
use crate::fake_api::MIGRATION;

pub(super) const NODES: [&str; 2] = ["a", "b"];

pub(super) fn pod(namespace: &str, name: &str, node: &str, kind: &str, owner: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": owner, "controller": true }],
        },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running", "podIP": "10.244.0.9", "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

/// Every Service has its new address, the old range is closed, and a pod on each node was given a source address.
pub(super) fn world() -> World {
    let mut world = World::new();
    world.api_server_serves("172.16.0.0/12");
    world.api.remove(&format!("{RANGES}/replumb-new"));
    let range = json!({ "spec": { "cidrs": ["172.16.0.0/12"] } });
    world.api.edit(&format!("{RANGES}/kubernetes"), &range);
    let mut status = world.status();
    let known = status.service_cidr.as_mut().unwrap();
    known.stage.as_mut().unwrap().name = Stage::Restart;
    known.target_announced_since = Some("2026-03-01T12:00:00Z".parse().unwrap());
    let status = json!({ "status": serde_json::to_value(&status).unwrap() });
    world.api.edit(MIGRATION, &status);
    for node in NODES {
        world.node(node);
        world.api.put(
            &web(node),
            pod(
                "shop",
                &format!("web-{node}"),
                node,
                "ReplicaSet",
                &format!("web-{node}"),
            ),
        );
    }
    world
}

/// A pod in the namespace of a late Service.
pub(super) const MANY: &str = "/api/v1/namespaces/crowd/pods/many-1";

pub(super) fn web(node: &str) -> String {
    format!("/api/v1/namespaces/shop/pods/web-{node}")
}

fn is_back(world: &World) -> bool {
    world.api.get(MIGRATION).unwrap()["spec"]["desired"] == "Rollback"
}

/// Lets the agent of a node answer its question.
pub(super) fn answers(world: &World, node: &str, told: Found<PodsWithSourceAddresses>) {
    let path = format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}");
    let object = world.api.get(&path).unwrap();
    let facts = HostFacts {
        proxy_mode: Found::Present(ProxyMode::Iptables),
        missing_ports: Found::Present(Vec::new()),
        cluster_dns: Found::Present(vec![
            if is_back(world) {
                "10.96.0.10"
            } else {
                "172.16.0.10"
            }
            .parse()
            .unwrap(),
        ]),
        api_server: "192.0.2.1".to_owned(),
        pods_with_source_addresses: told,
        connections: Found::Present(Listed::default()),
        ..HostFacts::default()
    };
    // An edit merges, and an answer replaces the last one.
    let nothing = json!({ "status": { "serviceCidr": null } });
    world.api.edit(&path, &nothing);
    let status =
        json!({ "status": { "observedGeneration": object["metadata"]["generation"], "serviceCidr": facts } });
    world.api.edit(&path, &status);
}

/// The report of an agent that reads its pods: the existing pods of this node were given a source address.
pub(super) fn told(world: &World, node: &str) -> Found<PodsWithSourceAddresses> {
    let pods = [web(node), MANY.to_owned()].into_iter();
    let pods = pods.filter_map(|path| world.api.get(&path));
    let with_old_addresses =
        pods.filter(|pod| pod["spec"]["nodeName"] == node)
            .map(|pod| PodWithSourceAddress {
                pod_uid: pod["metadata"]["uid"].as_str().unwrap().to_owned(),
                origin: AddressOrigin::Environment,
                address: if is_back(world) { "172.16.0.1" } else { "10.96.0.1" }
                    .parse()
                    .unwrap(),
            });
    Found::Present(PodsWithSourceAddresses {
        pods: with_old_addresses.collect(),
        ..PodsWithSourceAddresses::default()
    })
}

#[tokio::test]
async fn pods_of_other_nodes_restart_without_a_silent_node() {
    let malformed = Found::Malformed("list /proc: Permission denied".to_owned());
    for of_b in [None, Some(malformed)] {
        let mut world = world();
        for _ in 0..6 {
            world.pass().await;
            answers(&world, "a", told(&world, "a"));
            if let Some(told) = &of_b {
                answers(&world, "b", told.clone());
            }
        }
        let message = world.status().message;
        assert_eq!(world.api.get(&web("a")), None, "{message}");
        assert!(
            world.api.get(&web("b")).is_some(),
            "its agent has not reported: {message}"
        );
        assert!(message.contains("node b"), "{message}");
        // The addresses stay while this is unknown.
        assert_eq!(
            world.status().service_cidr.unwrap().stage.unwrap().name,
            Stage::Restart
        );
        for _ in 0..6 {
            for node in NODES {
                answers(&world, node, told(&world, node));
            }
            world.pass().await;
        }
        let status = world.status();
        assert_eq!(world.api.get(&web("b")), None, "{}", status.message);
        assert_ne!(
            status.service_cidr.unwrap().stage.unwrap().name,
            Stage::Restart,
            "{}",
            status.message
        );
    }
}

/// Pods restart on all nodes, and the end waits for the agent that cannot report its kubelet's name servers.
#[tokio::test]
async fn pods_restart_with_an_unknown_kubelet_configuration() {
    let mut world = world();
    for _ in 0..8 {
        world.pass().await;
        all_answer(&world);
        let unknown: Found<Vec<std::net::IpAddr>> = Found::Malformed("configz: forbidden".to_owned());
        let path = "/apis/replumb.dev/v1alpha1/nodemigrations/b";
        for value in [Value::Null, json!(unknown)] {
            world.api.edit(
                path,
                &json!({ "status": { "serviceCidr": { "clusterDns": value } } }),
            );
        }
    }
    let status = world.status();
    for node in NODES {
        assert_eq!(world.api.get(&web(node)), None, "{}", status.message);
    }
    assert_eq!(status.reason, "AgentSilent", "{}", status.message);
    let words = "node b: clusterDNS of its kubelet is unknown: configz: forbidden";
    assert!(status.message.contains(words), "{}", status.message);
    for _ in 0..3 {
        answered_passes(&mut world).await;
    }
    assert_ne!(world.status().reason, "AgentSilent", "{}", world.status().message);
}

/// A pod gets the addresses of all Services in its namespace. The helper of the late Service gets its old address from a range
/// for it alone, or has not requested it yet.
#[rstest]
#[case::without_a_cover(false)]
#[case::with_a_cover(true)]
#[tokio::test]
async fn pods_in_the_namespace_of_a_late_service_restart_after_its_exchange(
    #[case] has_cover: bool,
    #[values("2026-01-01T00:00:00Z", "2026-03-01T13:00:00Z")] made_at: &str,
) {
    let mut world = world();
    has_started(&world);
    for (name, range, is_ready) in [
        ("kubernetes", "10.96.0.0/12", false),
        ("replumb-new", "172.16.0.0/12", true),
    ] {
        world.range(name, range, is_ready);
    }
    if has_cover {
        world.range("replumb-keep-10-97-0-1-32", "10.97.0.1/32", true);
    }
    let mut many = pod("crowd", "many-1", "a", "ReplicaSet", "many");
    many["metadata"]["creationTimestamp"] = json!(made_at);
    world.api.put(MANY, many);
    world.service("crowd/many", "10.97.0.1");
    let of_crowd = "/api/v1/namespaces/crowd/services/many";
    world.api.refuse(Some(of_crowd));
    for _ in 0..8 {
        world.pass().await;
        for node in NODES {
            answers(&world, node, told(&world, node));
        }
    }
    let status = world.status();
    for node in NODES {
        assert_eq!(world.api.get(&web(node)), None, "{}", status.message);
    }
    assert!(world.api.get(MANY).is_some(), "{}", status.message);
    assert!(
        status.message.contains("Service crowd/many"),
        "{}",
        status.message
    );
    assert_eq!(status.service_cidr.unwrap().stage.unwrap().name, Stage::Restart);
    world.api.refuse(None);
    // The API servers create the default range again, from their flag.
    world.range("kubernetes", "172.16.0.0/12", true);
    for _ in 0..8 {
        world.context.obstacles.forget();
        world.pass().await;
        for node in NODES {
            answers(&world, node, told(&world, node));
        }
    }
    assert_eq!(world.api.get(MANY), None, "{}", world.status().message);
}

pub(super) fn balancer(world: &mut World, name: &str, address: &str) {
    world.service(name, address);
    let (namespace, name) = name.split_once('/').unwrap();
    let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
    world
        .api
        .edit(&path, &json!({ "spec": { "type": "LoadBalancer" } }));
}

/// Sets the start of the exchange before the creation of all Services of a scenario.
fn has_started(world: &World) {
    let mut status = world.status();
    let known = status.service_cidr.as_mut().unwrap();
    known.exchange_started_at = Some("2026-03-01T10:30:00Z".parse().unwrap());
    let status = json!({ "status": serde_json::to_value(&status).unwrap() });
    world.api.edit(MIGRATION, &status);
}

/// Sets the start of the exchange after the creation of all Services of a scenario.
fn starts_after_all(world: &World) {
    let mut known = world.status().service_cidr.unwrap();
    known.exchange_started_at = Some("2027-03-01T10:30:00Z".parse().unwrap());
    let status = json!({ "status": { "serviceCidr": serde_json::to_value(&known).unwrap() } });
    world.api.edit(MIGRATION, &status);
}

pub(super) async fn answered_passes(world: &mut World) {
    for _ in 0..8 {
        world.pass().await;
        all_answer(world);
    }
}

pub(super) fn all_answer(world: &World) {
    for node in NODES {
        answers(world, node, told(world, node));
    }
}

/// With keepLoadBalancers off, a tenant creates a load balancer: no pod of other users waits for it, and it is named at the end.
#[tokio::test]
async fn a_late_load_balancer_delays_no_pod_of_other_users() {
    let mut world = world();
    has_started(&world);
    let nothing_is_kept = json!({ "spec": { "serviceCidr": { "keepLoadBalancers": false } } });
    world.api.edit(MIGRATION, &nothing_is_kept);
    world
        .api
        .put(MANY, pod("crowd", "many-1", "a", "ReplicaSet", "many"));
    balancer(&mut world, "crowd/many", "10.97.0.1");
    answered_passes(&mut world).await;
    let status = world.status();
    for node in NODES {
        assert_eq!(world.api.get(&web(node)), None, "{}", status.message);
    }
    assert!(world.api.get(MANY).is_some(), "{}", status.message);
    assert!(status.message.contains("crowd/many-1"), "{}", status.message);
}

/// A tenant makes a Service from before the exchange a load balancer, at any time.
#[tokio::test]
async fn a_service_made_a_load_balancer_delays_no_pod_of_other_users() {
    let mut world = world();
    has_started(&world);
    let nothing_is_kept =
        json!({ "spec": { "serviceCidr": { "keepLoadBalancers": false, "soakSeconds": 0 } } });
    world.api.edit(MIGRATION, &nothing_is_kept);
    balancer(&mut world, "crowd/many", "10.97.0.1");
    starts_after_all(&world);
    answered_passes(&mut world).await;
    let status = world.status();
    for node in NODES {
        assert_eq!(world.api.get(&web(node)), None, "{}", status.message);
    }
    let warnings = status.warnings.unwrap().items;
    let words = "Service crowd/many of type LoadBalancer has 10.97.0.1";
    assert!(warnings.iter().any(|line| line.contains(words)), "{warnings:?}");
    assert!(
        status.message.contains(words),
        "the end of stage Soak waits for it: {}",
        status.message
    );
}

/// The user changes a load balancer of kube-system before any pod restarts.
#[tokio::test]
async fn a_load_balancer_of_the_cluster_is_changed_before_pods_restart() {
    let mut world = world();
    let nothing_is_kept = json!({ "spec": { "serviceCidr": { "keepLoadBalancers": false } } });
    world.api.edit(MIGRATION, &nothing_is_kept);
    balancer(&mut world, "kube-system/edge", "10.97.0.1");
    starts_after_all(&world);
    answered_passes(&mut world).await;
    let status = world.status();
    assert!(
        status
            .message
            .contains("Service kube-system/edge of type LoadBalancer has 10.97.0.1"),
        "{}",
        status.message
    );
    assert_eq!(status.service_cidr.unwrap().stage.unwrap().name, Stage::FollowUp);
    assert!(world.api.get(&web("a")).is_some());
}

/// A tenant has more load balancers than agents can be told: pods of other users restart.
#[tokio::test]
async fn agents_are_told_the_oldest_load_balancers_up_to_a_limit() {
    let mut world = world();
    has_started(&world);
    world
        .api
        .put(MANY, pod("crowd", "many-1", "a", "ReplicaSet", "many"));
    balancer(&mut world, "shop/oldest", "10.98.0.1");
    let created = json!({ "metadata": { "creationTimestamp": "2026-01-01T00:00:00Z" } });
    world
        .api
        .edit("/api/v1/namespaces/shop/services/oldest", &created);
    for number in 0..MAX_EXCLUDED {
        let address = format!("10.97.{}.{}", number / 250, number % 250 + 1);
        balancer(&mut world, &format!("crowd/many-{number}"), &address);
    }
    answered_passes(&mut world).await;
    let status = world.status();
    for node in NODES {
        assert_eq!(world.api.get(&web(node)), None, "{}", status.message);
        let object = world
            .api
            .get(&format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}"))
            .unwrap();
        let kept = object["spec"]["serviceCidr"]["excluded"].as_array().unwrap();
        assert_eq!((kept.len(), &kept[0]), (MAX_EXCLUDED, &json!("10.98.0.1")));
    }
    assert!(
        world.api.get(MANY).is_some(),
        "the pod would get the addresses again: {}",
        status.message
    );
    assert!(status.message.contains("crowd/many-1"), "{}", status.message);
}

/// A client that never ends its connection delays the end of stage Soak, until the operator sets that the time alone ends it.
#[tokio::test]
async fn an_endless_connection_delays_the_soak_until_the_gate_is_elapsed() {
    const NODE_B: &str = "/apis/replumb.dev/v1alpha1/nodemigrations/b";
    let mut world = world();
    let soak = |seconds: u32| json!({ "spec": { "serviceCidr": { "soakSeconds": seconds } } });
    world.api.edit(MIGRATION, &soak(0));
    let connected = async |world: &mut World| {
        for _ in 0..8 {
            world.pass().await;
            // The NodeMigrations are deleted at completion.
            if world.api.get(NODE_B).is_none() {
                break;
            }
            all_answer(world);
            let connection = Connection {
                source: "10.244.0.9".parse().unwrap(),
                service: ServicePort {
                    address: "10.96.0.10".parse().unwrap(),
                    protocol: "TCP".to_owned(),
                    port: 53,
                },
            };
            let connections = Found::Present(Listed {
                items: vec![connection],
                remaining: 0,
            });
            let connections = json!({ "status": { "serviceCidr": { "connections": connections } } });
            world.api.edit(NODE_B, &connections);
        }
        world.status()
    };
    connected(&mut world).await;
    let status = connected(&mut world).await;
    assert_eq!(status.reason, "ServiceSoak", "{}", status.message);
    assert!(status.message.contains("10.96.0.10"), "{}", status.message);
    world
        .api
        .edit(MIGRATION, &json!({ "spec": { "gates": { "soak": "Elapsed" } } }));
    world.api.edit(MIGRATION, &soak(3600));
    let status = connected(&mut world).await;
    assert_eq!(status.reason, "ServiceSoak", "{}", status.message);
    assert!(
        status.message.contains("(spec.gates.soak: Elapsed)"),
        "{}",
        status.message
    );
    // A restarted agent reports nothing for a moment: the time continues.
    let began = status.service_cidr.unwrap().soak_started_at;
    let silent = json!({ "status": { "serviceCidr": null } });
    world.api.edit(NODE_B, &silent);
    world.pass().await;
    let status = connected(&mut world).await;
    assert_eq!(status.reason, "ServiceSoak", "{}", status.message);
    assert_eq!(status.service_cidr.unwrap().soak_started_at, began);
    world.api.edit(MIGRATION, &soak(0));
    connected(&mut world).await;
    let status = connected(&mut world).await;
    assert_eq!(
        status.phase,
        api::migration::MigrationPhase::Completed,
        "{}",
        status.message
    );
}

/// A Service with endpoints is exchanged after every node's kube-proxy knows it. During a rollback a node that has not reported
/// for two minutes, or has lacked a rule for that time, is named, and not waited for any more.
#[rstest]
#[case::silent(OfB::IsSilent)]
#[case::malformed(OfB::IsMalformed)]
#[case::lacks_every_rule(OfB::LacksAll)]
#[tokio::test]
async fn services_roll_back_without_a_silent_or_lagging_node(#[case] of_b: OfB) {
    const WEB: &str = "/api/v1/namespaces/shop/services/web";
    let mut world = World::new();
    for node in NODES {
        world.node(node);
    }
    world.by_hand("shop/web", "10.96.0.7");
    let address = |world: &World| {
        let address = world.api.get(WEB).unwrap()["spec"]["clusterIP"].clone();
        address.as_str().unwrap_or_default().to_owned()
    };
    knowing_passes(&mut world, OfB::KnowsAll).await;
    assert!(address(&world).starts_with("172."), "{}", world.status().message);
    world
        .api
        .edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    knowing_passes(&mut world, of_b).await;
    assert!(
        address(&world).starts_with("172."),
        "the rollback waits for node b at first"
    );
    for _ in 0..3 {
        match of_b {
            OfB::IsSilent | OfB::IsMalformed => world.silent_for("b", Duration::from_mins(3)),
            OfB::LacksAll => world.lagging_for(Duration::from_mins(3)),
            OfB::KnowsAll => {}
        }
        knowing_passes(&mut world, of_b).await;
    }
    let status = world.status();
    assert_eq!(address(&world), "10.96.0.7", "{}", status.message);
    let warnings = status.warnings.unwrap().items;
    let words = "Services roll back without the rules of its kube-proxy";
    assert!(
        warnings
            .iter()
            .any(|line| line.starts_with("node b ") && line.contains(words)),
        "{warnings:?}"
    );
}

/// The report of node b's agent on the rules of its kube-proxy.
#[derive(Clone, Copy, Debug)]
enum OfB {
    KnowsAll,
    IsSilent,
    IsMalformed,
    LacksAll,
}

impl OfB {
    fn unknown(self, world: &mut World) -> Option<Found<Vec<ServicePort>>> {
        match self {
            Self::KnowsAll => Some(Found::Present(Vec::new())),
            Self::IsSilent => None,
            Self::IsMalformed => Some(Found::Malformed("list the rules: Permission denied".to_owned())),
            Self::LacksAll => Some(Found::Present(world.asked_about())),
        }
    }
}

/// The agents report the ports that their kube-proxies do not know: none on node a, and those of `of_b` on node b.
async fn knowing_passes(world: &mut World, of_b: OfB) {
    for _ in 0..16 {
        world.pass().await;
        let answers = [("a", OfB::KnowsAll.unknown(world)), ("b", of_b.unknown(world))];
        for (node, unknown) in answers {
            let path = format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}");
            let (Some(object), Some(unknown)) = (world.api.get(&path), unknown) else {
                continue;
            };
            let facts = HostFacts {
                missing_ports: unknown,
                expected_digest: world.asked(),
                api_server: "192.0.2.1".to_owned(),
                ..HostFacts::default()
            };
            let nothing = json!({ "status": { "serviceCidr": null } });
            world.api.edit(&path, &nothing);
            let generation = &object["metadata"]["generation"];
            let status = json!({ "status": { "observedGeneration": generation, "serviceCidr": facts } });
            world.api.edit(&path, &status);
        }
    }
}
