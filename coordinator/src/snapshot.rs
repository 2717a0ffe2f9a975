//! One read of the stores: all decisions of a pass use the same facts.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use api::{NodeMigration, names};
use engine::daemon_pod::{DaemonPod, DaemonPodState};
use engine::drain::{self, Budget};
use engine::order::{self, Place};
use engine::pods::Pods;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use crate::cache::Cache;
use crate::facts;
use crate::pod_index::Index;

/// Content of the stores at one moment.
pub struct Snapshot {
    /// Nodes by name.
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// `NodeMigration`s of this Migration by node name.
    pub node_migrations: BTreeMap<String, Arc<NodeMigration>>,
    /// Nodes with an unreadable report, and the error.
    pub unclear: BTreeMap<String, String>,
    /// The coordinator's namespace.
    namespace: String,
    /// Every pod.
    index: Arc<Index>,
    /// Pods without the coordinator's probe and traffic pods, once they are requested.
    pods: OnceLock<Pods>,
    /// `PodDisruptionBudget`s.
    pub budgets: Vec<Budget>,
    /// Probe pods by proved node.
    pub probe_pods: BTreeMap<String, Arc<Pod>>,
    /// Traffic pods of every node.
    pub traffic_pods: Vec<Arc<Pod>>,
}

impl Snapshot {
    /// Reads the stores once. `namespace` is the coordinator's own.
    pub fn take(cache: &Cache, migration: &str, namespace: &str) -> Self {
        let mut snapshot = Self {
            nodes: cache
                .nodes
                .state()
                .into_iter()
                .map(|node| (node.name_any(), node))
                .collect(),
            node_migrations: cache
                .node_migrations
                .state()
                .into_iter()
                .filter(|object| object.spec.migration == migration)
                .map(|object| (object.spec.node_name.clone(), object))
                .collect(),
            unclear: cache
                .node_migrations
                .unreadable()
                .into_iter()
                .map(|unclear| (unclear.name, unclear.words))
                .collect(),
            namespace: namespace.to_owned(),
            index: cache.pods.index(),
            pods: OnceLock::new(),
            budgets: facts::pods::budgets(&cache.budgets.state()),
            probe_pods: BTreeMap::new(),
            traffic_pods: Vec::new(),
        };
        let index = Arc::clone(&snapshot.index);
        for pod in index.own() {
            let component = pod.labels().get(names::COMPONENT_LABEL).map(String::as_str);
            if component == Some(names::PROBE_COMPONENT) {
                // A probe pod is never drained, and deleted once the node is proved.
                let node = facts::pods::node(pod).to_owned();
                snapshot.probe_pods.insert(node, Arc::clone(pod));
            } else {
                // A traffic pod is never drained, and deleted before its network is removed.
                snapshot.traffic_pods.push(Arc::clone(pod));
            }
        }
        snapshot
    }

    /// Pods without the coordinator's probe and traffic pods, as the drain sees them, in the order of node, namespace and name.
    pub fn pods(&self) -> &Pods {
        self.pods.get_or_init(|| self.index.pods())
    }

    /// The pods of one node.
    pub fn pods_on(&self, node: &str) -> &Pods {
        self.index.on(node)
    }

    /// The pods of a `DaemonSet` on a node, including terminating ones.
    pub fn daemons_on(&self, node: &str, namespace: &str, daemon_set: &str) -> Vec<DaemonPod> {
        let pods = self.pods_on(node).iter();
        pods.filter(|pod| is_of_daemon_set(pod, namespace, daemon_set))
            .map(|pod| DaemonPod {
                name: pod.key(),
                state: match (pod.deleted_at, pod.ready) {
                    (Some(_), _) => DaemonPodState::Terminating,
                    (None, true) => DaemonPodState::Ready,
                    (None, false) => DaemonPodState::NotReady,
                },
            })
            .collect()
    }

    /// Whether a pod of a `DaemonSet` on a node is Ready and not terminating.
    pub fn has_ready_daemon(&self, node: &str, namespace: &str, daemon_set: &str) -> bool {
        has_ready(self.pods_on(node), namespace, daemon_set)
    }

    /// Whether the agent of this node is Ready.
    pub fn agent_ready(&self, node: &str) -> bool {
        has_agent(self.pods_on(node), &self.namespace)
    }
}

/// Whether a Ready agent is among these pods.
pub fn has_agent(pods: &Pods, namespace: &str) -> bool {
    has_ready(pods, namespace, names::AGENT)
}

/// Whether a pod of a `DaemonSet` that is Ready and not terminating is among these pods.
fn has_ready(pods: &Pods, namespace: &str, daemon_set: &str) -> bool {
    pods.iter()
        .any(|pod| is_of_daemon_set(pod, namespace, daemon_set) && is_usable(pod))
}

/// Whether this `DaemonSet` created the pod.
pub fn is_of_daemon_set(pod: &drain::Pod, namespace: &str, name: &str) -> bool {
    let controller = pod.controller.as_ref();
    pod.namespace == namespace && controller.is_some_and(|(kind, owner)| kind == "DaemonSet" && owner == name)
}

fn is_usable(pod: &drain::Pod) -> bool {
    pod.ready && pod.deleted_at.is_none()
}

/// Nodes in the order of the rollout.
pub fn node_order(snapshot: &Snapshot, coordinator_node: &str) -> Vec<String> {
    let mut places: Vec<Place<'_>> = snapshot
        .nodes
        .iter()
        .filter(|(name, _)| snapshot.node_migrations.contains_key(*name))
        .map(|(name, node)| Place {
            name,
            control_plane: facts::nodes::is_control_plane(node),
            coordinator: name == coordinator_node,
        })
        .collect();
    order::sort(&mut places);
    places.iter().map(|place| place.name.to_owned()).collect()
}
