//! A whole migration of two nodes against a fake API server, with agents and kubelets that answer like real ones:
//! the order of every write, and the same end after a crash of the coordinator or the API server at any write.

mod back;
mod clock;
mod drift;
mod foreign_object;
mod in_place;
mod ipv6;
mod leftover;
mod matrix;
mod outside;
mod preview;
mod release;
mod requests;
mod size;
mod traffic;

use std::collections::BTreeMap;

use api::migration::FlannelToCalicoStatus;
use api::{MigrationStatus, names};
use engine::sourced::{Source, Sourced};
use flannel_to_calico::settings::Settings;
use serde_json::{Value, json};

use super::saved;
use crate::fake_api::FakeApi;
pub(super) use crate::fake_api::MIGRATION;
use crate::memory::Memory;
use crate::pass::pass;
use crate::walk;

pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const FLANNEL: &str = "/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds";
pub(super) const CALICO: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/calico-node";
pub(super) const CALICO_GROUP: &str = "/apis/crd.projectcalico.org/v1";

pub(super) fn node_migration(node: &str) -> String {
    format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}")
}

fn settings() -> Settings {
    fn plain<T>(value: T) -> Sourced<T> {
        Sourced {
            value,
            source: Source::Default,
        }
    }
    Settings {
        flannel_network: plain("10.244.0.0/16".parse().unwrap()),
        flannel_daemon_set_name: plain("kube-flannel-ds".to_owned()),
        flannel_daemon_set_namespace: plain("kube-flannel".to_owned()),
        flannel_mtu: plain(1450),
        flannel_ip_masquerade: plain(true),
        flannel_subnet_length: plain(24),
        flannel_annotation_prefix: plain("flannel.alpha.coreos.com".to_owned()),
        flannel_vni: plain(1),
        flannel_port: plain(8472),
        calico_daemon_set_name: plain("calico-node".to_owned()),
        calico_daemon_set_namespace: plain("kube-system".to_owned()),
        ip_pool_block_size: plain(26),
        cni_configuration_directory: plain("/etc/cni/net.d".to_owned()),
        ipv6: None,
    }
}

/// The node's number, from its one-letter name; it is part of its pod range.
pub(super) fn number_of(node: &str) -> u8 {
    node.as_bytes()[0] - b'a' + 1
}

pub(super) fn put_node(api: &FakeApi, name: &str, number: u8) {
    put_node_with(api, name, &format!("10.244.{number}"), [192, 168, 0, number]);
}

/// A node with its agent, its flannel pod and one pod; `pods` are the first three parts of its pods' addresses.
pub(super) fn put_node_with(api: &FakeApi, name: &str, pods: &str, address: [u8; 4]) {
    let [.., high, low] = address;
    let address = std::net::Ipv4Addr::from(address);
    let range = format!("{pods}.0/24");
    api.put(
        &format!("{NODES}/{name}"),
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "labels": {},
                "annotations": {
                    "flannel.alpha.coreos.com/backend-type": "vxlan",
                    "flannel.alpha.coreos.com/backend-data": format!("{{\"VNI\":1,\"VtepMAC\":\"0a:00:00:00:{high:02x}:{low:02x}\"}}"),
                    "flannel.alpha.coreos.com/public-ip": address,
                    "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                },
            },
            "spec": { "podCIDR": range, "podCIDRs": [range] },
            "status": {
                "conditions": [{ "type": "Ready", "status": "True" }],
                "addresses": [{ "type": "InternalIP", "address": address }],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "6.18.0",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux",
                    "osImage": "", "systemUUID": "",
                },
            },
        }),
    );
    put_pod(
        api,
        "replumb-system",
        &format!("agent-{name}"),
        name,
        names::AGENT,
        true,
        None,
    );
    put_pod(
        api,
        "kube-flannel",
        &format!("flannel-{name}"),
        name,
        "kube-flannel-ds",
        true,
        None,
    );
    put_pod(
        api,
        "default",
        &format!("log-{name}"),
        name,
        "log",
        false,
        Some(&format!("{pods}.9")),
    );
}

