//! Two nodes with Calico on an API server in memory: a Calico, controllers and agents that answer as real ones would, moved on
//! after each pass of the coordinator.

use api::migration::PodCidrStatus;
use api::{MigrationStatus, names};
use pod_cidr::settings::Settings;
use serde_json::{Value, json};

use crate::fake_api::FakeApi;
pub(super) use crate::fake_api::MIGRATION;
use crate::memory::Memory;
use crate::pass::pass;

pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";
pub(super) const BLOCKS: &str = "/apis/crd.projectcalico.org/v1/ipamblocks";
pub(super) const AFFINITIES: &str = "/apis/crd.projectcalico.org/v1/blockaffinities";
pub(super) const CALICO: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/calico-node";
pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/web";
/// Pools by name, each with the first two parts of its addresses.
pub(super) const RANGES: [(&str, &str); 2] = [("old", "10.244"), ("ipv4-10-200-0-0-16", "10.200")];
pub(super) const NODE_NAMES: [&str; 2] = ["a", "b"];
/// Name of a node that a test may add.
pub(super) const THIRD: &str = "c";
/// Mark by which a test delays the last report of the agents, by a number of moves.
pub(super) const LAST_WORD: &str = "/test/last-word";
/// Annotation of a Node, for the tests alone: one character for every tunnel address that Calico has chosen.
const CHOSEN: &str = "test/chosen";
/// Annotation of a Node, for the tests alone: the tunnel address that stays, whatever is written.
pub(super) const STAYS: &str = "test/stays";

fn settings() -> Settings {
    let sourced = |value: &str| json!({ "value": value, "source": "spec" });
    serde_json::from_value(json!({
        "from": sourced("10.244.0.0/16"), "to": sourced("10.200.0.0/16"), "oldPool": sourced("old"),
        "newPool": sourced("ipv4-10-200-0-0-16"), "blockSize": { "value": 26, "source": "default" },
        "calicoDaemonSetNamespace": sourced("kube-system"), "calicoDaemonSetName": sourced("calico-node"),
    }))
    .unwrap()
}

/// Two nodes with two pods of a Deployment; the checks have passed and the migration has started.
pub(super) fn cluster(gates: &str) -> FakeApi {
    let api = FakeApi::default();
    for node in NODE_NAMES {
        put_node(&api, node);
    }
    let pool =
        json!({ "cidr": "10.244.0.0/16", "blockSize": 26, "vxlanMode": "Always", "natOutgoing": true });
    api.put(
        &format!("{POOLS}/old"),
        json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": { "name": "old" }, "spec": pool }),
    );
    api.put(
        CALICO,
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": "calico-node", "namespace": "kube-system" },
            "spec": { "selector": {}, "template": { "spec": { "hostNetwork": true, "containers": [{
                "name": "calico-node", "env": [{ "name": "CALICO_IPV4POOL_CIDR", "value": "10.244.0.0/16" }] }] } } },
        }),
    );
    api.put(
        DEPLOYMENT,
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "replicas": 2, "selector": {}, "template": {} },
        }),
    );
    let status = MigrationStatus {
        phase: api::migration::MigrationPhase::Preparing,
        started_at: Some(jiff::Timestamp::now()),
        pod_cidr: Some(PodCidrStatus::of(settings())),
        saved_state: [
            ("IPPool".to_owned(), pool.to_string()),
            ("pods not Ready".to_owned(), "[]".to_owned()),
        ]
        .into(),
        ..MigrationStatus::default()
    };
    api.put_migration(
        &json!({
            "podCidr": { "from": "10.244.0.0/16", "to": "10.200.0.0/16", "soakSeconds": 0 }, "desired": "Run",
            "gates": { "traffic": gates },
        }),
        &status,
    );
    world_moves(&api);
    api.take_changes();
    api
}

/// A node with Calico and its agent.
pub(super) fn put_node(api: &FakeApi, node: &str) {
    api.put(
        &format!("{NODES}/{node}"),
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": node, "labels": {}, "annotations": {} },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
    );
    for (namespace, name, owner) in [
        ("kube-system", format!("calico-{node}"), "calico-node"),
        ("replumb-system", format!("agent-{node}"), names::AGENT),
    ] {
        put_pod(api, namespace, &name, node, "DaemonSet", owner, true);
    }
}

