//! What an agent reads off its host: kernel and files, parsed values only.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::flannel::SubnetEnvironment;
use engine::cni::CniDirectory;
use engine::drain::Pod;
pub use engine::found::Found;

/// A VXLAN link as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VxlanDevice {
    /// Name of the link.
    pub name: String,
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP destination port.
    pub port: u16,
    /// MTU in bytes.
    pub mtu: u32,
    /// Local (source) address of the tunnel.
    #[schemars(with = "Option<String>")]
    pub local: Option<IpAddr>,
    /// Name of the underlying link.
    pub parent: Option<String>,
    /// Whether the device learns addresses from the packets that it receives.
    pub learning: bool,
    /// Link-layer address, lower-case, colon-separated.
    pub mac: String,
    /// Whether the link is administratively up.
    pub up: bool,
    /// Addresses on the link.
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpNet>,
    /// Routes through the link.
    pub routes: u32,
    /// Those of them that are as Calico makes them: under its protocol number, or to a node's end.
    #[serde(default)]
    pub block_routes: u32,
    /// Permanent neighbours on the link.
    pub neighbours: u32,
    /// Forwarding database entries of the link.
    pub forwarding_entries: u32,
}

/// A bridge that flannel's CNI plugin made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bridge {
    /// Name of the link.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses on the link.
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpNet>,
    /// Names of the links attached to it: one for each pod on the old network.
    pub ports: Vec<String>,
    /// Whether it answers for addresses that are not on it, at once: ARP (`proxy_arp` 1, `proxy_delay` 0) and, where it has
    /// an address of IPv6, for neighbours (`proxy_ndp` 1, `proxy_delay` 0).
    #[serde(default)]
    pub answers_for_pods: bool,
    /// Addresses of IPv6 that it answers for, as few networks as possible (`ip neighbour show proxy`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub answered: Vec<Ipv6Net>,
}

/// A pod that was attached to the old network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LegacyPod {
    /// Namespace; empty where the runtime did not say.
    #[schemars(regex(pattern = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$"))]
    pub namespace: String,
    /// Name; empty where the runtime did not say.
    #[schemars(regex(pattern = r"^([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?)?$"))]
    pub name: String,
    /// ID of its sandbox: Calico's handle is called after it.
    #[schemars(regex(pattern = r"^[0-9A-Za-z]([-0-9A-Za-z]{0,126}[0-9A-Za-z])?$"))]
    pub sandbox: String,
    /// The host's end of its cable; empty where there is none.
    #[schemars(regex(pattern = r"^[^/\s]{0,15}$"))]
    pub link: String,
    /// Its addresses.
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpAddr>,
    /// Whether the link is there, on `cni0`: the pod lives.
    pub attached: bool,
    /// Whether each address has a route of its own to `cni0`.
    pub routed: bool,
}

impl LegacyPod {
    /// Whether this is that pod. Its address alone does not say so: once its cable is gone Calico may give the address to another pod, and what
    /// is left of this one may lie there for longer.
    pub fn is(&self, pod: &Pod) -> bool {
        let is_named = (&self.namespace, &self.name) == (&pod.namespace, &pod.name);
        (is_named || self.name.is_empty())
            && self
                .addresses
                .iter()
                .any(|address| pod.addresses.contains(address))
    }
}

/// A route to another node's pods that does not go through a tunnel (flannel's `DirectRouting`, host-gw).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DirectRoute {
    /// Destination.
    #[schemars(with = "String")]
    pub destination: IpNet,
    /// Next hop.
    #[schemars(with = "String")]
    pub gateway: IpAddr,
    /// Name of the link.
    pub link: String,
}

/// `rp_filter` of one interface. The kernel uses the larger of `all` and the interface's own value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReversePathFilter {
    /// `net.ipv4.conf.all.rp_filter`: 0 off, 1 strict, 2 loose.
    pub all: u8,
    /// Value by interface.
    pub interfaces: BTreeMap<String, u8>,
}

impl ReversePathFilter {
    /// The value that the kernel applies on an interface: the larger of `all` and its own.
    /// `None` when the interface is not known.
    pub fn effective(&self, interface: &str) -> Option<u8> {
        self.interfaces.get(interface).map(|own| self.all.max(*own))
    }
}

/// A firewall chain or table of flannel's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FirewallObject {
    /// Where it stands.
    pub backend: FirewallBackend,
    /// Table: `nat`, `filter` for iptables; `ip flannel-ipv4` for nftables.
    pub table: String,
    /// flannel's own chain; or a chain of the kernel's, which stands for the rules that flannel put straight into
    /// it; empty for a whole table.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub chain: String,
}