pub(super) fn put_pod(
    api: &FakeApi,
    namespace: &str,
    name: &str,
    node: &str,
    owner: &str,
    host: bool,
    address: Option<&str>,
) {
    api.put(
        &format!("/api/v1/namespaces/{namespace}/pods/{name}"),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": namespace,
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": owner, "controller": true,
                }],
            },
            "spec": { "nodeName": node, "hostNetwork": host, "containers": [] },
            "status": {
                "phase": "Running", "podIP": address, "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }),
    );
}

fn put_daemon_set(api: &FakeApi, path: &str, namespace: &str, name: &str, selector: &Value, pods: u32) {
    api.put(
        path,
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": name, "namespace": namespace, "generation": 1 },
            "spec": {
                "selector": {},
                "template": { "spec": { "nodeSelector": selector, "containers": [] } },
            },
            "status": {
                "observedGeneration": 1, "desiredNumberScheduled": pods, "updatedNumberScheduled": pods,
                "numberAvailable": pods, "numberReady": pods, "currentNumberScheduled": pods, "numberMisscheduled": 0,
            },
        }),
    );
}

/// Two nodes on flannel; the checks have passed and the migration is started.
pub(super) fn cluster() -> FakeApi {
    let api = empty();
    put_node(&api, "a", 1);
    put_node(&api, "b", 2);
    api
}

