//! Names of values in the reports, as Calico's own tool writes them: v2 by key, v3 by kind and name.

use strum::IntoStaticStr;

use std::fmt;

/// A value of the v2 store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum V2Key {
    /// A setting of Felix, or of the cluster.
    Setting(String),
    /// A setting of Felix on one host: the name of the host in v3, the setting.
    HostSetting(String, String),
    /// A setting of BGP.
    BgpSetting(String),
    /// A setting of BGP on one host: the host, the setting.
    HostBgpSetting(String, String),
    /// A host.
    Node(String),
    /// Names of a host in orchestrators.
    OrchestratorReferences(String),
    /// A peer of all nodes, by its address.
    GlobalPeer(String),
    /// A peer of one node: the node, the address.
    NodePeer(String, String),
    /// An interface of a host: the host, the endpoint.
    HostEndpoint(String, String),
    /// A pool, by its network.
    IpPool(String),
    /// A policy.
    Policy(String),
    /// A profile.
    Profile(String),
    /// One of the three parts of a profile (`Tags`, `Labels` or `Rules`), and the profile.
    ProfilePart(&'static str, String),
    /// An interface of a workload.
    WorkloadEndpoint {
        /// The host.
        node: String,
        /// The orchestrator of the workload.
        orchestrator: String,
        /// The workload.
        workload: String,
        /// The interface.
        endpoint: String,
    },
    /// The settings of the IPAM.
    IpamConfig,
    /// A block of addresses, by its network.
    Block(String),
    /// Affinity of a block for a host: the network, the host.
    Affinity(String, String),
    /// Addresses that are released together.
    Handle(String),
    /// An invalid key, unchanged.
    Unreadable(String),
}

impl fmt::Display for V2Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(name) => write!(formatter, "GlobalFelixConfig(name={name})"),
            Self::HostSetting(node, name) => write!(formatter, "HostConfig(node={node},name={name})"),
            Self::BgpSetting(name) => write!(formatter, "GlobalBGPConfig(name={name})"),
            Self::HostBgpSetting(node, name) => write!(formatter, "HostBGPConfig(node={node}; name={name})"),
            Self::Node(name) => write!(formatter, "Node(name={name})"),
            Self::OrchestratorReferences(node) => write!(formatter, "OrchRefs(nodename={node})"),
            Self::GlobalPeer(address) => write!(formatter, "BGPPeer(global, ip={address})"),
            Self::NodePeer(node, address) => write!(formatter, "BGPPeer(node={node}, ip={address})"),
            Self::HostEndpoint(node, name) => write!(formatter, "HostEndpoint(node={node}, name={name})"),
            Self::IpPool(network) => write!(formatter, "IPPool(cidr={network})"),
            Self::Policy(name) => write!(formatter, "Policy(name={name})"),
            Self::Profile(name) => write!(formatter, "Profile(name={name})"),
            Self::ProfilePart(part, name) => write!(formatter, "Profile{part}(name={name})"),
            Self::WorkloadEndpoint {
                node,
                orchestrator,
                workload,
                endpoint,
            } => write!(
                formatter,
                "WorkloadEndpoint(node={node}, orchestrator={orchestrator}, workload={workload}, name={endpoint})"
            ),
            Self::IpamConfig => formatter.write_str("IPAMConfigKey()"),
            Self::Block(network) => write!(formatter, "BlockKey(cidr={network})"),
            Self::Affinity(network, host) => {
                write!(formatter, "BlockAffinityKey(cidr={network}, host={host})")
            }
            Self::Handle(handle) => write!(formatter, "IPAMHandleKey(id={handle})"),
            Self::Unreadable(path) => formatter.write_str(path),
        }
    }
}

/// Kind of an object in the v3 store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
pub enum ObjectKind {
    /// Settings of Felix, for all nodes or for one.
    FelixConfiguration,
    /// Identity and version of the cluster, and the flag that keeps v3 closed.
    ClusterInformation,
    /// Settings of BGP.
    #[strum(serialize = "BGPConfiguration")]
    BgpConfiguration,
    /// A node.
    Node,
    /// A BGP peer of all nodes or of one.
    #[strum(serialize = "BGPPeer")]
    BgpPeer,
    /// An interface of a host.
    HostEndpoint,
    /// A pool of addresses.
    #[strum(serialize = "IPPool")]
    IpPool,
    /// A policy.
    GlobalNetworkPolicy,
    /// A profile.
    Profile,
    /// An interface of a workload.
    WorkloadEndpoint,
    /// Settings of the IPAM.
    #[strum(serialize = "IPAMConfig")]
    IpamConfig,
    /// A block of addresses.
    #[strum(serialize = "IPAMBlock")]
    IpamBlock,
    /// Affinity of a block for a host.
    BlockAffinity,
    /// Addresses that are released together.
    #[strum(serialize = "IPAMHandle")]
    IpamHandle,
}

impl ObjectKind {
    /// The plural of the kind in keys; `None` for the IPAM, whose keys are not resources.
    fn plural(self) -> Option<&'static str> {
        Some(match self {
            Self::FelixConfiguration => "felixconfigurations",
            Self::ClusterInformation => "clusterinformations",
            Self::BgpConfiguration => "bgpconfigurations",
            Self::Node => "nodes",
            Self::BgpPeer => "bgppeers",
            Self::HostEndpoint => "hostendpoints",
            Self::IpPool => "ippools",
            Self::GlobalNetworkPolicy => "globalnetworkpolicies",
            Self::Profile => "profiles",
            Self::WorkloadEndpoint => "workloadendpoints",
            Self::IpamConfig | Self::IpamBlock | Self::BlockAffinity | Self::IpamHandle => return None,
        })
    }

    /// Whether the kind is a resource with `metadata`, which gets a `uid` and a `creationTimestamp` when it is written.
    pub fn has_metadata(self) -> bool {
        self.plural().is_some()
    }

    /// Name of the kind, such as `GlobalNetworkPolicy`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Parent key of the objects of the kind; empty for the IPAM.
    pub(super) fn directory(self) -> String {
        self.plural().map_or_else(String::new, |plural| {
            format!("/calico/resources/v3/projectcalico.org/{plural}")
        })
    }
}

/// The name of a v3 object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct V3Name {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Namespace of a namespaced object.
    pub namespace: Option<String>,
    /// Name of the object; for a policy without its tier.
    pub name: String,
}

impl fmt::Display for V3Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        match namespace {
            Some(namespace) => write!(formatter, "{}({namespace}/{name})", kind.name()),
            None => write!(formatter, "{}({name})", kind.name()),
        }
    }
}
