//! The controller of `DaemonSet`s: a pod on each node that a template selects, and new pods, one after the other, after a change of the
//! template.

use std::collections::BTreeMap;
use std::time::Duration;

use coordinator::facts::workloads::at_once;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use memory_api::Objects;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::pods::terminate;
use super::state::{State, path_of};
use crate::paths::{DAEMON_SETS, NODES, PODS};
use crate::snapshot::{is_ready, may_run_on};

/// The templates of each `DaemonSet`, and of its pods.
#[derive(Default)]
pub struct Daemons {
    /// By path: the template, and the number of its changes.
    templates: BTreeMap<String, (Value, u64)>,
    /// By UID of a pod: the number of the template that it was created from. Pods from before have none.
    pods: BTreeMap<String, u64>,
    made: u64,
}

/// One `DaemonSet`, with what its controller sees.
struct Set {
    path: String,
    object: Value,
    revision: u64,
    pods: Vec<Value>,
    nodes: Vec<Value>,
}

impl Daemons {
    /// The `DaemonSet`s of this cluster, which are rolled out.
    pub fn of(objects: &Objects) -> Self {
        let templates = objects.below(DAEMON_SETS).map(|set| {
            let template = set["spec"]["template"].clone();
            (path_of(DAEMON_SETS, set), (template, 0))
        });
        Self {
            templates: templates.collect(),
            ..Self::default()
        }
    }

    /// Does what the controller does next. Returns whether anything changed.
    pub fn act(&mut self, state: &mut State) -> bool {
        let mut has_changed = false;
        for path in self.templates.keys().cloned().collect::<Vec<_>>() {
            let nodes: Vec<Value> = state.objects.below(NODES).cloned().collect();
            let Some(object) = state.objects.get(&path).cloned() else {
                // The garbage collector deletes the pods.
                let pods = pods_of(state, &path);
                has_changed |= end_all(state, &path, &pods.iter().collect::<Vec<_>>());
                continue;
            };
            let template = &object["spec"]["template"];
            let known = self.templates.entry(path.clone()).or_default();
            if known.0 != *template {
                *known = (template.clone(), known.1 + 1);
            }
            let set = Set {
                revision: known.1,
                pods: pods_of(state, &path),
                path,
                object,
                nodes,
            };
            has_changed |= self.keep(state, &set);
            has_changed |= self.report(state, &set);
        }
        has_changed
    }

    fn revision_of(&self, pod: &Value) -> u64 {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        self.pods.get(uid).copied().unwrap_or_default()
    }

    /// Creates missing pods, ends pods on nodes that are not selected, and ends one with an old template.
    fn keep(&mut self, state: &mut State, set: &Set) -> bool {
        let mut has_changed = false;
        let mut unavailable = 0;
        let mut outdated = Vec::new();
        for node in &set.nodes {
            let on_node = set
                .pods
                .iter()
                .filter(|pod| pod["spec"]["nodeName"] == node["metadata"]["name"]);
            let on_node: Vec<&Value> = on_node.collect();
            if !set.selects(node) {
                has_changed |= end_all(state, &set.path, &on_node);
                continue;
            }
            match on_node.first() {
                None => {
                    self.create(state, set, node);
                    unavailable += 1;
                    has_changed = true;
                }
                Some(pod) => {
                    unavailable += usize::from(!serves(pod));
                    if self.revision_of(pod) < set.revision {
                        outdated.push(*pod);
                    }
                }
            }
        }
        if set.object["spec"]["updateStrategy"]["type"] == "OnDelete" {
            return has_changed;
        }
        // One that is not Ready anyway costs nothing.
        outdated.sort_by_key(|pod| serves(pod));
        for pod in outdated {
            if serves(pod) && unavailable >= set.most_unavailable() {
                break;
            }
            unavailable += usize::from(serves(pod));
            has_changed |= end(state, &set.path, pod);
        }
        has_changed
    }

