//! A whole change of the range on two nodes against an API server in memory, with a Calico, controllers and agents that answer
//! as real ones would: the order of every write, the same end after the coordinator or the API server dies after any write,
//! and back from every stage.

use api::migration::PodCidrStatus;
use api::{MigrationStatus, names};
use plan::pod_cidr::settings::Settings;
use serde_json::{Value, json};

use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::pass::pass;

pub(super) const MIGRATION: &str = "/apis/replumb.dev/v1alpha1/migrations/m";
const NODES: &str = "/api/v1/nodes";
pub(super) const POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";
const BLOCKS: &str = "/apis/crd.projectcalico.org/v1/ipamblocks";
const AFFINITIES: &str = "/apis/crd.projectcalico.org/v1/blockaffinities";
pub(super) const CALICO: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/calico-node";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/web";
/// Pools by name: the first three parts of every address of them.
pub(super) const RANGES: [(&str, &str); 2] = [("old", "10.244"), ("ipv4-10-200-0-0-16", "10.200")];
const NODE_NAMES: [&str; 2] = ["a", "b"];
/// Annotation of our own on a Node: a stroke for every end of a tunnel that Calico has chosen.
const CHOSEN: &str = "test/chosen";

fn settings() -> Settings {
    let sourced = |value: &str| json!({ "value": value, "source": "spec" });
    serde_json::from_value(json!({
        "from": sourced("10.244.0.0/16"), "to": sourced("10.200.0.0/16"), "oldPool": sourced("old"),
        "newPool": sourced("ipv4-10-200-0-0-16"), "blockSize": { "value": 26, "source": "default" },
        "calicoDaemonSetNamespace": sourced("kube-system"), "calicoDaemonSetName": sourced("calico-node"),
    }))
    .unwrap()
}