fn put_pod(api: &FakeApi, namespace: &str, name: &str, node: &str, kind: &str, owner: &str, host: bool) {
    api.put(
        &format!("/api/v1/namespaces/{namespace}/pods/{name}"),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "pod-template-hash": "1" },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": owner, "controller": true,
                }],
            },
            "spec": { "nodeName": node, "hostNetwork": host, "containers": [] },
            "status": {
                "phase": "Running", "podIP": null, "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }),
    );
}

/// The pool that is open to every pod; with `named`, the pool of that name when it is open by name.
fn pool_for(api: &FakeApi, named: Option<&str>) -> Option<&'static (&'static str, &'static str)> {
    RANGES.iter().find(|(name, _)| {
        let Some(pool) = api.get(&format!("{POOLS}/{name}")) else {
            return false;
        };
        let is_open = pool["spec"]["disabled"] != true;
        let for_all = pool["spec"]["nodeSelector"] != "!all()";
        is_open && named.map_or(for_all, |named| named == *name)
    })
}

/// The next changes of controllers, Calico and agents. These are not counted as changes of the coordinator.
pub(super) fn world_moves(api: &FakeApi) {
    // The nodes of the cluster, and the third one if the test has added it.
    let names = NODE_NAMES.into_iter().chain([THIRD]);
    let there = |name: &&str| api.get(&format!("{NODES}/{name}")).is_some();
    for (number, node) in names.filter(there).enumerate() {
        // The Deployment's controller: one pod on each node.
        let pod = format!("web-{node}");
        if api.get(&format!("{PODS}/{pod}")).is_none() {
            put_pod(api, "default", &pod, node, "ReplicaSet", "web-1", false);
        }
        let mut living = vec![(format!("{PODS}/{pod}"), 5)];
        for (offset, traffic) in api
            .below("/api/v1/namespaces/replumb-system/pods")
            .iter()
            .filter(|pod| pod["spec"]["nodeName"] == node)
            .filter(|pod| pod["metadata"]["labels"][names::COMPONENT_LABEL] == names::TRAFFIC_COMPONENT)
            .enumerate()
        {
            let name = traffic["metadata"]["name"].as_str().unwrap();
            living.push((
                format!("/api/v1/namespaces/replumb-system/pods/{name}"),
                10 + offset,
            ));
        }
        for (path, place) in &living {
            give_address(api, path, number, *place);
        }
        calico_takes_an_end(api, node, number);
        calico_keeps_blocks(api, node, number, &living);
        agent_reports(api, node, number);
    }
}

fn give_address(api: &FakeApi, path: &str, number: usize, place: usize) {
    let pod = api.get(path).unwrap();
    if !pod["status"]["podIP"].is_null() {
        return;
    }
    let named: Option<Vec<String>> = pod["metadata"]["annotations"]["cni.projectcalico.org/ipv4pools"]
        .as_str()
        .map(|text| serde_json::from_str(text).unwrap());
    if let Some((_, prefix)) = pool_for(api, named.as_ref().map(|names| names[0].as_str())) {
        let address = format!("{prefix}.{number}.{place}");
        api.edit(
            path,
            &json!({ "status": {
                "phase": "Running", "podIP": address, "conditions": [{ "type": "Ready", "status": "True" }],
                "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "state": { "running": {} } }],
            } }),
        );
    }
}

/// Attributes of an allocation for the node's tunnel.
fn of_tunnel(node: &str) -> Value {
    json!({ "handle_id": format!("vxlan-tunnel-addr-{node}"), "secondary": { "type": "vxlanTunnelAddress", "node": node } })
}

