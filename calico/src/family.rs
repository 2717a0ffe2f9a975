//! Names of Calico that differ between IPv4 and IPv6.

use ipnet::IpNet;

/// The names of one family.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Name in messages.
    pub name: &'static str,
    /// Version in labels.
    pub version: &'static str,
    /// Name of the pool that is created when none covers flannel's network.
    pub pool: &'static str,
    /// Node annotation: the address that other nodes send tunnel packets to.
    pub address_annotation: &'static str,
    /// Node annotation: the address on the tunnel device.
    pub tunnel_address_annotation: &'static str,
    /// Node annotation: the hardware address of the tunnel device.
    pub tunnel_mac_annotation: &'static str,
    /// flannel's Node annotation, without the prefix: the source address of tunnel packets.
    pub public_address_annotation: &'static str,
    /// Variable of calico-node: the source of that address.
    pub address_variable: &'static str,
    /// Variable of calico-node: the detection method for that address.
    pub detection_variable: &'static str,
    /// Prefix of the handle of a node's tunnel address.
    pub tunnel_handle: &'static str,
    /// The attribute `type` of a node's tunnel address.
    pub tunnel_type: &'static str,
}

/// IPv4.
pub const IPV4: Family = Family {
    name: "IPv4",
    version: "4",
    pool: "default-ipv4-ippool",
    address_annotation: "projectcalico.org/IPv4Address",
    tunnel_address_annotation: "projectcalico.org/IPv4VXLANTunnelAddr",
    tunnel_mac_annotation: "projectcalico.org/VXLANTunnelMACAddr",
    public_address_annotation: "public-ip",
    address_variable: "IP",
    detection_variable: "IP_AUTODETECTION_METHOD",
    tunnel_handle: "vxlan-tunnel-addr-",
    tunnel_type: "vxlanTunnelAddress",
};

/// IPv6.
pub const IPV6: Family = Family {
    name: "IPv6",
    version: "6",
    pool: "default-ipv6-ippool",
    address_annotation: "projectcalico.org/IPv6Address",
    tunnel_address_annotation: "projectcalico.org/IPv6VXLANTunnelAddr",
    tunnel_mac_annotation: "projectcalico.org/VXLANTunnelMACAddrV6",
    public_address_annotation: "public-ipv6",
    address_variable: "IP6",
    detection_variable: "IP6_AUTODETECTION_METHOD",
    tunnel_handle: "vxlan-v6-tunnel-addr-",
    tunnel_type: "vxlanV6TunnelAddress",
};

/// Every family.
pub const ALL: [&Family; 2] = [&IPV4, &IPV6];

/// The family of a network.
pub fn of(network: &IpNet) -> &'static Family {
    match network {
        IpNet::V4(_) => &IPV4,
        IpNet::V6(_) => &IPV6,
    }
}