/// The same without nodes.
pub(super) fn empty() -> FakeApi {
    let api = FakeApi::default();
    put_daemon_set(&api, FLANNEL, "kube-flannel", "kube-flannel-ds", &json!({}), 2);
    put_daemon_set(
        &api,
        CALICO,
        "kube-system",
        "calico-node",
        &json!({ names::NODE_NETWORK_LABEL: names::NETWORK_CALICO }),
        0,
    );
    let status = MigrationStatus {
        phase: api::migration::MigrationPhase::Preparing,
        started_at: Some(jiff::Timestamp::now()),
        flannel_to_calico: Some(FlannelToCalicoStatus {
            settings: settings(),
            nodes: None,
            policy_preview: None,
        }),
        saved_state: [
            (saved::IPAM_CONFIG, "null"),
            (saved::FELIX_CONFIGURATION, "null"),
            (saved::IP_POOLS, "[]"),
            (saved::IPAM_BLOCKS, "[]"),
            (saved::NODE_ANNOTATIONS, "{}"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        ..MigrationStatus::default()
    };
    // Tests of traffic pods enable them (scenarios::traffic).
    let spec = json!({ "flannelToCalico": { "soakSeconds": 0 }, "desired": "Run", "gates": { "traffic": "Ignore" } });
    api.put_migration(&spec, &status);
    api.take_changes();
    api
}

/// The next moves of agents, kubelets and controllers for the current state. Not counted as changes of the coordinator.
pub(super) fn world_moves(api: &FakeApi) {
    for node in api.below(NODES) {
        let name = node["metadata"]["name"].as_str().unwrap();
        let label = node["metadata"]["labels"][names::NODE_NETWORK_LABEL]
            .as_str()
            .unwrap_or_default();
        let flannel_pod = format!("/api/v1/namespaces/kube-flannel/pods/flannel-{name}");
        if label == "none" || label == "calico" || api.get(FLANNEL).is_none() {
            api.remove(&flannel_pod);
        } else if api.get(&flannel_pod).is_none() {
            let pod = format!("flannel-{name}");
            put_pod(api, "kube-flannel", &pod, name, "kube-flannel-ds", true, None);
        }
        let calico_pod = format!("/api/v1/namespaces/kube-system/pods/calico-{name}");
        if label != "calico"
            && api
                .below("/apis/apps/v1/namespaces/kube-system/daemonsets")
                .iter()
                .any(|set| {
                    set["spec"]["template"]["spec"]["nodeSelector"][names::NODE_NETWORK_LABEL].is_string()
                })
        {
            api.remove(&calico_pod);
        }
        if label == "calico" && api.get(&calico_pod).is_none() {
            put_pod(
                api,
                "kube-system",
                &format!("calico-{name}"),
                name,
                "calico-node",
                true,
                None,
            );
        }
        // The DaemonSet's controller recreates an evicted pod; without a network it gets no address.
        let log = format!("/api/v1/namespaces/default/pods/log-{name}");
        if api.get(&log).is_none() {
            put_pod(api, "default", &format!("log-{name}"), name, "log", false, None);
        }
        let phase =
            api.get(&node_migration(name)).unwrap_or_default()["status"]["flannelToCalico"]["phase"].clone();
        let number = number_of(name);
        if api.get(&log).unwrap()["status"]["podIP"].is_null() {
            let address = match phase.as_str() {
                Some("Calico" | "Mixed") => Some(format!("10.244.{number}.20")),
                Some("Flannel") if label == "flannel" => Some(format!("10.244.{number}.9")),
                _ => None,
            };
            api.edit(&log, &json!({ "status": { "podIP": address } }));
        }
        agent_moves(api, name, &flannel_pod, &calico_pod);
    }
    traffic::pods_run(api);
    for probe in api.below("/api/v1/namespaces/replumb-system/pods") {
        if probe["metadata"]["labels"][names::COMPONENT_LABEL] == names::PROBE_COMPONENT {
            let name = probe["metadata"]["name"].as_str().unwrap();
            api.edit(
                &format!("/api/v1/namespaces/replumb-system/pods/{name}"),
                &json!({ "status": {
                    "phase": "Running", "podIP": "10.244.9.9", "conditions": [{ "type": "Ready", "status": "True" }],
                } }),
            );
        }
    }
}

/// Whether the node's one pod has an address assigned by Calico.
pub(super) fn has_calicos_pod(api: &FakeApi, node: &str) -> bool {
    let log = api
        .get(&format!("/api/v1/namespaces/default/pods/log-{node}"))
        .unwrap_or_default();
    log["status"]["podIP"]
        .as_str()
        .is_some_and(|address| address.ends_with(".20"))
}

fn agent_moves(api: &FakeApi, name: &str, flannel_pod: &str, calico_pod: &str) {
    let path = node_migration(name);
    let Some(object) = api.get(&path) else { return };
    let phase = object["status"]["flannelToCalico"]["phase"]
        .as_str()
        .unwrap_or("Flannel")
        .to_owned();
    let goal = object["spec"]["flannelToCalico"]["goal"]
        .as_str()
        .unwrap_or("Hold")
        .to_owned();
    let next = match (phase.as_str(), goal.as_str()) {
        (phase, "Flannel") if api.get(calico_pod).is_some() => phase,
        // The CNI folder first: new pods wait, and pods of Calico are evicted. Then the rest.
        ("Mixed", "Flannel") | ("Held", "Swapped") => "Swapped",
        ("Calico", "Flannel") | ("Held", "Detached" | "Calico") => "Detached",
        (phase, "Flannel") if has_calicos_pod(api, name) => phase,
        (_, "Flannel") => "Flannel",
        ("Flannel", "Held" | "Detached" | "Calico") if api.get(flannel_pod).is_none() => "Held",
        ("Detached", "Calico") if api.get(calico_pod).is_some() => "Calico",
        ("Swapped", "Mixed") if api.get(calico_pod).is_some() => "Mixed",
        ("Mixed", "Calico") if !in_place::lives(api, name) && !traffic::lives_on_old(api, name) => "Calico",
        (phase, _) => phase,
    };
    let probes: Vec<Value> = object["spec"]["probes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|target| {
            json!({ "target": target, "reached": true, "message": "answered", "at": "2026-01-01T00:00:00Z" })
        })
        .collect();
    api.edit(
        &path,
        &json!({ "status": {
            "message": "as told",
            "probes": probes,
            "traffic": traffic::report(api, name, &object),
            "flannelToCalico": {
                "phase": next,
                "goal": goal,
                "changes": if next == "Flannel" { json!([]) } else { json!(["link vxlan.calico"]) },
            },
        } }),
    );
    if let Some(facts) = in_place::facts(api, name, next) {
        // A report replaces the previous one; an edit alone would merge them.
        api.edit(
            &path,
            &json!({ "status": { "flannelToCalico": { "facts": null } } }),
        );
        api.edit(
            &path,
            &json!({ "status": { "flannelToCalico": { "facts": facts } } }),
        );
    }
}

/// Runs passes until the Migration is completed; after an error the next pass follows, as in the loop.
pub(super) async fn run_to_the_end(api: &FakeApi) -> Result<(), String> {
    run_until(api, "Completed").await
}

/// Runs passes until the Migration is in this phase.
pub(super) async fn run_until(api: &FakeApi, phase: &str) -> Result<(), String> {
    let mut memory = Memory::default();
    for _ in 0..200 {
        if api.get(MIGRATION).unwrap()["status"]["phase"] == phase {
            return Ok(());
        }
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(api);
    }
    let migration = api.get(MIGRATION).unwrap();
    Err(format!("not {phase} after 200 passes: {}", migration["status"]))
}

/// The API server becomes unreachable after this number of writes, and the coordinator dies.
pub(super) async fn crash_after(api: &FakeApi, writes: usize) {
    let mut memory = Memory::default();
    let turn = async |api: &FakeApi| {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(api);
    };
    api.crash_after(writes, turn, world_moves).await;
}

/// Shortened changes that are relevant for the order: `label a none`.
pub(super) fn story(changes: &[(String, Value)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (call, body) in changes {
        let path = call.split(' ').nth(1).unwrap();
        let last = path.rsplit('/').next().unwrap();
        if call.starts_with(&format!("PATCH {NODES}/")) {
            let label = &body["metadata"]["labels"][names::NODE_NETWORK_LABEL];
            if body["metadata"]["labels"].is_object() {
                lines.push(format!("label {last} {}", label.as_str().unwrap_or("removed")));
            } else if body["spec"].get("unschedulable").is_some() {
                let cordon = body["spec"]["unschedulable"] == true;
                lines.push(format!("{} {last}", if cordon { "cordon" } else { "uncordon" }));
            } else if body["metadata"]["annotations"][names::PREPARED_BY_ANNOTATION].is_string() {
                lines.push(format!("annotate {last}"));
            }
        } else if path.ends_with("/eviction") {
            lines.push(format!("evict {}", path.rsplit('/').nth(1).unwrap()));
        } else if call.contains("/nodemigrations/") && body["spec"]["flannelToCalico"]["goal"].is_string() {
            lines.push(format!(
                "goal {last} {}",
                body["spec"]["flannelToCalico"]["goal"].as_str().unwrap()
            ));
        } else if call.contains("/daemonsets/") {
            let verb = if call.starts_with("DELETE") {
                "delete"
            } else {
                "patch"
            };
            lines.push(format!("{verb} {last}"));
        } else if call.contains(CALICO_GROUP) {
            let object = body["metadata"]["name"].as_str().unwrap_or(last);
            let kind = path.trim_start_matches(CALICO_GROUP).split('/').nth(1).unwrap();
            let state = body["spec"]["state"]
                .as_str()
                .map(|state| format!(" {state}"))
                .unwrap_or_default();
            let verb = call.split(' ').next().unwrap().to_lowercase();
            lines.push(format!("{verb} {kind} {object}{state}"));
        } else if call.starts_with("POST") && path.ends_with("/pods") {
            lines.push(format!("probe {}", body["spec"]["nodeName"].as_str().unwrap()));
        }
    }
    lines
}

/// Asserts that the story has these lines in this order.
pub(super) fn assert_in_order(story: &[String], lines: &[&str]) {
    let at = |line: &str| {
        story
            .iter()
            .position(|found| found == line)
            .unwrap_or_else(|| panic!("no {line:?} in {story:#?}"))
    };
    for pair in lines.windows(2) {
        assert!(
            at(pair[0]) < at(pair[1]),
            "{:?} came after {:?} in {story:#?}",
            pair[0],
            pair[1]
        );
    }
}

/// Asserts that both have the same objects with equal content.
pub(super) fn assert_same(was: &BTreeMap<String, Value>, is: &BTreeMap<String, Value>, when: &str) {
    let differs: Vec<&String> = was
        .keys()
        .chain(is.keys())
        .filter(|path| was.get(*path) != is.get(*path))
        .collect();
    assert!(
        differs.is_empty(),
        "{when} {differs:?} differ; the first is {:#?}, was {:#?}",
        is.get(differs[0]),
        was.get(differs[0])
    );
}

/// Objects without values that differ from run to run: times, versions, sequence numbers.
pub(super) fn steady(mut all: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(map) => {
                for key in [
                    "since",
                    "preparedAt",
                    "startedAt",
                    "finishedAt",
                    "completedAt",
                    "sequenceNumber",
                    "history",
                    "sequenceNumberForAllocation",
                    "lastTransitionTime",
                    "message",
                    "started_at",
                ] {
                    map.remove(key);
                }
                map.values_mut().for_each(walk);
            }
            Value::Array(items) => items.iter_mut().for_each(walk),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    all.values_mut().for_each(walk);
    all
}

#[tokio::test]
async fn a_drained_migration_writes_in_order() {
    let api = cluster();
    run_to_the_end(&api).await.unwrap();
    let changes = api.take_changes();
    let story = story(&changes);
    let in_order = [
        "label a flannel",
        "patch kube-flannel-ds",
        "post ipamconfigs default",
        "post ippools default-ipv4-ippool",
        "post felixconfigurations default",
        "post blockaffinities a-10-244-1-0-26 pending",
        "post ipamhandles vxlan-tunnel-addr-a",
        "post ipamblocks 10-244-1-0-26",
        "patch blockaffinities a-10-244-1-0-26 confirmed",
        "annotate a",
        "cordon a",
        "label a none",
        "goal a Held",
        "evict log-a",
        "goal a Detached",
        "label a calico",
        "goal a Calico",
        "probe a",
        "uncordon a",
        "cordon b",
        "uncordon b",
        "delete kube-flannel-ds",
        "patch calico-node",
        "label a removed",
        "delete ipamconfigs default",
    ];
    assert_in_order(&story, &in_order);
    // Every write names the version on which it was decided, so that no change of another program is lost; or, with the object's
    // UID, the fields: `fake_json_patch` refuses a patch that does not.
    for (call, body) in changes.iter().filter(|(call, _)| call.starts_with("PATCH")) {
        let metadata = &body["metadata"];
        assert!(
            metadata["resourceVersion"].is_string() || metadata["uid"].is_string(),
            "{call} without a resourceVersion"
        );
    }
    let nodes = api.below(NODES);
    assert!(
        nodes.iter().all(|node| node["spec"]["unschedulable"].is_null()),
        "a cordon remains"
    );
    assert!(
        nodes.iter().all(|node| node["metadata"]["labels"] == json!({})),
        "a label remains"
    );
    assert!(api.get(FLANNEL).is_none());
}

#[tokio::test]
async fn a_crash_after_any_write_leads_to_the_same_end() {
    let start = async || cluster();
    let undisturbed = walk::undisturbed(start, async |api| run_to_the_end(api).await.unwrap()).await;
    let writes = undisturbed.changes.len();
    let expected = steady(undisturbed.api.everything());
    assert!(
        writes > 40,
        "the walk is too short to prove anything: {writes} writes"
    );
    // The coordinator is back before other components do anything.
    let crash_after = async |api: &FakeApi, last| {
        api.allow(Some(last));
        let mut memory = Memory::default();
        let mut went_away = false;
        for _ in 0..200 {
            if pass(&api.context(), &api.cache(), &mut memory).await.is_err() {
                went_away = true;
                break;
            }
            world_moves(api);
        }
        assert!(
            went_away,
            "the API server was not unreachable after {last} writes"
        );
        api.allow(None);
    };
    walk::crash_after_each(0..writes, start, crash_after, async |api, when| {
        run_to_the_end(api)
            .await
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_same(&expected, &steady(api.everything()), when);
    })
    .await;
}

#[tokio::test]
async fn a_cordon_of_a_user_stays() {
    let api = cluster();
    api.edit(
        &format!("{NODES}/a"),
        &json!({ "spec": { "unschedulable": true } }),
    );
    run_to_the_end(&api).await.unwrap();
    assert_eq!(
        api.get(&format!("{NODES}/a")).unwrap()["spec"]["unschedulable"],
        json!(true)
    );
    let story = story(&api.take_changes());
    assert!(
        !story.contains(&"cordon a".to_owned()) && !story.contains(&"uncordon a".to_owned()),
        "{story:#?}"
    );
    assert!(story.contains(&"uncordon b".to_owned()), "{story:#?}");
}

#[tokio::test]
async fn a_new_node_is_migrated_and_a_deleted_one_is_forgotten() {
    let api = cluster();
    let mut memory = Memory::default();
    let mut changed = false;
    for _ in 0..200 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(&api);
        let a_is_in_work = api
            .get(&node_migration("a"))
            .is_some_and(|object| object["spec"]["started"] == true);
        if a_is_in_work && !changed {
            changed = true;
            put_node(&api, "c", 3);
            for path in [
                format!("{NODES}/b"),
                "/api/v1/namespaces/default/pods/log-b".to_owned(),
            ] {
                api.remove(&path);
            }
        }
        if api.get(MIGRATION).unwrap()["status"]["phase"] == "Completed" {
            break;
        }
    }
    assert!(changed, "node a was never in progress");
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["phase"], "Completed", "{status}");
    assert!(api.get(&node_migration("c")).unwrap()["spec"]["finishedAt"].is_string());
    assert!(
        api.get(&node_migration("b")).is_none(),
        "the NodeMigration of a deleted node"
    );
    assert!(
        api.get(&format!("{CALICO_GROUP}/ipamblocks/10-244-2-0-26"))
            .is_none(),
        "its block"
    );
    assert!(
        api.get(&format!("{CALICO_GROUP}/blockaffinities/b-10-244-2-0-26"))
            .is_none(),
        "its claim"
    );
    assert!(
        api.get(&format!("{CALICO_GROUP}/ipamhandles/vxlan-tunnel-addr-b"))
            .is_none(),
        "its handle"
    );
}

