//! Pods: they end, their controllers create successors, the scheduler finds a place, and the kubelet starts them where a network is.

use std::collections::BTreeMap;
use std::time::Duration;

use api::names;
use engine::drain::Pod;
use serde_json::{Value, json};

use super::hosts::Hosts;
use super::state::{State, path_of};
use crate::paths::{NODES, PODS};
use crate::snapshot::{is_ready, may_run_on, ready};

/// A pod ends after this time.
pub fn terminate(state: &mut State, path: &str, after: Duration, grace: u64) {
    let Some(mut object) = state.objects.get(path).cloned() else {
        return;
    };
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return;
    }
    let at = state.clock.passed() + after;
    object["metadata"]["deletionTimestamp"] = json!(state.clock.now().to_string());
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    state.objects.put(path, object.clone());
    state.life.ends.insert(path.to_owned(), at);
    state.life.starts.remove(path);
    // A ReplicaSet does not count a terminating pod.
    if owner_kind(&object) == Some("ReplicaSet") {
        create_successor(state, &object);
    }
}

/// Does what is due. Returns whether anything changed.
pub fn act(state: &mut State, hosts: &Hosts) -> bool {
    let now = state.clock.passed();
    let mut has_changed = false;
    let due = |times: &BTreeMap<String, Duration>| -> Vec<String> {
        let due = times.iter().filter(|(_, at)| **at <= now);
        due.map(|(path, _)| path.clone()).collect()
    };
    for path in due(&state.life.ends) {
        state.life.ends.remove(&path);
        if let Some(object) = state.objects.remove(&path) {
            state.life.addresses.release(&object);
            let is_recreated =
                matches!(owner_kind(&object), Some(kind) if !["ReplicaSet", "DaemonSet"].contains(&kind));
            if is_recreated {
                create_successor(state, &object);
            }
        }
        has_changed = true;
    }
    for path in due(&state.life.starts) {
        has_changed |= start(state, hosts, &path);
    }
    has_changed |= start_own_pods(state);
    has_changed | place(state)
}

fn owner_kind(object: &Value) -> Option<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let controller = owners.iter().find(|owner| owner["controller"] == true)?;
    controller["kind"].as_str()
}

/// The pod that a controller creates in place of this one, without a node. One of a StatefulSet has its name.
fn create_successor(state: &mut State, former: &Value) {
    let mut pod = former.clone();
    let metadata = &mut pod["metadata"];
    state.life.made += 1;
    if owner_kind(former) != Some("StatefulSet") {
        let name = metadata["name"].as_str().unwrap_or_default();
        let stem = name.rsplit_once('-').map_or(name, |(stem, _)| stem);
        metadata["name"] = json!(format!("{stem}-new{}", state.life.made));
    }
    metadata["uid"] = json!(format!("rehearsed-{}", state.life.made));
    metadata["creationTimestamp"] = json!(state.clock.now().to_string());
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        if let Value::Object(fields) = &mut *metadata {
            fields.remove(field);
        }
    }
    if let Value::Object(fields) = &mut pod["spec"] {
        fields.remove("nodeName");
    }
    pod["status"] = json!({ "phase": "Pending" });
    state.objects.put(&path_of(PODS, &pod), pod);
}

/// Starts a pod whose time has come, if its node has a network for it.
fn start(state: &mut State, hosts: &Hosts, path: &str) -> bool {
    let Some(mut pod) = state.objects.get(path).cloned() else {
        state.life.starts.remove(path);
        return false;
    };
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    let uses_host = pod["spec"]["hostNetwork"] == true;
    if !uses_host && !hosts.serves_pods(state, &node) {
        return false;
    }
    state.life.starts.remove(path);
    let addresses = state.life.addresses.next(&node, uses_host);
    let containers = running(&pod);
    let status = &mut pod["status"];
    *status = ready();
    status["podIP"] = json!(addresses.first());
    status["podIPs"] = addresses.iter().map(|address| json!({ "ip": address })).collect();
    status["containerStatuses"] = containers;
    state.objects.put(path, pod);
    true
}

/// The containers of a pod, which run.
fn running(pod: &Value) -> Value {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let states = containers.map(|container| {
        json!({
            "name": container["name"], "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "running": {} },
        })
    });
    states.collect()
}

/// The coordinator creates probe pods and traffic pods on their nodes.
fn start_own_pods(state: &mut State) -> bool {
    let component = |pod: &Value| pod["metadata"]["labels"][names::COMPONENT_LABEL].clone();
    let is_new = |pod: &&Value| {
        let component = component(pod);
        let is_own = component == names::PROBE_COMPONENT || component == names::TRAFFIC_COMPONENT;
        is_own && pod["status"]["phase"].is_null()
    };
    let new: Vec<Value> = state.objects.below(PODS).filter(is_new).cloned().collect();
    let now = state.clock.passed();
    for mut pod in new.clone() {
        let takes = if component(&pod) == names::PROBE_COMPONENT {
            state.pace.probe_starts
        } else {
            state.pace.traffic_starts
        };
        let at = now + takes;
        let path = path_of(PODS, &pod);
        pod["status"] = json!({ "phase": "Pending" });
        state.objects.put(&path, pod);
        state.life.start_at(&path, at);
    }
    !new.is_empty()
}

