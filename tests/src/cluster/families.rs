//! The address families of a cluster, and the settings of its parts that depend on them.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::control_plane::{POD_NETWORK, SERVICE_NETWORK};

/// The IPv6 range of pods; every node gets a /64.
pub const POD_NETWORK_IPV6: &str = "fd00:10:244::/56";
/// The IPv6 range of Services.
pub const SERVICE_NETWORK_IPV6: &str = "fd00:10:96::/112";

/// The address families of nodes, pods and Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum IpFamilies {
    /// Only IPv4.
    #[default]
    Ipv4,
    /// IPv4 first, and IPv6.
    DualStack,
}

impl IpFamilies {
    /// The IPv6 address of a node or of the switch, if it has one.
    pub fn ipv6_of(self, address: Ipv4Addr) -> Option<Ipv6Addr> {
        let [_, _, third, host] = address.octets();
        match self {
            Self::Ipv4 => None,
            Self::DualStack => Some(Ipv6Addr::new(
                0xfd00,
                0x172,
                0x30,
                third.into(),
                0,
                0,
                0,
                host.into(),
            )),
        }
    }

    /// Whether pods have IPv6 addresses.
    pub fn has_ipv6(self) -> bool {
        match self {
            Self::Ipv4 => false,
            Self::DualStack => true,
        }
    }

    /// The ranges of pods, for a command line.
    pub fn pod_networks(self) -> String {
        self.both(POD_NETWORK, POD_NETWORK_IPV6)
    }

    /// The ranges of Services, for a command line.
    pub fn service_networks(self) -> String {
        self.both(SERVICE_NETWORK, SERVICE_NETWORK_IPV6)
    }

    /// A node's own addresses, for its kubelet.
    pub fn node_addresses(self, address: Ipv4Addr) -> String {
        let more = self.ipv6_of(address).map(|address| format!(",{address}"));
        format!("{address}{}", more.unwrap_or_default())
    }

    /// The controller manager's arguments for the size of a node's part of the pods' ranges.
    pub fn node_mask_arguments(self) -> &'static str {
        match self {
            Self::Ipv4 => "--node-cidr-mask-size=24",
            Self::DualStack => "--node-cidr-mask-size-ipv4=24 --node-cidr-mask-size-ipv6=64",
        }
    }

    /// The IPv6 part of flannel's network configuration.
    pub fn flannel_configuration(self) -> String {
        match self {
            Self::Ipv4 => String::new(),
            Self::DualStack => format!(r#" "EnableIPv6": true, "IPv6Network": "{POD_NETWORK_IPV6}","#),
        }
    }

    /// The address with which a program listens on all addresses.
    pub fn unspecified(self) -> &'static str {
        match self {
            Self::Ipv4 => "0.0.0.0",
            // Linux delivers IPv4 connections to such a socket, too.
            Self::DualStack => "::",
        }
    }

    fn both(self, ipv4: &str, ipv6: &str) -> String {
        match self {
            Self::Ipv4 => ipv4.to_owned(),
            Self::DualStack => format!("{ipv4},{ipv6}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_single_family_has_one_address() {
        let address = Ipv4Addr::new(172, 30, 3, 11);
        assert_eq!(IpFamilies::Ipv4.node_addresses(address), "172.30.3.11");
        assert_eq!(
            IpFamilies::DualStack.node_addresses(address),
            "172.30.3.11,fd00:172:30:3::b"
        );
    }
}
