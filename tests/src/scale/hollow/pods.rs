//! The pods of a host, as its kubelet has them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::ResourceExt;
use kube::core::Object;
use serde::{Deserialize, Serialize};

use super::service_cidr::Known;

/// The pods of one host by their UIDs.
pub type Pods = BTreeMap<String, PodOnHost>;

/// The fields of a pod from the API that its host needs.
pub type SlimPod = Object<SlimSpec, SlimStatus>;

/// The part of a pod's spec that its host needs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimSpec {
    node_name: String,
    host_network: bool,
    dns_policy: String,
}

/// The needed fields of its status.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimStatus {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
}

/// The relevant state of a pod on its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOnHost {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The role on the host.
    pub role: Role,
    /// Addresses of Services that the kubelet has set in the pod.
    pub told: Told,
}

/// Addresses of Services that a pod has received at its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The API server's address, in the environment of the pod.
    pub environment: Option<IpAddr>,
    /// The name server's address, in the `resolv.conf` of the pod.
    pub resolver: Option<IpAddr>,
}

/// The role of a pod on its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// flanneld.
    Flannel,
    /// calico-node.
    CalicoNode,
    /// Another pod on the host's network.
    OnHost,
    /// A pod with an address of the pod network.
    OnPodNetwork(IpAddr),
}

/// The node of a pod, and its role on the host; `None` if it does not run or is about to end. A pod that its kubelet
/// has started `before` keeps the settings of its start.
pub fn seen(pod: &SlimPod, before: Option<Told>, known: &Known) -> Option<(String, PodOnHost)> {
    let status = pod.status.as_ref()?;
    if status.phase != "Running" || status.pod_ip.is_empty() {
        return None;
    }
    let labels = pod.labels();
    let is = |key: &str, value: &str| labels.get(key).is_some_and(|found| found == value);
    let role = if pod.spec.host_network {
        match (is("k8s-app", "flannel"), is("k8s-app", "calico-node")) {
            (true, _) => Role::Flannel,
            (false, true) => Role::CalicoNode,
            (false, false) => Role::OnHost,
        }
    } else {
        Role::OnPodNetwork(status.pod_ip.parse().ok()?)
    };
    // A pod on its host's network has the host's name server.
    let asks_cluster = match pod.spec.dns_policy.as_str() {
        "ClusterFirst" => !pod.spec.host_network,
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let told = before.unwrap_or_else(|| Told {
        environment: known.api_server(),
        resolver: known.name_server().filter(|_| asks_cluster),
    });
    let pod_on_host = PodOnHost {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        role,
        told,
    };
    Some((pod.spec.node_name.clone(), pod_on_host))
}
