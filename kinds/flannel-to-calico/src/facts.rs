//! Facts about the cluster, which the coordinator reads from the API, and about a host, which its agent reads: parsed values of
//! the kernel and of files.

mod legacy_pod;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::legacy_pod::{LegacyPod, PodLink};
use crate::flannel::SubnetEnvironment;
use crate::foreign_rules::ForeignRules;
use crate::plugin::FlannelPlugin;
use crate::preview::Preview;
use crate::runtime::Runtime;
use engine::check::Check;
use engine::check::policies::PolicyState;
use engine::cluster::{DaemonSet, IpPool, Malformed, Node, Webhook};
use engine::cni::CniDirectory;
use engine::drain::Budget;
pub use engine::found::Found;
use engine::node_selection::NodeSelection;
use engine::pods::Pods;

/// `VxlanDevice` is a VXLAN link of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VxlanDevice {
    /// `name` is the name of the link.
    pub name: String,
    /// `vni` is the VXLAN network identifier.
    pub vni: u32,
    /// `port` is the UDP destination port.
    pub port: u16,
    /// `mtu` is the MTU in bytes.
    pub mtu: u32,
    /// `local` is the source address of the tunnel. Unset if the link has none.
    #[schemars(with = "Option<String>")]
    pub local: Option<IpAddr>,
    /// `parent` is the name of the underlying link. Unset if there is none.
    pub parent: Option<String>,
    /// `learning` is whether the link learns MAC addresses from received packets.
    pub learning: bool,
    /// `mac` is the MAC address, in lower case with colons.
    pub mac: String,
    /// `up` is whether the link is administratively up.
    pub up: bool,
    /// `addresses` is the list of addresses of the link, with their prefix lengths, without IPv6 link-local addresses.
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpNet>,
    /// `routes` is the number of routes through the link.
    pub routes: u32,
    /// `blockRoutes` is the number of these routes that look like routes of Calico: their protocol is that of Felix, or their
    /// destination is the tunnel address of a node.
    #[serde(default)]
    pub block_routes: u32,
    /// `neighbours` is the number of permanent neighbour entries of the link.
    pub neighbours: u32,
    /// `forwardingEntries` is the number of forwarding database entries of the link.
    pub forwarding_entries: u32,
}

/// `Bridge` is the bridge of flannel's CNI plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bridge {
    /// `name` is the name of the link.
    pub name: String,
    /// `mtu` is the MTU in bytes.
    pub mtu: u32,
    /// `addresses` is the list of addresses of the link, with their prefix lengths, without IPv6 link-local addresses.
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpNet>,
    /// `ports` is the list of links, by name, that are attached to the bridge: one for each pod on the flannel network.
    pub ports: Vec<String>,
    /// `answersForPods` is whether the bridge answers, without delay, ARP requests for all addresses (`proxy_arp` 1,
    /// `proxy_delay` 0) and, if it has an IPv6 address, neighbour solicitations for `answered` (`proxy_ndp` 1, `proxy_delay` 0).
    #[serde(default)]
    pub answers_for_pods: bool,
    /// `answered` is the list of IPv6 networks that the bridge answers neighbour solicitations for (`ip neighbour show proxy`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub answered: Vec<Ipv6Net>,
    /// `open` is whether the bridge accepts packets whose way back is another link, and frames to the MAC addresses of adopted
    /// pods.
    #[serde(default)]
    pub open: bool,
}

/// `DirectRoute` is a route to the pods of another node that does not use a tunnel (flannel's `DirectRouting` or host-gw).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DirectRoute {
    /// `destination` is the destination, in CIDR notation.
    #[schemars(with = "String")]
    pub destination: IpNet,
    /// `gateway` is the address of the next hop.
    #[schemars(with = "String")]
    pub gateway: IpAddr,
    /// `link` is the name of the link.
    pub link: String,
}

/// `ReversePathFilter` are the values of `rp_filter`. The kernel uses the larger of `all` and the value of the interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReversePathFilter {
    /// `all` is `net.ipv4.conf.all.rp_filter`: 0 for off, 1 for strict, 2 for loose.
    pub all: u8,
    /// `interfaces` are the values of single interfaces, by name.
    pub interfaces: BTreeMap<String, u8>,
}

impl ReversePathFilter {
    /// The value that the kernel applies to an interface: the larger of `all` and the value of the interface. `None` for an
    /// unknown interface.
    pub fn effective(&self, interface: &str) -> Option<u8> {
        self.interfaces.get(interface).map(|own| self.all.max(*own))
    }
}

/// `FirewallObject` is a firewall chain or table of one of the two networks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FirewallObject {
    /// `backend` is where the object is. Possible values: `IptablesNft` and `Ip6tablesNft`: iptables and ip6tables with
    /// `nf_tables`. `IptablesLegacy` and `Ip6tablesLegacy`: the legacy iptables and ip6tables. `Nftables`: a table of nftables.
    pub backend: FirewallBackend,
    /// `table` is the name of the table, such as `nat` or `filter` for iptables, and `ip flannel-ipv4` for nftables.
    pub table: String,
    /// `chain` is the name of the chain: a chain of flannel, or a built-in chain that contains rules of flannel. Empty for a
    /// whole table.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub chain: String,
}