/// Finds a node for each pod without one.
fn place(state: &mut State) -> bool {
    let now = state.clock.passed();
    let has_no_node = |pod: &&Value| pod["spec"]["nodeName"].is_null() && is_rehearsed(pod);
    let waiting: Vec<Value> = state.objects.below(PODS).filter(has_no_node).cloned().collect();
    let mut has_changed = false;
    for mut pod in waiting {
        let path = path_of(PODS, &pod);
        let (place, name) = (
            choose(state, &pod),
            format!("{}/{}", namespace_of(&pod), name_of(&pod)),
        );
        match place {
            Some(node) => {
                pod["spec"]["nodeName"] = json!(node);
                pod["status"] = json!({ "phase": "Pending" });
                let at = now + state.pace.controller + state.pace.pod_starts;
                state.life.start_at(&path, at);
                state.record.placed(now, &name);
            }
            None if pod["status"]["conditions"].is_null() => {
                pod["status"]["conditions"] =
                    json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }]);
                state.record.without_place(now, &name);
            }
            None => continue,
        }
        state.objects.put(&path, pod);
        has_changed = true;
    }
    has_changed
}

/// The pod was created in the rehearsal.
fn is_rehearsed(pod: &Value) -> bool {
    let uid = pod["metadata"]["uid"].as_str();
    uid.is_some_and(|uid| uid.starts_with("rehearsed-"))
}

fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The node with the fewest pods of those that take this one: schedulable, selected, tolerated, with room, and without a pod that
/// it must not be beside.
fn choose(state: &mut State, object: &Value) -> Option<String> {
    let wanted = parsed(object)?;
    let all = state.pods();
    let fits = |node: &&Value| {
        let name = name_of(node);
        let there: Vec<&Pod> = all
            .iter()
            .filter(|pod| pod.node == name && !pod.finished)
            .collect();
        let has_room = room(node, &there, &wanted);
        let is_apart = !apart_from(object).any(|labels| {
            there.iter().any(|pod| {
                pod.namespace == wanted.namespace
                    && labels
                        .iter()
                        .all(|(key, value)| pod.labels.get(key) == Some(value.as_str()))
            })
        });
        node["spec"]["unschedulable"] != true
            && is_ready(node)
            && may_run_on(&object["spec"], node)
            && tolerates(object, node)
            && has_room
            && is_apart
    };
    let nodes = state.objects.below(NODES).filter(fits);
    let chosen = nodes.min_by_key(|node| {
        let name = name_of(node);
        let own = all
            .iter()
            .filter(|pod| pod.node == name && pod.controller == wanted.controller)
            .count();
        (own, all.iter().filter(|pod| pod.node == name).count())
    });
    chosen.map(|node| name_of(node).to_owned())
}

fn parsed(object: &Value) -> Option<Pod> {
    let pod = serde_json::from_value(object.clone()).ok()?;
    Some(coordinator::facts::pods::pod(&pod))
}

/// Whether the requests of the pods and the new one fit.
fn room(node: &Value, there: &[&Pod], new: &Pod) -> bool {
    let Ok(parsed) = serde_json::from_value(node.clone()) else {
        return false;
    };
    let node = coordinator::facts::nodes::node(&parsed);
    // A value that is not known limits nothing.
    let limit = |known: u64| if known == 0 { u64::MAX } else { known };
    let cpu: u64 = there.iter().map(|pod| pod.cpu_millis).sum();
    let memory: u64 = there.iter().map(|pod| pod.memory_bytes).sum();
    let count = u64::try_from(there.len()).unwrap_or(u64::MAX);
    cpu + new.cpu_millis <= limit(node.allocatable_cpu_millis)
        && memory + new.memory_bytes <= limit(node.allocatable_memory_bytes)
        && count < limit(node.allocatable_pods)
}

/// Whether the pod tolerates each taint that keeps pods away.
fn tolerates(pod: &Value, node: &Value) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let tolerations = list(&pod["spec"]["tolerations"]);
    list(&node["spec"]["taints"])
        .iter()
        .filter(|taint| taint["effect"] == "NoSchedule" || taint["effect"] == "NoExecute")
        .all(|taint| {
            tolerations.iter().any(|toleration| {
                let has_key = toleration["key"].is_null() || toleration["key"] == taint["key"];
                let has_effect = toleration["effect"].is_null() || toleration["effect"] == taint["effect"];
                let has_value = toleration["operator"] == "Exists" || toleration["value"] == taint["value"];
                has_key && has_effect && has_value
            })
        })
}

/// Labels of pods of the same namespace that must not be on the node: required anti-affinity by node.
fn apart_from(pod: &Value) -> impl Iterator<Item = BTreeMap<String, String>> {
    let required =
        &pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = required.as_array().cloned().unwrap_or_default();
    let of_nodes = terms
        .into_iter()
        .filter(|term| term["topologyKey"] == "kubernetes.io/hostname");
    of_nodes.filter_map(|term| serde_json::from_value(term["labelSelector"]["matchLabels"].clone()).ok())
}
