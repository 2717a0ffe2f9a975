//! The pods of calico-node, and pods that wait for a network. Pure but for the stores of the watches.

use engine::drain::Pod;
use jiff::Timestamp;

use crate::cache::Cache;
use crate::pod_index::Index;
use crate::snapshot;

/// A pod that waits for a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// `namespace/name`.
    pub key: String,
    /// Its UID.
    pub uid: String,
    /// Time of its creation.
    pub made: Option<Timestamp>,
}

/// Pods that have a node and no network. replumb's probe and traffic pods are omitted.
pub fn without_network(cache: &Cache) -> Vec<Waiting> {
    let pods = cache.pods.index();
    let mut found: Vec<Waiting> = pods
        .by_node()
        .flat_map(|(_, pods)| pods)
        .filter(|pod| is_without_network(pod))
        .map(|pod| Waiting {
            key: pod.key(),
            uid: pod.uid.clone(),
            made: pod.made_at,
        })
        .collect();
    found.sort_by(|left, right| (left.made, &left.key).cmp(&(right.made, &right.key)));
    found
}

/// Whether the node's kubelet has not given the pod an address yet.
fn is_without_network(pod: &Pod) -> bool {
    !pod.node.is_empty()
        && !pod.host_network
        && pod.pending
        && pod.addresses.is_empty()
        && pod.deleted_at.is_none()
}

/// Whether the pod belongs to the `DaemonSet` with this key.
pub fn is_of_daemon_set(pod: &Pod, key: &str) -> bool {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    snapshot::is_of_daemon_set(pod, namespace, name)
}

/// Whether the pod belongs to a `ReplicaSet` of this Deployment.
fn is_of_deployment(pod: &Pod, namespace: &str, name: &str) -> bool {
    let controller = pod.controller.as_ref();
    let of = controller
        .filter(|(kind, _)| kind == "ReplicaSet")
        .and_then(|(_, owner)| owner.rsplit_once('-'));
    pod.namespace == namespace && of.is_some_and(|(of, _)| of == name)
}

/// Pods of calico-node that have a node, of either version of Calico.
pub fn of_daemon_set<'index>(pods: &'index Index, key: &str) -> Vec<&'index Pod> {
    let pods = pods.by_node().flat_map(|(_, pods)| pods);
    pods.filter(|pod| is_of_daemon_set(pod, key)).collect()
}

/// Number of unfinished pods of the controllers.
pub fn controller_pods(pods: &Index, key: &str) -> usize {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    pods.by_node()
        .flat_map(|(_, pods)| pods)
        .filter(|pod| is_of_deployment(pod, namespace, name) && !pod.finished)
        .count()
}

/// The image of a pod's container calico-node.
pub fn image(pods: &Index, pod: &Pod) -> String {
    let more = pods.details_of(pod);
    more.and_then(|more| more.calico_image.clone())
        .unwrap_or_default()
}