/// `FirewallBackend` is a set of firewall rules of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FirewallBackend {
    /// iptables with `nf_tables`, IPv4.
    IptablesNft,
    /// ip6tables with `nf_tables`, IPv6.
    Ip6tablesNft,
    /// The legacy iptables, IPv4.
    IptablesLegacy,
    /// The legacy ip6tables, IPv6.
    Ip6tablesLegacy,
    /// A table of nftables.
    Nftables,
}

/// `SubnetRoutes` are the routes of replumb to the whole IPv6 subnets of other nodes, in a table of their own. Calico has routes
/// to its IPAM blocks only, and pods of flannel can have any address of a subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubnetRoutes {
    /// `found` is the number of these routes.
    pub found: u32,
    /// `missing` is the number of nodes that the IPv6 tunnel leads to and that have no such route.
    pub missing: u32,
    /// `lookedUp` is whether there is a policy routing rule for the table of these routes.
    pub looked_up: bool,
}

impl SubnetRoutes {
    /// Whether every node that the tunnel leads to has a route, and the rule exists.
    pub fn is_complete(&self) -> bool {
        self.missing == 0 && (self.found == 0 || self.looked_up)
    }

    /// Whether neither a route nor the rule exists.
    pub fn is_gone(&self) -> bool {
        self.found == 0 && !self.looked_up
    }
}

/// `CalicoObjects` is what a rollback has to remove from the host: objects of Calico and of replumb.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CalicoObjects {
    /// `nodeRunning` is whether a process named `calico-node` is running.
    #[serde(default)]
    pub node_running: bool,
    /// `pods` is the list of links, by name, of pods on Calico's network: one for each pod.
    #[serde(default)]
    pub pods: Vec<String>,
    /// `firewall` is the list of firewall tables with chains or rules of Calico, and of tables of Calico. `chain` is empty.
    #[serde(default)]
    pub firewall: Vec<FirewallObject>,
    /// `sets` is the number of IP sets (`ipset`) of Calico.
    #[serde(default)]
    pub sets: u32,
    /// `blackholes` is the number of blackhole routes of Calico for its own IPAM blocks.
    #[serde(default)]
    pub blackholes: u32,
    /// `podRoutes` is the number of routes of replumb to single pods on the flannel network.
    #[serde(default)]
    pub pod_routes: u32,
    /// `subnetRoutes` are the routes of replumb to the whole IPv6 subnets of other nodes.
    #[serde(default)]
    pub subnet_routes: SubnetRoutes,
    /// `frameRules` is the list of links, by name, for which a rule of replumb accepts frames to other MAC addresses. For an adopted
    /// pod, the name of flannel and the name of Calico, with an underscore between them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frame_rules: Vec<String>,
    /// `keptAddresses` is the list of addresses of `cni0` that replumb has put on the loopback interface for adopted pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub kept_addresses: Vec<IpAddr>,
    /// `records` is the number of results that libcni has cached for pods on Calico's network.
    #[serde(default)]
    pub records: u32,
}