    fn create(&mut self, state: &mut State, set: &Set, node: &Value) {
        self.made += 1;
        let template = &set.object["spec"]["template"];
        let metadata = &set.object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        let uid = format!("daemon-{name}-{}", self.made);
        let mut spec = template["spec"].clone();
        spec["nodeName"] = node["metadata"]["name"].clone();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": metadata["namespace"], "name": format!("{name}-new{}", self.made), "uid": uid,
                "labels": template["metadata"]["labels"],
                "creationTimestamp": state.clock.now().to_string(),
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": metadata["uid"], "controller": true,
                }],
            },
            "spec": spec, "status": { "phase": "Pending" },
        });
        self.pods.insert(uid, set.revision);
        let path = path_of(PODS, &pod);
        state.objects.put(&path, pod);
        let takes = match role(state, &set.path) {
            Role::Flannel => state.pace.flannel_starts,
            Role::Calico => state.pace.calico_starts,
            Role::Other => state.pace.pod_starts,
        };
        let at = state.clock.passed() + state.pace.controller + takes;
        state.life.start_at(&path, at);
    }

    /// Writes the status of a set.
    fn report(&self, state: &mut State, set: &Set) -> bool {
        let wanted = set.nodes.iter().filter(|node| set.selects(node)).count();
        let pods = pods_of(state, &set.path);
        let alive = || {
            pods.iter()
                .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        };
        let ready = alive().filter(|pod| serves(pod)).count();
        let updated = alive()
            .filter(|pod| self.revision_of(pod) == set.revision)
            .count();
        let mut object = set.object.clone();
        let counts = [
            ("desiredNumberScheduled", wanted),
            ("currentNumberScheduled", alive().count()),
            ("updatedNumberScheduled", updated),
            ("numberReady", ready),
            ("numberAvailable", ready),
        ];
        for (field, count) in counts {
            object["status"][field] = json!(count);
        }
        object["status"]["numberMisscheduled"] = json!(0);
        object["status"]["observedGeneration"] = object["metadata"]["generation"].clone();
        if object["status"] == set.object["status"] {
            return false;
        }
        state.objects.put(&set.path, object);
        true
    }
}

impl Set {
    fn selects(&self, node: &Value) -> bool {
        may_run_on(&self.object["spec"]["template"]["spec"], node)
    }

    /// `maxUnavailable` of the rolling update; 1 by default.
    fn most_unavailable(&self) -> usize {
        let most = &self.object["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"];
        let nodes = self.nodes.iter().filter(|node| self.selects(node)).count();
        IntOrString::deserialize(most).map_or(1, |most| at_once(&most, nodes))
    }
}

/// Whose pods a `DaemonSet` has.
enum Role {
    Flannel,
    Calico,
    Other,
}

fn role(state: &State, path: &str) -> Role {
    let is = |network: &str| {
        let (namespace, name) = (
            state.setting(&format!("{network}DaemonSetNamespace")),
            state.setting(&format!("{network}DaemonSetName")),
        );
        path == format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
    };
    if is("flannel") {
        Role::Flannel
    } else if is("calico") {
        Role::Calico
    } else {
        Role::Other
    }
}

fn pods_of(state: &State, path: &str) -> Vec<Value> {
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let namespace = parts.nth(1).unwrap_or_default();
    let pods = state.objects.below(PODS);
    let owned = pods.filter(|pod| {
        let mut owners = pod["metadata"]["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten();
        pod["metadata"]["namespace"] == namespace
            && owners.any(|owner| owner["kind"] == "DaemonSet" && owner["name"] == name)
    });
    owned.cloned().collect()
}

/// Whether a pod serves: it is Ready, and not ending.
fn serves(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null() && is_ready(pod)
}

/// Ends these pods. Returns whether one of them was not ending yet.
fn end_all(state: &mut State, set: &str, pods: &[&Value]) -> bool {
    let mut has_changed = false;
    for pod in pods {
        has_changed |= end(state, set, pod);
    }
    has_changed
}

fn end(state: &mut State, set: &str, pod: &Value) -> bool {
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return false;
    }
    let grace = pod["spec"]["terminationGracePeriodSeconds"]
        .as_u64()
        .unwrap_or(30);
    let takes = match role(state, set) {
        Role::Flannel => state.pace.flannel_ends,
        Role::Calico => state.pace.calico_ends,
        Role::Other => state.pace.pod_ends.min(Duration::from_secs(grace)),
    };
    let after = state.pace.controller + takes;
    terminate(state, &path_of(PODS, pod), after, grace);
    true
}