/// Two nodes with two pods of a Deployment; the checks have passed and the migration was started.
pub(super) fn cluster(gates: &str) -> FakeApi {
    let api = FakeApi::default();
    for node in NODE_NAMES {
        api.put(
            &format!("{NODES}/{node}"),
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": { "name": node, "labels": {}, "annotations": {} },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
            }),
        );
        put_pod(
            &api,
            "kube-system",
            &format!("calico-{node}"),
            node,
            "DaemonSet",
            "calico-node",
            true,
        );
        put_pod(
            &api,
            "replumb-system",
            &format!("agent-{node}"),
            node,
            "DaemonSet",
            names::AGENT,
            true,
        );
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
            "spec": { "selector": {}, "template": { "spec": { "containers": [{
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
        before: [
            ("IPPool".to_owned(), pool.to_string()),
            ("pods not Ready".to_owned(), "[]".to_owned()),
        ]
        .into(),
        ..MigrationStatus::default()
    };
    api.put(
        MIGRATION,
        json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration",
            "metadata": { "name": "m", "uid": "m-1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": {
                "podCidr": { "from": "10.244.0.0/16", "to": "10.200.0.0/16", "soakSeconds": 0 }, "desired": "Run",
                "gates": { "traffic": gates },
            },
            "status": status,
        }),
    );
    world_moves(&api);
    api.take_changes();
    api
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

/// The pool that gives every pod its address; `named` may be one that gives it to those that name it.
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

/// What controllers, Calico and agents do next. Not counted as changes of ours.
fn world_moves(api: &FakeApi) {
    for (number, node) in NODE_NAMES.iter().enumerate() {
        // The Deployment's controller: one pod on each node.
        let pod = format!("web-{node}");
        if api.get(&format!("{PODS}/{pod}")).is_none() {
            put_pod(api, "default", &pod, node, "ReplicaSet", "web-1", false);
        }
        let mut living = vec![(format!("{PODS}/{pod}"), 5)];
        for (offset, traffic) in api
            .below("/api/v1/namespaces/replumb-system/pods")
            .iter()
            .filter(|pod| pod["spec"]["nodeName"] == **node)
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

/// Attributes of an allocation for the end of the node's tunnel.
fn of_tunnel(node: &str) -> Value {
    json!({ "handle_id": format!("vxlan-tunnel-addr-{node}"), "secondary": { "type": "vxlanTunnelAddress", "node": node } })
}

/// As Calico does before it chooses another one: everything of its handle is released.
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

/// What Calico's IPAM has in this block as the node's tunnel's.
fn addresses_of_tunnel(api: &FakeApi, node: &str, prefix: &str, number: usize) -> Vec<String> {
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

/// Where Calico has its own Nodes, if it has any.
pub(super) const CALICO_NODES: &str = "/apis/crd.projectcalico.org/v1/nodes";

/// The node as Calico has it, and where.
fn calico_node(api: &FakeApi, node: &str) -> (String, Value) {
    let (own, other) = (format!("{CALICO_NODES}/{node}"), format!("{NODES}/{node}"));
    match api.get(&own) {
        Some(object) => (own, object),
        None => (other.clone(), api.get(&other).unwrap()),
    }
}

/// The end of the tunnel of a node as Calico has it.
fn end_of(object: &Value) -> Option<&str> {
    let annotation = object["metadata"]["annotations"]["projectcalico.org/IPv4VXLANTunnelAddr"].as_str();
    annotation.or(object["spec"]["ipv4VXLANTunnelAddr"].as_str())
}

/// The end of the node's tunnel is in the first pool that is open to the node; one that is its own there stays.
fn calico_takes_an_end(api: &FakeApi, node: &str, number: usize) {
    let (path, object) = calico_node(api, node);
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
        // Never one that it had before: what comes back, we gave back.
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

/// Each node has a block of each range of which it has given an address; an empty one stays.
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
            // One that was written for it stays, too, until its handle is released.
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

/// Routes to every block that is there, the addresses that it keeps; and of its traffic pods, that all of them answer.
fn agent_reports(api: &FakeApi, node: &str, number: usize) {
    let path = format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}");
    let Some(object) = api.get(&path) else { return };
    let from = object["spec"]["podCidr"]["from"].as_str().unwrap_or_default();
    let prefix = from.trim_end_matches(".0.0/16");
    let block = block_path(prefix, number);
    let discards = if api.get(&block).is_some() {
        json!({ "first": [{
            "kind": "Blackhole", "destination": format!("{prefix}.{number}.0/26"), "hops": [], "table": 254, "protocol": 80, "metric": 0,
        }], "more": 0 })
    } else {
        json!({ "first": [], "more": 0 })
    };
    let kept = object["spec"]["podCidr"]["tunnelEnds"].as_array().cloned();
    let addresses: Vec<Value> = kept
        .unwrap_or_default()
        .iter()
        .map(|end| json!({ "address": format!("{}/32", end["kept"].as_str().unwrap()), "link": "lo" }))
        .collect();
    let addresses = json!({ "first": addresses, "more": 0 });
    let reporting: Vec<Value> = api
        .below("/api/v1/namespaces/replumb-system/pods")
        .iter()
        .filter(|pod| pod["spec"]["nodeName"] == node && !pod["status"]["podIP"].is_null())
        .map(|pod| pod["metadata"]["uid"].clone())
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
    let pods = json!({ "first": pods, "more": 0 });
    api.edit(&path, &json!({ "status": { "podCidr": null, "traffic": null } }));
    api.edit(
        &path,
        &json!({ "status": {
            "podCidr": {
                "conflist": { "Absent": {} }, "inOld": { "pods": pods, "discards": discards, "addresses": addresses }, "inNew": {}, "tunnels": [],
            },
            "traffic": {
                "flows": 1, "reporting": reporting, "breaches": [], "classes": [], "at": "2026-01-01T00:00:00Z",
            },
        } }),
    );
}

/// One pass after a restart, in a world that has moved. What the migration waits for by the clock is over at once.
pub(super) async fn turn(api: &FakeApi) {
    turn_without_world(api).await;
    world_moves(api);
}

async fn turn_without_world(api: &FakeApi) {
    let mut memory = Memory::default();
    let _ = pass(&api.context(), &api.cache(), &mut memory).await;
    let migration = api.get(MIGRATION).unwrap();
    for mark in ["emptySince", "provedAt"] {
        if migration["status"]["podCidr"][mark].is_string() {
            api.edit(
                MIGRATION,
                &json!({ "status": { "podCidr": { mark: "2026-01-01T00:00:00Z" } } }),
            );
        }
    }
    // A person does what it waits for.
    if migration["status"]["blocked"] == "ConfigurationFollowUp" {
        let mut set = api.get(CALICO).unwrap();
        set["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = json!("10.200.0.0/16");
        api.put(CALICO, set);
    }
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

/// The changes that say something about order, shortened.
pub(super) fn story(changes: &[(String, Value)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (call, body) in changes {
        let (verb, path) = call.split_once(' ').unwrap();
        let last = path.rsplit('/').next().unwrap();
        let spec = &body["spec"];
        if path.ends_with("/eviction") {
            lines.push(format!("evict {}", path.rsplit('/').nth(1).unwrap()));
        } else if path.starts_with(POOLS) {
            let name = body["metadata"]["name"].as_str().unwrap_or(last);
            let disabled = spec
                .get("disabled")
                .map(|found| found.as_bool().unwrap_or_default());
            let how = match (disabled, spec["nodeSelector"].as_str()) {
                (Some(true), _) => " closed",
                (Some(false), Some("!all()")) => " to who names it",
                (Some(false), Some(selector)) if selector.contains("off-pool") => " narrowed",
                (Some(false), _) => " to everybody",
                (None, _) => "",
            };
            lines.push(format!("{} pool {name}{how}", verb.to_lowercase()));
        } else if let Some(ends) = spec["podCidr"].get("tunnelEnds") {
            let what = if ends.is_null() { "drop" } else { "keep" };
            lines.push(format!("{what} on {last}"));
        } else if let Some(cordoned) = spec.get("unschedulable").filter(|_| path.starts_with(NODES)) {
            let what = if cordoned.is_null() { "uncordon" } else { "cordon" };
            lines.push(format!("{what} {last}"));
        } else if body["metadata"]["labels"]["replumb.dev/off-pool"].is_string() {
            lines.push(format!("take off {last}"));
        } else if path.starts_with(BLOCKS) && spec["allocations"].is_array() {
            let holds = spec["attributes"].to_string().contains("vxlanTunnelAddress");
            lines.push(format!(
                "{} an end in {last}",
                if holds { "hold" } else { "release" }
            ));
        } else if path.starts_with(BLOCKS) || path.starts_with(AFFINITIES) {
            let what = if spec["state"].is_string() { " pending" } else { "" };
            lines.push(format!("{} {last}{what}", verb.to_lowercase()));
        }
    }
    lines
}

pub(super) fn assert_in_order(story: &[String], lines: &[&str]) {
    let mut rest = story.iter();
    for line in lines {
        assert!(
            rest.any(|found| found == line),
            "no {line:?} after those before it in {story:#?}"
        );
    }
}

/// Nothing of this range is left, and every pod has an address of the other one.
pub(super) fn assert_gone(api: &FakeApi, gone: usize) {
    let (pool, prefix) = RANGES[gone];
    assert!(
        api.get(&format!("{POOLS}/{pool}")).is_none(),
        "pool {pool} is left"
    );
    let left: Vec<String> = api
        .everything()
        .keys()
        .filter(|path| path.contains(&format!("{}-", prefix.replace('.', "-"))))
        .cloned()
        .collect();
    assert_eq!(left, [""; 0]);
    for node in NODE_NAMES {
        let pod = api.get(&format!("{PODS}/web-{node}")).unwrap();
        let address = pod["status"]["podIP"].as_str().unwrap();
        assert!(address.starts_with(RANGES[1 - gone].1), "{address}");
    }
    for node in api.below(NODES) {
        assert_eq!(node["metadata"]["labels"], json!({}), "a label is left");
        assert_ne!(node["spec"]["unschedulable"], true, "a cordon is left");
    }
    for (number, name) in NODE_NAMES.iter().enumerate() {
        let (path, node) = calico_node(api, name);
        assert_eq!(node["metadata"]["labels"], json!({}), "a label is left in {path}");
        let end = end_of(&node).unwrap();
        assert!(end.starts_with(RANGES[1 - gone].1), "{end}");
        let of_tunnel = addresses_of_tunnel(api, name, RANGES[1 - gone].1, number);
        assert_eq!(of_tunnel, [end], "what the tunnel of {name} has in Calico's IPAM");
    }
    for object in api.below("/apis/replumb.dev/v1alpha1/nodemigrations") {
        let kept = &object["spec"]["podCidr"]["tunnelEnds"];
        assert!(kept.is_null(), "an address is kept: {kept}");
    }
    let traffic = api
        .below("/api/v1/namespaces/replumb-system/pods")
        .iter()
        .filter(|pod| pod["metadata"]["labels"][names::COMPONENT_LABEL] == names::TRAFFIC_COMPONENT)
        .count();
    assert_eq!(traffic, 0, "traffic pods are left");
}

#[tokio::test]
async fn every_write_in_its_order() {
    let api = cluster("Watch");
    run_until(&api, "Completed").await;
    let changes = api.take_changes();
    let new = RANGES[1].0;
    assert_in_order(
        &story(&changes),
        &[
            &format!("post pool {new} closed"),
            &format!("patch pool {new} to who names it"),
            &format!("patch pool {new} to everybody"),
            "keep on b",
            "hold an end in 10-200-0-0-26",
            "take off a",
            "hold an end in 10-200-1-0-26",
            "take off b",
            "patch pool old closed",
            "evict web-a",
            "evict web-b",
            "release an end in 10-244-0-0-26",
            "drop on b",
            "patch a-10-244-0-0-26 pending",
            "delete 10-244-0-0-26",
            "delete a-10-244-0-0-26",
            "delete pool old",
        ],
    );
    assert_gone(&api, 0);
    let status = &api.get(MIGRATION).unwrap()["status"]["podCidr"];
    assert_eq!(
        (&status["podsInOldRange"], &status["podsInNewRange"]),
        (&json!(0), &json!(2))
    );
    let stages: Vec<&str> = status["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stage| stage["name"].as_str().unwrap())
        .collect();
    for stage in [
        "CreatePool",
        "Canary",
        "Switch",
        "Move",
        "Verify",
        "FollowUp",
        "DeletePool",
        "CleanUp",
    ] {
        assert!(stages.contains(&stage), "no {stage} in {stages:?}");
    }
}

#[tokio::test]
async fn the_same_end_whichever_write_is_the_last_before_a_crash() {
    let undisturbed = cluster("Off");
    run_until(&undisturbed, "Completed").await;
    let writes = undisturbed.take_changes().len();
    assert!(
        writes > 20,
        "the walk is too short to prove anything: {writes} writes"
    );
    for last in 0..writes {
        let api = cluster("Off");
        api.allow(Some(last));
        for _ in 0..60 {
            turn(&api).await;
        }
        api.allow(None);
        run_until(&api, "Completed").await;
        assert_gone(&api, 0);
    }
}

/// From every write before the old pool goes.
#[tokio::test]
async fn back_from_wherever_it_is() {
    let undisturbed = cluster("Off");
    run_until(&undisturbed, "Completed").await;
    let changes = undisturbed.take_changes();
    let no_return = changes
        .iter()
        .position(|(call, _)| *call == format!("DELETE {POOLS}/old"))
        .unwrap();
    for last in 0..no_return {
        let api = cluster("Off");
        api.allow(Some(last));
        for _ in 0..60 {
            turn(&api).await;
        }
        api.allow(None);
        api.edit(
            MIGRATION,
            &json!({ "spec": { "desired": "Rollback" }, "metadata": { "generation": 2 } }),
        );
        run_until(&api, "RolledBack").await;
        assert_gone(&api, 1);
        let old = api.get(&format!("{POOLS}/old")).unwrap();
        assert!(
            old["spec"]["disabled"] != true,
            "the old pool is closed after {last} writes"
        );
    }
}

/// An allocation that races the block's release is not lost: it comes between the look at the block and the write.
#[tokio::test]
async fn who_takes_an_address_of_a_block_that_is_about_to_go_keeps_it() {
    let api = cluster("Off");
    let block = format!("{BLOCKS}/10-244-0-0-26");
    let mut allocations = vec![Value::Null; 64];
    allocations[7] = json!(0);
    let taken = json!({ "spec": {
        "allocations": allocations, "attributes": [{ "handle_id": "somebody", "secondary": {} }] } });
    api.meddle(&format!("PATCH {AFFINITIES}/a-10-244-0-0-26"), &block, taken);
    for _ in 0..100 {
        let pending = api
            .get(&format!("{AFFINITIES}/a-10-244-0-0-26"))
            .is_some_and(|affinity| affinity["spec"]["state"] == "pendingDeletion");
        if pending {
            break;
        }
        turn_without_world(&api).await;
        if api
            .get(&block)
            .is_some_and(|block| block["spec"]["allocations"][7].is_null())
        {
            world_moves(&api);
        }
    }
    for _ in 0..5 {
        turn_without_world(&api).await;
    }
    let object = api
        .get(&block)
        .expect("the block, with the address that was given out");
    assert_eq!(object["spec"]["allocations"][7], 0);
    assert!(object["spec"]["deleted"].is_null(), "{object:#}");
    assert!(api.get(&format!("{POOLS}/old")).is_some(), "its pool is deleted");
    let status = &api.get(MIGRATION).unwrap()["status"];
    assert_eq!(status["blocked"], "Leftovers");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("10.244.0.7") && message.contains("somebody"),
        "{message}"
    );
}

#[tokio::test]
async fn node_by_node_each_is_cordoned_while_its_pods_leave() {
    let api = cluster("Watch");
    api.edit(MIGRATION, &json!({ "spec": { "podCidr": { "mode": "ByNode" } } }));
    api.take_changes();
    run_until(&api, "Completed").await;
    assert_in_order(
        &story(&api.take_changes()),
        &[
            "patch pool old closed",
            "cordon a",
            "evict web-a",
            "uncordon a",
            "cordon b",
            "evict web-b",
            "uncordon b",
            "delete pool old",
        ],
    );
    assert_gone(&api, 0);
}

#[tokio::test]
async fn past_its_point_of_no_return_nothing_is_taken_back_and_the_rest_is_finished() {
    let api = cluster("Watch");
    for _ in 0..200 {
        if api.get(&format!("{POOLS}/old")).is_none() {
            break;
        }
        turn(&api).await;
    }
    assert!(
        api.get(&format!("{POOLS}/old")).is_none(),
        "the pool is never deleted"
    );
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    api.take_changes();
    for _ in 0..5 {
        turn(&api).await;
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["blocked"], "PastReturn", "{status:#}");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("another one, from 10.200.0.0/16 to 10.244.0.0/16"),
        "{message}"
    );
    assert_eq!(story(&api.take_changes()), [""; 0]);
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Run" } }));
    run_until(&api, "Completed").await;
    assert_gone(&api, 0);
}

/// The end of every node's tunnel.
fn tunnel_ends(api: &FakeApi) -> [String; 2] {
    NODE_NAMES.map(|node| {
        let (_, object) = calico_node(api, node);
        end_of(&object).unwrap().to_owned()
    })
}

async fn until_closed(api: &FakeApi, pool: &str) {
    for _ in 0..60 {
        if api.get(&format!("{POOLS}/{pool}")).unwrap()["spec"]["disabled"] == true {
            return;
        }
        turn(api).await;
    }
    panic!(
        "{pool} is not closed: {:#}",
        api.get(MIGRATION).unwrap()["status"]
    );
}

pub(super) fn desire(api: &FakeApi, desired: &str) {
    api.edit(MIGRATION, &json!({ "spec": { "desired": desired } }));
}

/// There and back and there and back again: nothing is forgotten that somebody has to take away.
#[tokio::test]
async fn who_turns_around_twice_ends_as_who_does_once() {
    for passes in 1..8 {
        let api = cluster("Off");
        let before = tunnel_ends(&api);
        until_closed(&api, "old").await;
        desire(&api, "Rollback");
        until_closed(&api, "ipv4-10-200-0-0-16").await;
        desire(&api, "Run");
        for _ in 0..passes {
            turn(&api).await;
        }
        desire(&api, "Rollback");
        run_until(&api, "RolledBack").await;
        assert_eq!(tunnel_ends(&api), before, "after {passes} passes");
        assert_gone(&api, 1);
    }
}

/// A policy knows the new range alone by now: before a pod comes back it has to know both. What tunnels had is not forgotten meanwhile.
#[tokio::test]
async fn on_the_way_back_too_both_ranges_have_to_be_known_first() {
    let api = cluster("Watch");
    let before = tunnel_ends(&api);
    until_closed(&api, "old").await;
    let policy = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/web";
    let blocks = |ranges: &[&str]| {
        let from: Vec<Value> = ranges
            .iter()
            .map(|range| json!({ "ipBlock": { "cidr": range } }))
            .collect();
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "web", "namespace": "default" },
            "spec": { "podSelector": {}, "ingress": [{ "from": from }] },
        })
    };
    api.put(policy, blocks(&["10.200.0.0/16"]));
    desire(&api, "Rollback");
    for _ in 0..10 {
        turn(&api).await;
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["blocked"], "ConfigurationFollowUp", "{status:#}");
    let message = status["message"].as_str().unwrap();
    for words in ["NetworkPolicy default/web", "10.200.0.0/16 and 10.244.0.0/16"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(
        api.get(&format!("{POOLS}/old")).unwrap()["spec"]["disabled"],
        true
    );
    api.put(policy, blocks(&["10.200.0.0/16", "10.244.0.0/16"]));
    run_until(&api, "RolledBack").await;
    assert_eq!(tunnel_ends(&api), before);
    assert_gone(&api, 1);
}

/// Nobody knows then which addresses are free: none is given back, and none is exchanged.
#[tokio::test]
async fn a_block_that_is_not_understood_is_named_before_a_pool_is_opened() {
    let api = cluster("Watch");
    let before = tunnel_ends(&api);
    until_closed(&api, "old").await;
    let block = format!("{BLOCKS}/10-99-0-0-26");
    api.put(
        &block,
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": { "name": "10-99-0-0-26" },
            "spec": { "cidr": "everything" },
        }),
    );
    desire(&api, "Rollback");
    for _ in 0..10 {
        turn(&api).await;
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["blocked"], "CalicoObjects", "{status:#}");
    assert!(
        status["message"].as_str().unwrap().contains("10-99-0-0-26"),
        "{status:#}"
    );
    assert_eq!(
        api.get(&format!("{POOLS}/old")).unwrap()["spec"]["disabled"],
        true
    );
    api.remove(&block);
    run_until(&api, "RolledBack").await;
    assert_eq!(tunnel_ends(&api), before);
}

#[tokio::test]
async fn who_turns_around_gives_every_tunnel_back_what_it_had() {
    gives_back(&cluster("Watch")).await;
}

/// There until the old pool is closed, and back: each tunnel has what it had, which nobody else could get meanwhile.
pub(super) async fn gives_back(api: &FakeApi) {
    let before = tunnel_ends(api);
    until_closed(api, "old").await;
    assert!(tunnel_ends(api).iter().all(|end| end.starts_with("10.200.")));
    let story = back(api).await;
    assert_in_order(
        &story,
        &[
            "patch pool old to everybody",
            "take off a",
            "take off b",
            "patch pool ipv4-10-200-0-0-16 closed",
            "release an end in 10-200-0-0-26",
        ],
    );
    assert_eq!(tunnel_ends(api), before);
}

#[tokio::test]
async fn what_a_tunnel_had_is_held_again_before_anybody_can_get_it() {
    gives_back_what_was_released(&cluster("Watch")).await;
}

/// There until Calico's IPAM has back what tunnels had, and back.
pub(super) async fn gives_back_what_was_released(api: &FakeApi) {
    let before = tunnel_ends(api);
    until_closed(api, "old").await;
    let is_held = |api: &FakeApi| addresses_of_tunnel(api, "b", RANGES[0].1, 1) == [before[1].as_str()];
    assert!(is_held(api));
    for _ in 0..60 {
        if !is_held(api) {
            break;
        }
        turn(api).await;
    }
    let story = back(api).await;
    assert_in_order(
        &story,
        &[
            "hold an end in 10-244-1-0-26",
            "patch pool old to everybody",
            "take off a",
            "take off b",
        ],
    );
    assert_eq!(tunnel_ends(api), before);
}

/// What is written on the way back, to its end.
async fn back(api: &FakeApi) -> Vec<String> {
    desire(api, "Rollback");
    api.take_changes();
    run_until(api, "RolledBack").await;
    assert_gone(api, 1);
    story(&api.take_changes())
}

/// Nothing of the new range may be given out but to who says so: the migration has nothing to choose from.
#[tokio::test]
async fn calico_chooses_where_the_migration_cannot() {
    let api = cluster("Watch");
    api.put(
        "/apis/crd.projectcalico.org/v1/ipreservations/all",
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPReservation", "metadata": { "name": "all" },
            "spec": { "reservedCIDRs": ["10.200.0.0/16"] },
        }),
    );
    run_until(&api, "Completed").await;
    let story = story(&api.take_changes());
    assert_in_order(
        &story,
        &[
            "keep on b",
            "take off a",
            "patch pool old narrowed",
            "keep on a",
            "take off b",
            "keep on b",
            "patch pool old closed",
        ],
    );
    assert!(!story.iter().any(|line| line.starts_with("hold")), "{story:#?}");
    assert_gone(&api, 0);
}

#[tokio::test]
async fn what_a_person_changed_for_the_way_there_is_told_at_the_end_of_the_way_back() {
    let api = cluster("Watch");
    for _ in 0..10 {
        turn(&api).await;
    }
    let mut set = api.get(CALICO).unwrap();
    set["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = json!("10.200.0.0/16");
    api.put(CALICO, set);
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    run_until(&api, "RolledBack").await;
    let message = api.get(MIGRATION).unwrap()["status"]["message"].to_string();
    for words in [
        "1 places say 10.200.0.0/16 still",
        "CALICO_IPV4POOL_CIDR: found 10.200.0.0/16, needed 10.244.0.0/16",
    ] {
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn what_is_paused_stays_as_it_is() {
    let api = cluster("Off");
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Pause" } }));
    for _ in 0..10 {
        turn(&api).await;
    }
    assert_eq!(story(&api.take_changes()), [""; 0]);
    assert_eq!(api.get(MIGRATION).unwrap()["status"]["blocked"], "Paused");
    // But somebody closes the only pool: no pod would start.
    api.edit(&format!("{POOLS}/old"), &json!({ "spec": { "disabled": true } }));
    turn(&api).await;
    assert_eq!(story(&api.take_changes()), ["patch pool old to everybody"]);
}
