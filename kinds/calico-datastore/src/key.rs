//! What values are called in the reports: the v2 side by its key, the v3 side by its kind and name, as Calico's own tool writes them.

use std::fmt;

/// A value of the v2 store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum V2Key {
    /// A setting of Felix, or of the cluster.
    Setting(String),
    /// A setting of one host's Felix: the host as v3 names it, the setting.
    HostSetting(String, String),
    /// A setting of BGP.
    BgpSetting(String),
    /// A setting of one host's BGP: the host, the setting.
    HostBgpSetting(String, String),
    /// A host.
    Node(String),
    /// What orchestrators call a host.
    OrchestratorReferences(String),
    /// A peer of every node, by its address.
    GlobalPeer(String),
    /// A peer of one node: the node, the address.
    NodePeer(String, String),
    /// A host's own interface: the host, the endpoint.
    HostEndpoint(String, String),
    /// A pool, by its network.
    IpPool(String),
    /// A policy.
    Policy(String),
    /// A profile.
    Profile(String),
    /// One of the three parts of a profile: `Tags`, `Labels` or `Rules`, the profile.
    ProfilePart(&'static str, String),
    /// An interface of a workload.
    WorkloadEndpoint {
        /// The host.
        node: String,
        /// Who started the workload.
        orchestrator: String,
        /// The workload.
        workload: String,
        /// The interface.
        endpoint: String,
    },
    /// The settings of the address management.
    IpamConfig,
    /// A block of addresses, by its network.
    Block(String),
    /// A host's claim on a block: the network, the host.
    Affinity(String, String),
    /// Addresses that are released together.
    Handle(String),
    /// A key that cannot be read, as it is.
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

/// What an object of the v3 store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// Settings of Felix, for all nodes or for one.
    FelixConfiguration,
    /// The cluster's identity, its version, and the flag that holds v3 nodes back.
    ClusterInformation,
    /// Settings of BGP.
    BgpConfiguration,
    /// A node.
    Node,
    /// A BGP peer of all nodes or of one.
    BgpPeer,
    /// A host's own interface.
    HostEndpoint,
    /// A pool of addresses.
    IpPool,
    /// A policy.
    GlobalNetworkPolicy,
    /// A profile.
    Profile,
    /// An interface of a workload.
    WorkloadEndpoint,
    /// Settings of the address management.
    IpamConfig,
    /// A block of addresses.
    IpamBlock,
    /// A host's claim on a block.
    BlockAffinity,
    /// Addresses that are released together.
    IpamHandle,
}

impl ObjectKind {
    /// The kind as it is written, and its name in keys; `None` for address management, whose keys stayed as they were.
    fn resource(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::FelixConfiguration => ("FelixConfiguration", "felixconfigurations"),
            Self::ClusterInformation => ("ClusterInformation", "clusterinformations"),
            Self::BgpConfiguration => ("BGPConfiguration", "bgpconfigurations"),
            Self::Node => ("Node", "nodes"),
            Self::BgpPeer => ("BGPPeer", "bgppeers"),
            Self::HostEndpoint => ("HostEndpoint", "hostendpoints"),
            Self::IpPool => ("IPPool", "ippools"),
            Self::GlobalNetworkPolicy => ("GlobalNetworkPolicy", "globalnetworkpolicies"),
            Self::Profile => ("Profile", "profiles"),
            Self::WorkloadEndpoint => ("WorkloadEndpoint", "workloadendpoints"),
            Self::IpamConfig | Self::IpamBlock | Self::BlockAffinity | Self::IpamHandle => return None,
        })
    }

    /// Whether it is a resource with `metadata`, which gets a `uid` and a `creationTimestamp` when it is written.
    pub fn has_metadata(self) -> bool {
        self.resource().is_some()
    }

    /// The kind as it is written: `GlobalNetworkPolicy`.
    pub fn name(self) -> &'static str {
        match self {
            Self::IpamConfig => "IPAMConfig",
            Self::IpamBlock => "IPAMBlock",
            Self::BlockAffinity => "BlockAffinity",
            Self::IpamHandle => "IPAMHandle",
            kind => kind.resource().map_or_else(Default::default, |(name, _)| name),
        }
    }

    /// The directory of its objects; empty for address management.
    pub(super) fn directory(self) -> String {
        self.resource().map_or_else(String::new, |(_, plural)| {
            format!("/calico/resources/v3/projectcalico.org/{plural}")
        })
    }
}

/// The name of a v3 object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct V3Name {
    /// What it is.
    pub kind: ObjectKind,
    /// The namespace of what has one.
    pub namespace: Option<String>,
    /// Its name, of a policy without its tier.
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