/// `HostFacts` is what an agent has read from its host for a migration from flannel to Calico.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// `cni` is the CNI configuration directory as the container runtime reads it.
    pub cni: CniDirectory,
    /// `plugin` is what the conflist that the container runtime uses sets for flannel's CNI plugin. Unset if that file has no plugin of
    /// flannel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<FlannelPlugin>,
    /// `runtime` is what the container runtime sets about the pod network. Unset if neither CRI-O nor cri-dockerd runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    /// `vxlanDevices` is the list of all VXLAN links of the host, ordered by name.
    pub vxlan_devices: Vec<VxlanDevice>,
    /// `bridge` is the link `cni0`.
    pub bridge: Found<Bridge>,
    /// `legacyPods` is the list of pods that were attached to the flannel network, ordered by sandbox ID. Pods that no longer run
    /// are in the list until their record on the host is removed.
    #[serde(default)]
    pub legacy_pods: Vec<LegacyPod>,
    /// `legacyProblems` is the list of records of pods that could not be parsed: the file and the error.
    #[serde(default)]
    pub legacy_problems: Vec<String>,
    /// `calico` is what a rollback has to remove from the host: objects of Calico and of replumb.
    #[serde(default)]
    pub calico: CalicoObjects,
    /// `directRoutes` is the list of routes to pods of other nodes that do not use a tunnel. At most 20 items.
    pub direct_routes: Vec<DirectRoute>,
    /// `reversePathFilter` are the values of `rp_filter` for the uplink, `cni0`, `flannel.*`, `vxlan.calico`, and `default`,
    /// which new links of pods get.
    pub reverse_path_filter: ReversePathFilter,
    /// `subnetEnvironment` is the content of `/run/flannel/subnet.env`.
    pub subnet_environment: Found<SubnetEnvironment>,
    /// `flanneldRunning` is whether a process named `flanneld` is running.
    pub flanneld_running: bool,
    /// `unreadProcesses` is the list of processes that could not be read. Each of them may be flanneld. At most 8 are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_processes: Vec<String>,
    /// `firewall` is the list of chains and tables of flannel in all firewall backends of the kernel.
    pub firewall: Vec<FirewallObject>,
    /// `lacksNfTables` is whether the kernel has no `nf_tables`: no rule of nftables, or of iptables with the nft backend, can exist.
    /// Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacks_nf_tables: bool,
    /// `foreignRules` are the rules of other programs that name the links of flannel. Unset until they were read, and while the node is
    /// not on flannel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_rules: Option<ForeignRules>,
    /// `unreadTables` is the list of firewall tables that have a chain of flannel and whose rules could not be read, with the
    /// error. The chain is in `firewall`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread_tables: Vec<String>,
    /// `leases` is the number of files of host-local for the flannel network in `/var/lib/cni/networks`: leases, the lock file
    /// and the last assigned address.
    pub leases: u32,
    /// `delegates` is the number of delegate files of flannel's CNI plugin in `/var/lib/cni/flannel`.
    pub delegates: u32,
    /// `detectedAddress` is the IPv4 address that Calico's `first-found` detection would choose. Unset if there is none.
    #[schemars(with = "Option<String>")]
    pub detected_address: Option<IpAddr>,
    /// `detectedIpv6Address` is the IPv6 address that Calico's `first-found` detection would choose. Unset if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub detected_ipv6_address: Option<IpAddr>,
    /// `uplink` is the name of the interface of the IPv4 default route, or otherwise of `detectedAddress`. Unset if there is
    /// none.
    pub uplink: Option<String>,
    /// `bridgeNfCallIptables` is `net.bridge.bridge-nf-call-iptables`. Unset if the module `br_netfilter` is not loaded.
    pub bridge_nf_call_iptables: Option<bool>,
}

impl HostFacts {
    /// Whether adopted pods run on the host.
    pub fn has_adopted_pods(&self) -> bool {
        self.legacy_pods.iter().any(LegacyPod::is_adopted)
    }

    /// The VXLAN link with this name.
    pub fn vxlan(&self, name: &str) -> Option<&VxlanDevice> {
        self.vxlan_devices.iter().find(|device| device.name == name)
    }
}

/// Whether the preview of network policies is known.
#[derive(Clone, Debug, Default)]
pub enum PreviewState {
    /// It is not, and it is not being read: the settings of the migration are not known.
    #[default]
    Unread,
    /// It is being read for the first time.
    Reading,
    /// It is.
    Known(Arc<Preview>),
}

/// The facts about the cluster that the checks and the plan need.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// Every Node, by name, without those in `outside`.
    pub nodes: BTreeMap<String, Node>,
    /// Linux nodes that flannel's `DaemonSet` does not select, by name: no part of the migration.
    pub outside: BTreeMap<String, Node>,
    /// Facts about the hosts of `outside`, from which no other check reads.
    pub outside_hosts: BTreeMap<String, HostFacts>,
    /// The Nodes that flannel's `DaemonSet` selects, without the label of the migration.
    pub selection: NodeSelection,
    /// Every `DaemonSet`, by (namespace, name).
    pub daemon_sets: BTreeMap<(String, String), DaemonSet>,
    /// Data of the `ConfigMap`s that the `DaemonSet`s of flannel and Calico refer to (see
    /// [`DaemonSet::referred_config_maps`]), by (namespace, name).
    pub config_maps: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// Every Pod that is not finished.
    pub pods: Pods,
    /// Every `PodDisruptionBudget`.
    pub budgets: Vec<Budget>,
    /// Fail-closed admission webhooks that are served by a Service.
    pub webhooks: Vec<Webhook>,
    /// Custom resources of Calico that are served: plural names in group `crd.projectcalico.org`.
    pub calico_resources: BTreeSet<String>,
    /// Whether Calico's native custom resources are served: group `projectcalico.org/v3`.
    pub serves_native_resources: bool,
    /// Ranges whose addresses Calico gives to no pod: of `IPReservation`s.
    pub reserved: Vec<IpNet>,
    /// `IPPool`s, by name.
    pub ip_pools: BTreeMap<String, IpPool>,
    /// Existing IPAM blocks: CIDR → affinity (`host:<node>`), `None` if the block has no affinity.
    pub ipam_blocks: BTreeMap<IpNet, Option<String>>,
    /// Permissions of the coordinator: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// State of the admission policies that restrict the coordinator and the agents, by name.
    pub policies: BTreeMap<String, PolicyState>,
    /// Objects that were read and could not be parsed.
    pub malformed: Vec<Malformed>,
    /// The preview of network policies.
    pub policy_preview: PreviewState,
    /// Facts about the host of each node, as its agent reported them. A node without an entry has not reported.
    pub hosts: BTreeMap<String, HostFacts>,
    /// Check results of the agents on their hosts, by node.
    pub host_checks: BTreeMap<String, Vec<Check>>,
}