/// Releases everything of the node's tunnel handle, as Calico does before it chooses another address.
fn calico_releases_ends(api: &FakeApi, node: &str, number: usize) {
    for (_, prefix) in RANGES {
        let path = block_path(prefix, number);
        let Some(mut block) = api.get(&path) else { continue };
        let attributes = block["spec"]["attributes"].as_array().unwrap();
        let Some(index) = attributes.iter().position(|found| *found == of_tunnel(node)) else {
            continue;
        };
        let allocations = block["spec"]["allocations"].as_array_mut().unwrap();
        for allocation in allocations.iter_mut().filter(|found| **found == json!(index)) {
            *allocation = Value::Null;
        }
        api.put(&path, block);
    }
}

/// Addresses in this block that are allocated to the node's tunnel.
pub(super) fn addresses_of_tunnel(api: &FakeApi, node: &str, prefix: &str, number: usize) -> Vec<String> {
    let block = api.get(&block_path(prefix, number)).unwrap();
    let attributes = &block["spec"]["attributes"];
    let allocations = block["spec"]["allocations"].as_array().unwrap();
    let of_tunnel = |index: &Value| {
        let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
        index.is_some_and(|index| attributes[index]["secondary"] == of_tunnel(node)["secondary"])
    };
    allocations
        .iter()
        .enumerate()
        .filter(|(_, index)| of_tunnel(index))
        .map(|(place, _)| format!("{prefix}.{number}.{place}"))
        .collect()
}

fn block_path(prefix: &str, number: usize) -> String {
    format!("{BLOCKS}/{}-{number}-0-26", prefix.replace('.', "-"))
}

/// Path of Calico's own Nodes, if it has any.
pub(super) const CALICO_NODES: &str = "/apis/crd.projectcalico.org/v1/nodes";

/// The node's object in Calico's datastore, with its path.
pub(super) fn calico_node(api: &FakeApi, node: &str) -> (String, Value) {
    let (own, other) = (format!("{CALICO_NODES}/{node}"), format!("{NODES}/{node}"));
    match api.get(&own) {
        Some(object) => (own, object),
        None => (other.clone(), api.get(&other).unwrap()),
    }
}

/// The tunnel address in a node's object of Calico.
pub(super) fn end_of(object: &Value) -> Option<&str> {
    let annotation = object["metadata"]["annotations"]["projectcalico.org/IPv4VXLANTunnelAddr"].as_str();
    annotation.or(object["spec"]["ipv4VXLANTunnelAddr"].as_str())
}

/// Moves the node's tunnel address to the first pool that is open to the node; an address of an open pool stays.
fn calico_takes_an_end(api: &FakeApi, node: &str, number: usize) {
    let (path, object) = calico_node(api, node);
    if let Some(end) = object["metadata"]["annotations"][STAYS].as_str() {
        let annotations = json!({ "projectcalico.org/IPv4VXLANTunnelAddr": end });
        api.edit(&path, &json!({ "metadata": { "annotations": annotations } }));
        return;
    }
    let off = object["metadata"]["labels"]["replumb.dev/off-pool"]
        .as_str()
        .unwrap_or_default();
    let end = end_of(&object);
    let open = |(name, _): &&(&str, &str)| {
        api.get(&format!("{POOLS}/{name}")).is_some_and(|pool| {
            let selector = pool["spec"]["nodeSelector"].as_str().unwrap_or("all()");
            let left = selector.contains(&format!("replumb.dev/off-pool != '{off}'")) && !off.is_empty();
            pool["spec"]["disabled"] != true && selector != "!all()" && !left
        })
    };
    let is_right = |(_, prefix): (&str, &str)| end.is_some_and(|end| end.starts_with(prefix));
    let valid: Vec<_> = RANGES.iter().filter(open).collect();
    if let Some((_, prefix)) = valid
        .first()
        .filter(|_| !valid.iter().any(|range| is_right(**range)))
    {
        calico_releases_ends(api, node, number);
        // Never a former address: only the coordinator restores one.
        let chosen = object["metadata"]["annotations"][CHOSEN]
            .as_str()
            .unwrap_or_default();
        let place = 1 + chosen.len();
        let address = format!("{prefix}.{number}.{place}");
        let mut change = json!({ "metadata": { "annotations": { CHOSEN: format!("{chosen}I") } } });
        if path.starts_with(NODES) {
            change["metadata"]["annotations"]["projectcalico.org/IPv4VXLANTunnelAddr"] = json!(address);
        } else {
            change["spec"] = json!({ "ipv4VXLANTunnelAddr": address });
        }
        api.edit(&path, &change);
    }
}

