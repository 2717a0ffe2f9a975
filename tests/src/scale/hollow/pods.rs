//! The pods of a host, as its kubelet has them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::ResourceExt;
use kube::core::Object;
use serde::{Deserialize, Serialize};

use super::service_cidr::Known;

/// The pods of one host by their UIDs.
pub type Pods = BTreeMap<String, PodOnHost>;

/// A pod of the API as its host needs it.
pub type SlimPod = Object<SlimSpec, SlimStatus>;

/// The part of a pod's spec that its host needs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimSpec {
    node_name: String,
    host_network: bool,
    dns_policy: String,
}

/// The part of its status.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlimStatus {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
}

/// A pod as far as its host has to do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOnHost {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its role on the host.
    pub role: Role,
    /// Addresses of Services that the kubelet has told the pod.
    pub told: Told,
}

/// Addresses of Services that a pod was told when it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The API server's, in the environment of the pod.
    pub environment: Option<IpAddr>,
    /// The name server's, in the `resolv.conf` of the pod.
    pub resolver: Option<IpAddr>,
}

/// What a pod is to its host.
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

/// The node of a pod, and what the pod is to its host; `None` while it does not run, and once it is about to be gone. One that its
/// kubelet has started `before` was told what it was told then.
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
    // The kubelet lets a pod on its host's network ask whom the host asks.
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