/// The rule sets that a kernel can hold side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FirewallBackend {
    /// iptables over `nf_tables`, IPv4.
    IptablesNft,
    /// iptables over `nf_tables`, IPv6.
    Ip6tablesNft,
    /// iptables over `ip_tables`, IPv4.
    IptablesLegacy,
    /// iptables over `ip6_tables`, IPv6.
    Ip6tablesLegacy,
    /// A table of nftables' own.
    Nftables,
}

/// Routes of this tool's to whole IPv6 subnets of other nodes, in a table of its own. Calico has routes to the blocks that
/// are claimed and to nothing else of a subnet; flannel's pods may be anywhere in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubnetRoutes {
    /// Number of routes that are there.
    pub laid: u32,
    /// Number of nodes that the IPv6 tunnel leads to and that have none.
    pub missing: u32,
    /// Whether there is a rule by which they are looked up.
    pub looked_up: bool,
}

impl SubnetRoutes {
    /// Whether every node that the tunnel leads to is reached by them.
    pub fn is_complete(&self) -> bool {
        self.missing == 0 && (self.laid == 0 || self.looked_up)
    }

    /// Whether nothing of them is there.
    pub fn is_gone(&self) -> bool {
        self.laid == 0 && !self.looked_up
    }
}

/// What is on the host of the new network and of this tool: what the way back has to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CalicoTraces {
    /// Whether a process named `calico-node` runs on the host.
    #[serde(default)]
    pub node_running: bool,
    /// The host's ends of cables to Calico's pods: one for each pod.
    #[serde(default)]
    pub pods: Vec<String>,
    /// Tables in which Calico has chains or rules, and tables of its own; `chain` is empty.
    #[serde(default)]
    pub firewall: Vec<FirewallObject>,
    /// Number of Calico's sets of addresses (`ipset`).
    #[serde(default)]
    pub sets: u32,
    /// Number of routes by which Calico drops packets to its own blocks.
    #[serde(default)]
    pub blackholes: u32,
    /// Number of routes of this tool's to single pods of flannel's.
    #[serde(default)]
    pub pod_routes: u32,
    /// Routes of this tool's to whole IPv6 subnets of nodes.
    #[serde(default)]
    pub subnet_routes: SubnetRoutes,
    /// Number of libcni's records of Calico's pods.
    #[serde(default)]
    pub records: u32,
}

/// Everything that an agent knows of its host. Each field says what was looked at, not what it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// The CNI configuration folder, as the runtime reads it.
    pub cni: CniDirectory,
    /// Every VXLAN link of the host, by name.
    pub vxlan_devices: Vec<VxlanDevice>,
    /// `cni0`.
    pub bridge: Found<Bridge>,
    /// Pods that were attached to the old network, by their sandboxes' IDs; those that are gone have left a record.
    #[serde(default)]
    pub legacy_pods: Vec<LegacyPod>,
    /// Records of attachments that were not understood: file and reason.
    #[serde(default)]
    pub legacy_problems: Vec<String>,
    /// What is there of the new network and of this tool.
    #[serde(default)]
    pub calico: CalicoTraces,
    /// Routes to other nodes' pods past the tunnel.
    pub direct_routes: Vec<DirectRoute>,
    /// Reverse path filter of the interfaces that matter: uplink, `cni0`, `flannel.*`, `vxlan.calico`, and
    /// `default`, which pods' interfaces take.
    pub reverse_path_filter: ReversePathFilter,
    /// `/run/flannel/subnet.env`.
    pub subnet_environment: Found<SubnetEnvironment>,
    /// Whether a process named `flanneld` runs on the host.
    pub flanneld_running: bool,
    /// Processes that could not be read, the first few of them: any of them may be flanneld.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_processes: Vec<String>,
    /// flannel's chains and tables in every firewall backend that the kernel has.
    pub firewall: Vec<FirewallObject>,
    /// Tables with a chain of flannel's whose rules could not be read, and why. The chain is among `firewall`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_tables: Vec<String>,
    /// Number of files that host-local keeps of the old network under `/var/lib/cni/networks`: leases, its lock,
    /// the address that it gave last.
    pub leases: u32,
    /// Number of delegate files of flannel's CNI plugin under `/var/lib/cni/flannel`.
    pub delegates: u32,
    /// The address that Calico's `first-found` detection would choose.
    #[schemars(with = "Option<String>")]
    pub detected_address: Option<IpAddr>,
    /// The same of IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub detected_ipv6_address: Option<IpAddr>,
    /// The interface that carries the default route, or else `detected_address`.
    pub uplink: Option<String>,
    /// `net.bridge.bridge-nf-call-iptables`; absent when `br_netfilter` is not loaded.
    pub bridge_nf_call_iptables: Option<bool>,
}

impl HostFacts {
    /// The VXLAN link with this name.
    pub fn vxlan(&self, name: &str) -> Option<&VxlanDevice> {
        self.vxlan_devices.iter().find(|device| device.name == name)
    }
}