/// Each node has a block of each range of which it has allocated an address; an empty block stays.
fn calico_keeps_blocks(api: &FakeApi, node: &str, number: usize, living: &[(String, usize)]) {
    for (_, prefix) in RANGES {
        let name = format!("{}-{number}-0-26", prefix.replace('.', "-"));
        let path = block_path(prefix, number);
        let mut allocations = vec![Value::Null; 64];
        let mut attributes = Vec::new();
        let (_, tunnel) = calico_node(api, node);
        let end = end_of(&tunnel);
        for (place, allocation) in allocations.iter_mut().enumerate() {
            let has_end = end == Some(format!("{prefix}.{number}.{place}").as_str());
            // A tunnel address that the coordinator has written stays until its handle is released.
            let is_written = api.get(&path).is_some_and(|block| {
                let index = block["spec"]["allocations"][place].as_u64().unwrap_or(u64::MAX);
                let attribute = usize::try_from(index)
                    .ok()
                    .map(|index| block["spec"]["attributes"][index].clone());
                attribute.is_some_and(|found| found["secondary"] == of_tunnel(node)["secondary"])
            });
            if has_end || is_written {
                *allocation = json!(attributes.len());
                attributes.push(of_tunnel(node));
            }
        }
        for (pod, _) in living {
            let object = api.get(pod).unwrap();
            let Some(last) = object["status"]["podIP"]
                .as_str()
                .and_then(|address| address.strip_prefix(&format!("{prefix}.{number}.")))
            else {
                continue;
            };
            let place: usize = last.parse().unwrap();
            allocations[place] = json!(attributes.len());
            attributes.push(json!({ "handle_id": pod, "secondary": {
                "pod": object["metadata"]["name"], "namespace": object["metadata"]["namespace"], "node": node } }));
        }
        if api.get(&path).is_none() && attributes.is_empty() {
            continue;
        }
        let range = format!("{prefix}.{number}.0/26");
        api.put(
            &path,
            json!({
                "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": { "name": name },
                "spec": {
                    "cidr": range, "affinity": format!("host:{node}"), "allocations": allocations, "attributes": attributes,
                    "unallocated": (0..64).filter(|place| allocations[*place].is_null()).collect::<Vec<_>>(),
                },
            }),
        );
        let affinity = format!("{AFFINITIES}/{node}-{name}");
        if api.get(&affinity).is_none() {
            api.put(
                &affinity,
                json!({
                    "apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity", "metadata": { "name": format!("{node}-{name}") },
                    "spec": { "cidr": range, "node": node, "state": "confirmed", "deleted": "false" },
                }),
            );
        }
    }
}