#[tokio::test]
async fn a_second_migration_is_refused_and_the_first_continues() {
    let api = cluster();
    let second = "/apis/replumb.dev/v1alpha1/migrations/another";
    api.put(
        second,
        json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration",
            "metadata": { "name": "another", "generation": 1, "creationTimestamp": "2025-01-01T00:00:00Z" },
            "spec": { "flannelToCalico": {}, "desired": "Run" },
        }),
    );
    let mut memory = Memory::default();
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    let status = api.get(second).unwrap()["status"].clone();
    assert_eq!(status["phase"], "Refused");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("Migration m is active"),
        "{status}"
    );
    assert_ne!(api.get(MIGRATION).unwrap()["status"]["phase"], "Refused");
}

#[tokio::test]
async fn a_stalled_rollout_halts_and_continues_once_fixed() {
    let api = cluster();
    let available = |pods: u32| {
        let status = json!({ "status": { "updatedNumberScheduled": pods, "numberAvailable": pods } });
        api.edit(FLANNEL, &status);
    };
    let status = || api.get(MIGRATION).unwrap()["status"].clone();
    let mut memory = Memory::default();
    available(0);
    let context = api.context();
    for _ in 0..3 {
        let _ = pass(&context, &api.cache(), &mut memory).await;
    }
    let waiting = status();
    assert_eq!(
        (&waiting["phase"], &waiting["reason"]),
        (&json!("Preparing"), &json!("DaemonSetRollout"))
    );
    assert!(waiting["wait"]["since"].is_string(), "{waiting}");
    let blocked = |reason: &str| context.metrics.blocked.with_label_values(&[reason]).get();
    assert_eq!(blocked("DaemonSetRollout"), 1);

    // As if the message had been the same for a day.
    api.edit(
        MIGRATION,
        &json!({ "status": { "wait": { "since": "2026-01-01T00:00:00Z" } } }),
    );
    pass(&context, &api.cache(), &mut memory).await.unwrap();
    let halted = status();
    assert_eq!(
        (&halted["phase"], &halted["phaseBeforeHalt"], &halted["reason"]),
        (&json!("Halted"), &json!("Preparing"), &json!("DeadlineExceeded"))
    );
    let message = halted["message"].as_str().unwrap();
    assert!(
        message.contains("0 of 2 pods updated") && message.contains("resume"),
        "{message}"
    );
    assert_eq!((blocked("DaemonSetRollout"), blocked("DeadlineExceeded")), (0, 1));
    let halted_once = api.get(MIGRATION);
    pass(&context, &api.cache(), &mut memory).await.unwrap();
    assert_eq!(api.get(MIGRATION), halted_once, "a halt is written once");

    available(2);
    run_to_the_end(&api).await.unwrap();
    assert_eq!(status().get("phaseBeforeHalt"), None);
}
