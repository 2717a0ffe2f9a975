//! Pods, as this kind sees them: those of calico-node, and those that wait for a network. Pure but for the stores of the watches.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use plan::calico_datastore::cluster::calico::Calico;
use plan::calico_datastore::cluster::nodes::CalicoPod;
use plan::evict::PodName;

use super::saved::Saved;
use crate::cache::Cache;
use crate::context::Context;
use crate::facts;
use crate::own_pods;

/// A pod that waits for a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// `namespace/name`.
    pub key: String,
    /// Its UID.
    pub uid: String,
    /// When it was made.
    pub made: Option<Timestamp>,
}

/// Pods that have a node and no network, but for our own.
pub fn without_network(cache: &Cache, context: &Context) -> Vec<Waiting> {
    let mut found: Vec<Waiting> = cache
        .pods
        .state()
        .iter()
        .filter(|pod| is_without_network(pod) && !own_pods::is_ours(pod, &context.namespace))
        .map(|pod| Waiting {
            key: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
            uid: pod.uid().unwrap_or_default(),
            made: pod.creation_timestamp().map(|time| time.0),
        })
        .collect();
    found.sort_by(|left, right| (left.made, &left.key).cmp(&(right.made, &right.key)));
    found
}

/// Whether kubelet of its node has not given it an address yet.
fn is_without_network(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let is_on_a_node = spec.node_name.as_deref().is_some_and(|node| !node.is_empty());
    let is_on_the_host = spec.host_network == Some(true);
    let status = pod.status.as_ref();
    let phase = status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default();
    is_on_a_node
        && !is_on_the_host
        && phase == "Pending"
        && facts::pods::addresses(pod).is_empty()
        && pod.metadata.deletion_timestamp.is_none()
}

/// Whether a pod is one of this `DaemonSet` or of a `ReplicaSet` of this Deployment.
fn is_of(pod: &Pod, namespace: &str, kind: &str, name: &str) -> bool {
    let owner = |owner: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| {
        owner.controller == Some(true)
            && match kind {
                "DaemonSet" => owner.kind == "DaemonSet" && owner.name == name,
                _ => {
                    owner.kind == "ReplicaSet"
                        && owner.name.rsplit_once('-').is_some_and(|(of, _)| of == name)
                }
            }
    };
    pod.namespace().as_deref() == Some(namespace) && pod.owner_references().iter().any(owner)
}

/// Pods of calico-node with their nodes, whichever Calico they run.
pub fn of_daemon_set<'cache>(pods: &'cache [std::sync::Arc<Pod>], key: &str) -> Vec<&'cache Pod> {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    pods.iter()
        .map(AsRef::as_ref)
        .filter(|pod| is_of(pod, namespace, "DaemonSet", name))
        .collect()
}

/// How many pods of the controllers there are.
pub fn controller_pods(pods: &[std::sync::Arc<Pod>], key: &str) -> usize {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    let is_there = |pod: &&std::sync::Arc<Pod>| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        is_of(pod, namespace, "Deployment", name) && !matches!(phase, Some("Succeeded" | "Failed"))
    };
    pods.iter().filter(is_there).count()
}

/// The image of a pod's container calico-node.
pub fn image(pod: &Pod) -> String {
    let spec = serde_json::to_value(&pod.spec).unwrap_or_default();
    plan::calico_datastore::cluster::manifest::image(&serde_json::json!({ "spec": spec }))
}

/// A pod of calico-node as the decision sees it.
pub fn calico_pod(pod: &Pod, saved: &Saved) -> CalicoPod {
    let image = image(pod);
    let runs = [Calico::V3, Calico::V2]
        .into_iter()
        .find(|calico| saved.image(*calico) == image);
    CalicoPod {
        name: PodName {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
        },
        runs,
        ready: facts::pods::is_ready(pod),
        terminating: pod.metadata.deletion_timestamp.is_some(),
    }
}