/// The agent's report: routes to every existing block, kept addresses, and answers of all its traffic pods.
fn agent_reports(api: &FakeApi, node: &str, number: usize) {
    let path = format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}");
    let Some(object) = api.get(&path) else { return };
    // With the test's mark the agent reports late after its last probes, and reports lost ones.
    let is_over = object["spec"]["flows"].as_array().is_none_or(Vec::is_empty);
    let last_word = api.get(LAST_WORD).filter(|_| is_over);
    let moves = last_word.as_ref().and_then(|word| word["moves"].as_u64());
    if let Some(moves @ 1..) = moves {
        api.edit(LAST_WORD, &json!({ "moves": moves - 1 }));
        return;
    }
    let classes = if last_word.is_some() {
        json!([{ "class": "NewToNew", "sent": 100, "lost": 7, "longestGapMilliseconds": 700 }])
    } else {
        json!([])
    };
    let from = object["spec"]["podCidr"]["from"].as_str().unwrap_or_default();
    let prefix = from.trim_end_matches(".0.0/16");
    let block = block_path(prefix, number);
    let discards = if api.get(&block).is_some() {
        json!({ "items": [{
            "kind": "Blackhole", "destination": format!("{prefix}.{number}.0/26"), "hops": [], "table": 254, "protocol": 80, "metric": 0,
        }], "remaining": 0 })
    } else {
        json!({ "items": [], "remaining": 0 })
    };
    let kept = object["spec"]["podCidr"]["tunnelAddresses"].as_array().cloned();
    let addresses: Vec<Value> = kept
        .unwrap_or_default()
        .iter()
        .map(|end| json!({ "address": format!("{}/32", end["old"].as_str().unwrap()), "link": "lo" }))
        .collect();
    let addresses = json!({ "items": addresses, "remaining": 0 });
    // A pod reports once it has sent on its flows.
    let flows = object["spec"]["flows"].as_array().cloned().unwrap_or_default();
    let reporting: Vec<Value> = api
        .below("/api/v1/namespaces/replumb-system/pods")
        .iter()
        .filter(|pod| pod["spec"]["nodeName"] == node && !pod["status"]["podIP"].is_null())
        .map(|pod| pod["metadata"]["uid"].clone())
        .filter(|uid| flows.iter().any(|flow| flow["source"] == *uid))
        .collect();
    let pods: Vec<Value> = [PODS, "/api/v1/namespaces/replumb-system/pods"]
        .iter()
        .flat_map(|path| api.below(path))
        .filter(|pod| pod["spec"]["nodeName"] == node)
        .filter_map(|pod| pod["status"]["podIP"].as_str().map(str::to_owned))
        .filter(|address| address.starts_with(&format!("{prefix}.{number}.")))
        .map(|address| {
            json!({ "kind": "Unicast", "destination": format!("{address}/32"), "hops": [], "table": 254, "protocol": 3, "metric": 0 })
        })
        .collect();
    let pods = json!({ "items": pods, "remaining": 0 });
    api.edit(&path, &json!({ "status": { "podCidr": null, "traffic": null } }));
    api.edit(
        &path,
        &json!({ "status": {
            "observedGeneration": object["metadata"]["generation"],
            "podCidr": {
                "conflist": { "Absent": {} }, "source": { "pods": pods, "discards": discards, "addresses": addresses }, "target": {}, "tunnels": [],
            },
            "traffic": {
                "flows": 1, "reporting": reporting, "breaches": [], "classes": classes, "at": "2026-01-01T00:00:00Z",
            },
        } }),
    );
}

/// One pass after a restart, then a move of the world. Waits for a time end at once.
pub(super) async fn turn(api: &FakeApi) {
    turn_without_world(api).await;
    world_moves(api);
}

pub(super) async fn turn_without_world(api: &FakeApi) {
    turn_remembering(api, &mut Memory::default()).await;
}

/// One pass of a coordinator with the memory of former passes.
pub(super) async fn turn_remembering(api: &FakeApi, memory: &mut Memory) {
    let _ = pass(&api.context(), &api.cache(), memory).await;
    let migration = api.get(MIGRATION).unwrap();
    for mark in ["sourceEmptySince", "provedAt"] {
        if migration["status"]["podCidr"][mark].is_string() {
            api.edit(
                MIGRATION,
                &json!({ "status": { "podCidr": { mark: "2026-01-01T00:00:00Z" } } }),
            );
        }
    }
    // The user makes the change that the migration waits for.
    if migration["status"]["reason"] == "ConfigurationFollowUp" {
        let mut set = api.get(CALICO).unwrap();
        set["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = json!("10.200.0.0/16");
        api.put(CALICO, set);
    }
}

/// The API server becomes unreachable after this number of writes, and the coordinator dies.
pub(super) async fn crash_after(api: &FakeApi, writes: usize) {
    api.crash_after(writes, turn, world_moves).await;
}

pub(super) async fn run_until(api: &FakeApi, phase: &str) {
    for _ in 0..200 {
        if api.get(MIGRATION).unwrap()["status"]["phase"] == phase {
            return;
        }
        turn(api).await;
    }
    panic!(
        "not {phase} after 200 passes: {:#}",
        api.get(MIGRATION).unwrap()["status"]
    );
}
