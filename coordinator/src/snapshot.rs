//! One look at the stores: every decision of a pass is made on the same facts.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{NodeMigration, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use plan::drain::{self, Budget};
use plan::order::{self, Place};

use crate::cache::Cache;
use crate::facts;

/// What the stores say at one moment.
pub struct Snapshot {
    /// Nodes by name.
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// `NodeMigration`s of this Migration by node name.
    pub node_migrations: BTreeMap<String, Arc<NodeMigration>>,
    /// Pods but those of our own that prove and watch, by node, namespace and name.
    pods: Vec<drain::Pod>,
    /// `PodDisruptionBudget`s.
    pub budgets: Vec<Budget>,
    /// Whether the agent on a node is Ready.
    agents: BTreeMap<String, bool>,
    /// Probe pods by the node that they prove.
    pub probe_pods: BTreeMap<String, Arc<Pod>>,
    /// Traffic pods of every node.
    pub traffic_pods: Vec<Arc<Pod>>,
}

impl Snapshot {
    /// Looks at the stores once. `namespace` is our own.
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
            pods: Vec::new(),
            budgets: cache
                .budgets
                .state()
                .iter()
                .map(|budget| facts::pods::budget(budget))
                .collect(),
            agents: BTreeMap::new(),
            probe_pods: BTreeMap::new(),
            traffic_pods: Vec::new(),
        };
        for pod in cache.pods.state() {
            snapshot.sort_pod(&pod, namespace);
        }
        let place = |pod: &drain::Pod| (pod.node.clone(), pod.namespace.clone(), pod.name.clone());
        snapshot.pods.sort_by_cached_key(place);
        snapshot
    }

    fn sort_pod(&mut self, pod: &Arc<Pod>, namespace: &str) {
        let facts = facts::pods::pod(pod);
        if is_of_daemon_set(&facts, namespace, names::AGENT) {
            *self.agents.entry(facts.node.clone()).or_default() |= is_usable(&facts);
        }
        let component = pod.labels().get(names::COMPONENT_LABEL).map(String::as_str);
        match component.filter(|_| facts.namespace == namespace) {
            // Ours: never drained, deleted once the node is proved.
            Some(names::PROBE_COMPONENT) => {
                self.probe_pods.insert(facts.node.clone(), Arc::clone(pod));
            }
            // Ours: never drained, deleted when its network goes.
            Some(names::TRAFFIC_COMPONENT) => self.traffic_pods.push(Arc::clone(pod)),
            _ => self.pods.push(facts),
        }
    }

    /// Pods but those of our own that prove and watch, as the drain sees them.
    pub fn pods(&self) -> &[drain::Pod] {
        &self.pods
    }

    /// Those of one node.
    pub fn pods_on(&self, node: &str) -> &[drain::Pod] {
        let start = self.pods.partition_point(|pod| pod.node.as_str() < node);
        let length = self.pods[start..].partition_point(|pod| pod.node == node);
        &self.pods[start..start + length]
    }

    /// Names of the pods of a `DaemonSet` on a node, terminating ones included, and whether each is Ready and not terminating.
    pub fn daemons_on(&self, node: &str, namespace: &str, daemon_set: &str) -> Vec<(String, bool)> {
        self.pods_on(node)
            .iter()
            .filter(|pod| is_of_daemon_set(pod, namespace, daemon_set))
            .map(|pod| (pod.key(), is_usable(pod)))
            .collect()
    }

    /// Whether the agent of this node is Ready.
    pub fn agent_ready(&self, node: &str) -> bool {
        self.agents.get(node).copied().unwrap_or_default()
    }
}

/// Whether this `DaemonSet` has made the pod.
pub fn is_of_daemon_set(pod: &drain::Pod, namespace: &str, name: &str) -> bool {
    let controller = pod.controller.as_ref();
    pod.namespace == namespace && controller.is_some_and(|(kind, owner)| kind == "DaemonSet" && owner == name)
}

fn is_usable(pod: &drain::Pod) -> bool {
    pod.ready && pod.deleted_at.is_none()
}

/// Nodes in the order in which they are worked on.
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
