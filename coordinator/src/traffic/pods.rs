//! Traffic pods: one for each network on a node, identified by name and label.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::{Migration, names};
use engine::traffic::Generation;
use engine::traffic::mesh::Endpoint;
use engine::traffic::pods::PodDecision;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::{Fates, Network, Networks};
use crate::context::Context;
use crate::write::WriteError;
use crate::{facts, own_pods};

/// Prefix of the names of traffic pods.
const NAME: &str = "replumb-traffic";

/// Whether this is the name of a traffic pod of replumb.
pub fn is_traffic_pod(namespace: &str, name: &str, own_namespace: &str) -> bool {
    namespace == own_namespace && name.starts_with(NAME)
}

/// A traffic pod whose process runs.
#[derive(Debug)]
pub struct Running<'pod> {
    /// The identity.
    pub endpoint: Endpoint<'pod>,
    /// Its addresses, one of each family.
    pub addresses: Vec<IpAddr>,
    /// Whether the kubelet reports it as Ready.
    pub ready: bool,
}

impl Running<'_> {
    /// Whether the pod has an address of the same family, and can send there.
    pub fn can_reach(&self, address: &IpAddr) -> bool {
        self.addresses
            .iter()
            .any(|own| own.is_ipv4() == address.is_ipv4())
    }
}

/// The pod as a sender and receiver; `None` while it cannot be one, or is terminating.
pub fn running<'pod>(pod: &'pod Pod, networks: &Networks) -> Option<Running<'pod>> {
    let status = pod.status.as_ref()?;
    let runs = status.container_statuses.iter().flatten().any(|container| {
        container
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
    });
    if !runs || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let addresses = facts::pods::addresses(pod);
    Some(Running {
        endpoint: Endpoint {
            node: pod.spec.as_ref()?.node_name.as_deref()?,
            generation: networks.generation(pod)?,
            uid: pod.metadata.uid.as_deref()?,
        },
        ready: facts::pods::is_ready(pod) && !addresses.is_empty(),
        addresses,
    })
}

impl Networks {
    fn generation(&self, pod: &Pod) -> Option<Generation> {
        let network = pod.labels().get(names::TRAFFIC_NETWORK_LABEL)?;
        [Generation::Old, Generation::New]
            .into_iter()
            .find(|generation| network == self.of(*generation).name)
    }

    fn of(&self, generation: Generation) -> &Network {
        match generation {
            Generation::Old => &self.old,
            Generation::New => &self.new,
        }
    }
}

/// Fate of this pod. A pod on a node outside the migration, or without a known network, is deleted.
pub fn fate_of(pod: &Pod, networks: &Networks, fates: &Fates<'_>) -> PodDecision {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    // A pod that the kubelet rejects (the node is full) stays with its status: another one would be rejected, too.
    node.zip(networks.generation(pod))
        .and_then(|key| fates.get(&key).copied())
        .unwrap_or(PodDecision::Unwanted)
}

/// Traffic pods that stay, by node, since a cluster has thousands of them.
#[derive(Debug)]
pub struct Staying<'pods> {
    by_node: BTreeMap<&'pods str, Vec<&'pods Arc<Pod>>>,
}

impl<'pods> Staying<'pods> {
    /// The pods that are not to be deleted.
    pub fn of(pods: &'pods [Arc<Pod>], networks: &Networks, fates: &Fates<'_>) -> Self {
        let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in pods {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            if fate_of(pod, networks, fates) != PodDecision::Unwanted
                && let Some(node) = node
            {
                by_node.entry(node).or_default().push(pod);
            }
        }
        Self { by_node }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &'pods Arc<Pod>> {
        self.by_node.values().flatten().copied()
    }

    /// The node's pod of this network, unless it is terminating.
    pub fn on(&self, node: &str, networks: &Networks, wanted: Generation) -> Option<&'pods Arc<Pod>> {
        let mut pods = self.by_node.get(node)?.iter().copied();
        pods.find(|pod| networks.generation(pod) == Some(wanted) && pod.metadata.deletion_timestamp.is_none())
    }
}

/// What the pod waits for.
pub fn state(pod: &Pod, networks: &Networks) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let state = match facts::pods::waiting(&status) {
        Some((reason, message)) => format!("{reason} {message}").trim_end().to_owned(),
        None if running(pod, networks).is_some() => {
            "running; some of its paths have not answered yet".to_owned()
        }
        None => facts::pods::state(&status, " "),
    };
    format!("pod {}: {state}", pod.name_any())
}

/// Creates the pod, bound to the node directly, independent of the scheduler.
///
/// # Errors
///
/// The API server refuses the write or does not answer.
pub async fn create(
    context: &Context,
    migration: &Migration,
    networks: &Networks,
    node: &str,
    generation: Generation,
) -> Result<(), WriteError> {
    let Network {
        name: network,
        annotations,
    } = networks.of(generation);
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{NAME}-{}-{network}", own_pods::short(node)),
            "namespace": context.namespace,
            "labels": {
                "app.kubernetes.io/name": "replumb",
                names::COMPONENT_LABEL: names::TRAFFIC_COMPONENT,
                names::TRAFFIC_NETWORK_LABEL: network,
            },
            "annotations": annotations,
            "ownerReferences": [own_pods::owner(migration)],
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Always",
            // The pod answers for a moment longer: its Service sends to it until every node has the update.
            "terminationGracePeriodSeconds": 10,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "traffic",
                "image": context.agent_image,
                // The agent runs from this image, so the node has it.
                "imagePullPolicy": "Never",
                "args": ["traffic", "--port", names::PROBE_PORT.to_string()],
                "env": [{ "name": "POD_UID", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } }],
                "ports": [
                    { "name": "udp", "containerPort": names::PROBE_PORT, "protocol": "UDP" },
                    { "name": "tcp", "containerPort": names::PROBE_PORT, "protocol": "TCP" },
                ],
                "readinessProbe": {
                    "tcpSocket": { "port": names::PROBE_PORT },
                    "periodSeconds": 1,
                },
                // Share of CPU on a busy node: with 5m the pod could not answer for two seconds, which looks like a
                // broken path.
                "resources": {
                    "requests": { "cpu": "20m", "memory": "8Mi" },
                    "limits": { "cpu": "500m", "memory": "32Mi" },
                },
                "securityContext": {
                    // Only root may connect to the agent.
                    "runAsUser": 0,
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                    "readOnlyRootFilesystem": true,
                    "seccompProfile": { "type": "RuntimeDefault" },
                    // No effect without SELinux; with it, no narrower type may use a socket of the host.
                    "seLinuxOptions": { "type": "spc_t" },
                },
                "volumeMounts": [{ "name": "run", "mountPath": names::RUN_DIRECTORY, "readOnly": true }],
            }],
            "volumes": [{
                "name": "run",
                "hostPath": { "path": names::RUN_DIRECTORY, "type": "DirectoryOrCreate" },
            }],
        },
    });
    own_pods::create(context, &format!("traffic pod for node {node}"), pod).await
}
