//! Derives what controllers would have made: pods of workloads, and their counts.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::identity::Identity;
use super::object::{name_of, of_kind, ready};
use super::owned_pods::{Addresses, Owner, pod, selects};

/// Creates missing pods of `DaemonSet`s, `Deployment`s and `StatefulSet`s, and sets missing counts in the status of their owners.
pub fn complete(objects: &mut BTreeMap<Identity, Value>) {
    let nodes = of_kind(objects, "Node");
    let mut addresses = Addresses::of(&nodes, &of_kind(objects, "Pod"));
    let workloads: Vec<(Identity, Value)> = objects
        .iter()
        .filter(|(identity, _)| ["DaemonSet", "Deployment", "StatefulSet"].contains(&identity.kind.as_str()))
        .map(|(identity, workload)| (identity.clone(), workload.clone()))
        .collect();
    for (identity, mut workload) in workloads {
        if has_pods(objects, &identity) {
            continue;
        }
        let places: Vec<String> = if identity.kind == "DaemonSet" {
            let names = nodes.iter().filter(|node| selects(&workload, node));
            names.map(name_of).collect()
        } else {
            let wanted = workload["spec"]["replicas"].as_u64().unwrap_or(1);
            let mut usable = nodes
                .iter()
                .filter(|node| selects(&workload, node))
                .map(name_of)
                .cycle();
            (0..wanted).filter_map(|_| usable.next()).collect()
        };
        set_counts(&mut workload, &identity.kind, places.len());
        let owner = owner_of_pods(objects, &identity, &workload);
        for (index, node) in places.iter().enumerate() {
            let made = pod(&owner, &workload, index, node, &mut addresses);
            put(objects, made);
        }
        objects.insert(identity, workload);
    }
}

/// Creates an agent on each of these nodes that has none.
pub fn add_agents<'node>(
    objects: &mut BTreeMap<Identity, Value>,
    nodes: impl Iterator<Item = &'node String>,
) {
    let is_agent = |pod: &Value, node: &str| {
        pod["spec"]["nodeName"] == node && pod["metadata"]["ownerReferences"][0]["name"] == api::names::AGENT
    };
    let pods = of_kind(objects, "Pod");
    for node in nodes {
        if pods.iter().any(|pod| is_agent(pod, node)) {
            continue;
        }
        put(
            objects,
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "namespace": api::names::NAMESPACE, "name": format!("{}-{node}", api::names::AGENT),
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": api::names::AGENT, "uid": api::names::AGENT,
                        "controller": true,
                    }],
                },
                "spec": { "nodeName": node, "hostNetwork": true, "containers": [{ "name": "agent" }] },
                "status": ready(),
            }),
        );
    }
}

/// Whether a pod of the workload is in the snapshot: then all are.
fn has_pods(objects: &BTreeMap<Identity, Value>, workload: &Identity) -> bool {
    let owners: Vec<String> = if workload.kind == "Deployment" {
        let sets = of_kind(objects, "ReplicaSet");
        let own = sets.iter().filter(|set| is_owned_by(set, workload));
        own.map(name_of).collect()
    } else {
        vec![workload.name.clone()]
    };
    objects.iter().any(|(identity, pod)| {
        identity.kind == "Pod"
            && identity.namespace == workload.namespace
            && owners
                .iter()
                .any(|owner| pod["metadata"]["ownerReferences"][0]["name"] == **owner)
    })
}

fn is_owned_by(object: &Value, owner: &Identity) -> bool {
    let reference = &object["metadata"]["ownerReferences"][0];
    reference["kind"] == owner.kind && reference["name"] == owner.name
}

/// The controller of the pods: for a `Deployment` its `ReplicaSet`, which is created if it is missing.
fn owner_of_pods(objects: &mut BTreeMap<Identity, Value>, identity: &Identity, workload: &Value) -> Owner {
    if identity.kind != "Deployment" {
        return Owner::of(workload);
    }
    let sets = of_kind(objects, "ReplicaSet");
    let existing = sets.iter().find(|set| {
        set["metadata"]["namespace"].as_str() == identity.namespace.as_deref() && is_owned_by(set, identity)
    });
    if let Some(set) = existing {
        return Owner::of(set);
    }
    let mut set = workload.clone();
    set["kind"] = json!("ReplicaSet");
    set["metadata"] = json!({
        "namespace": identity.namespace, "name": format!("{}-1", identity.name),
        "labels": workload["spec"]["template"]["metadata"]["labels"],
        "ownerReferences": [Owner::of(workload).reference()],
    });
    let owner = Owner::of(&set);
    put(objects, set);
    owner
}

fn set_counts(workload: &mut Value, kind: &str, pods: usize) {
    if !workload["status"].is_null() {
        return;
    }
    let generation = workload["metadata"]["generation"].as_i64().unwrap_or(1);
    workload["status"] = if kind == "DaemonSet" {
        json!({
            "desiredNumberScheduled": pods, "currentNumberScheduled": pods, "numberMisscheduled": 0, "numberReady": pods,
            "numberAvailable": pods, "updatedNumberScheduled": pods, "observedGeneration": generation,
        })
    } else {
        json!({
            "replicas": pods, "readyReplicas": pods, "availableReplicas": pods, "updatedReplicas": pods,
            "observedGeneration": generation,
        })
    };
}

fn put(objects: &mut BTreeMap<Identity, Value>, object: Value) {
    // Derived objects have kind, version and name.
    if let Ok(identity) = Identity::of(&object) {
        objects.insert(identity, object);
    }
}
