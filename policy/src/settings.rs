//! Settings of Calico and of kube-proxy on which verdicts depend.

use std::net::IpAddr;

use ipnet::IpNet;

/// Settings of the cluster under Calico.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The version of Calico.
    pub version: Version,
    /// The data plane.
    pub data_plane: DataPlane,
    /// Encapsulation of the pools.
    pub encapsulation: Encapsulation,
    /// `DefaultEndpointToHostAction`. Felix' own default is `DROP`; every way of installation sets `ACCEPT`.
    pub endpoint_to_host: EndpointToHost,
    /// `vxlanPort` of Felix.
    pub vxlan_port: u16,
    /// Packets of tunnels that pods may send.
    pub tunnels_from_pods: TunnelsFromPods,
    /// kube-proxy masquerades all traffic to Services (`masqueradeAll`, or a `clusterCIDR` that is wrong).
    pub masquerades_all: bool,
    /// `natOutgoing` of the pools.
    pub masquerades_outgoing: MasqueradesOutgoing,
    /// Ranges of pods. An address in them that no known pod has is unknown, not outside of the cluster.
    pub pod_ranges: Vec<IpNet>,
}

impl Default for Settings {
    /// What the migration installs: v3.32 with VXLAN.
    fn default() -> Self {
        Self {
            version: Version::new(3, 32),
            data_plane: DataPlane::Iptables,
            encapsulation: Encapsulation::Always,
            endpoint_to_host: EndpointToHost::Accept,
            vxlan_port: 4789,
            tunnels_from_pods: TunnelsFromPods::default(),
            masquerades_all: false,
            masquerades_outgoing: MasqueradesOutgoing::default(),
            pod_ranges: Vec::new(),
        }
    }
}

/// Whether connections of pods to addresses outside of all pools, nodes included, are masqueraded, by family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasqueradesOutgoing {
    /// In IPv4.
    pub ipv4: bool,
    /// In IPv6.
    pub ipv6: bool,
}

impl Default for MasqueradesOutgoing {
    /// As the migration does it for a flannel that masquerades.
    fn default() -> Self {
        Self::both(true)
    }
}

impl MasqueradesOutgoing {
    /// The same in both families.
    pub fn both(masquerades: bool) -> Self {
        Self {
            ipv4: masquerades,
            ipv6: masquerades,
        }
    }

    /// Whether connections to this address are masqueraded.
    pub fn to(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => self.ipv4,
            IpAddr::V6(_) => self.ipv6,
        }
    }
}

/// Packets of tunnels that pods may send. Felix drops them unless it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelsFromPods {
    /// `allowVXLANPacketsFromWorkloads`.
    pub vxlan: bool,
    /// `allowIPIPPacketsFromWorkloads`.
    pub ipip: bool,
}

/// A version of Calico.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u16,
    minor: u16,
}

impl Version {
    /// Major and minor version.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// Ports of init containers have names since v3.30.
    pub(crate) fn reads_init_containers(self) -> bool {
        self >= Self::new(3, 30)
    }
}

/// The data plane of Calico.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlane {
    /// iptables.
    Iptables,
    /// nftables.
    Nftables,
    /// eBPF: a node port on another node keeps the client's address.
    Ebpf,
}

/// Encapsulation between nodes: which address of a node other nodes see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// Always: the tunnel address.
    Always,
    /// Between subnets: the tunnel address, or the address of the node in the same subnet.
    CrossSubnet,
    /// Never: the address of the node.
    Never,
}

/// What happens to packets from a pod to its own host after the pod's egress policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointToHost {
    /// They pass.
    Accept,
    /// They are dropped.
    Drop,
    /// The host's own firewall decides.
    Return,
}
