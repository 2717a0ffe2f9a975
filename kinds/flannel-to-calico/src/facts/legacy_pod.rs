//! Pods of flannel on a host, and the links that lead to them.

use std::net::{IpAddr, Ipv6Addr};

use engine::drain::Pod;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `LegacyPod` is a pod that was attached to the flannel network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LegacyPod {
    /// `namespace` is the namespace of the pod. Empty if the container runtime has not recorded it.
    #[schemars(regex(pattern = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"))]
    pub namespace: String,
    /// `name` is the name of the pod. Empty if the container runtime has not recorded it.
    #[schemars(regex(pattern = r"^([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?)?$"))]
    pub name: String,
    /// `sandbox` is the ID of the pod sandbox. The name of the IPAM handle in Calico contains it.
    #[schemars(regex(pattern = r"^[0-9A-Za-z]([-0-9A-Za-z]{0,126}[0-9A-Za-z])?$"))]
    pub sandbox: String,
    /// `link` is the name that flannel's CNI plugin gave to the link of the pod on the host. Empty if there is none.
    #[schemars(regex(pattern = r"^[^/\s]{0,15}$"))]
    pub link: String,
    /// `addresses` is the list of addresses of the pod.
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpAddr>,
    /// `attached` is whether the link is attached to `cni0`, so that the pod is running.
    pub attached: bool,
    /// `routed` is whether each address has a route of its own to `cni0`.
    pub routed: bool,
    /// `mac` is the MAC address of the interface in the pod, in lower case with colons. Empty if the record has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// `podLink` is the link on the host that leads to the pod, under its name of flannel or of Calico. Unset if it does not exist,
    /// or if it cannot be told from the link of another pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_link: Option<PodLink>,
    /// `otherLink` is a link with a name of the pod's link that is not attached to `cni0` and that replumb has not moved: its name, and
    /// where it is. The pod may be running. Unset if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_link: Option<String>,
    /// `obstacle` is why the pod cannot be adopted, as the record of its attachment shows. Unset if nothing is known to prevent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<String>,
    /// `notTakenWithin` is the time, in seconds, within which calico-node has not taken the link of the pod. The agent returns such
    /// a pod to `cni0`, and does not try again until the migration is resumed. Unset otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_taken_within: Option<u32>,
}

/// `PodLink` is the link on the host that leads to a pod of the flannel network, and how far the pod has been adopted: moved from
/// `cni0` to a link of its own, as pods of Calico have it.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a fact of the kernel about the link, and all combinations exist"
)]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodLink {
    /// `name` is the current name of the link.
    pub name: String,
    /// `calicoName` is the name that Calico gives to the link of this pod.
    pub calico_name: String,
    /// `nameTaken` is whether another link has the name that Calico gives to the link of this pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub name_taken: bool,
    /// `loose` is whether the reverse path filter of the link accepts packets whose way back is another link, and the link has IPv6
    /// if the pod has.
    #[serde(default)]
    pub loose: bool,
    /// `routed` is whether each address of the pod has a route and a permanent neighbour entry on this link.
    #[serde(default)]
    pub routed: bool,
    /// `answers` is whether the link answers ARP requests for all addresses without delay, and forwards packets. If the pod has an IPv6
    /// address, also whether it answers neighbour solicitations for all addresses that `cni0` has and answers for, and for those
    /// of the other pods.
    #[serde(default)]
    pub answers: bool,
    /// `acceptsFrames` is whether a rule accepts frames of the pod to other MAC addresses than that of the link.
    #[serde(default)]
    pub accepts_frames: bool,
    /// `frameDelivery` is whether `cni0` delivers frames to the MAC address of the pod to the host.
    #[serde(default)]
    pub frame_delivery: bool,
    /// `taken` is whether each address of the pod has a route of another program than replumb through this link. Felix replaces the
    /// routes when it has applied the policies of the pod to the link.
    #[serde(default)]
    pub taken: bool,
}

impl LegacyPod {
    /// The IPv6 addresses of the pod.
    pub fn ipv6_addresses(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.addresses.iter().filter_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        })
    }

    /// Whether the pod runs, or may run: its link is on `cni0`, leads to the pod without it, or is somewhere else.
    pub fn is_running(&self) -> bool {
        self.attached || self.pod_link.is_some() || self.other_link.is_some()
    }

    /// Whether the pod is adopted: its link has left `cni0` and has Calico's name.
    pub fn is_adopted(&self) -> bool {
        !self.attached
            && self
                .pod_link
                .as_ref()
                .is_some_and(|link| link.name == link.calico_name)
    }

    /// Whether the link of the pod has left `cni0` and does not have Calico's name yet.
    pub fn is_between(&self) -> bool {
        !self.attached && self.pod_link.is_some() && !self.is_adopted()
    }

    /// Whether the pod is adopted, and Felix has not taken its link yet.
    pub fn waits_for_felix(&self) -> bool {
        self.is_adopted() && self.pod_link.as_ref().is_some_and(|link| !link.taken)
    }

    /// Whether this record belongs to that pod. The address is not enough: after the end of a legacy pod Calico may assign its
    /// address to another pod while the record still exists.
    pub fn is(&self, pod: &Pod) -> bool {
        let is_named = (&self.namespace, &self.name) == (&pod.namespace, &pod.name);
        (is_named || self.name.is_empty())
            && self
                .addresses
                .iter()
                .any(|address| pod.addresses.contains(address))
    }
}
