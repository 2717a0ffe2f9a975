//! Tunnel addresses in Calico's IPAM: an allocation of a node, with a handle and attributes that state its purpose.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::ipam::{self, Block, attribute};
use calico::{Allocation, family};

/// How Calico identifies the address of one kind of tunnel.
pub(super) struct Tunnel {
    /// The last part of the key of the Node's annotation.
    pub(super) annotation: &'static str,
    /// The value of attribute `type`.
    pub(super) attribute: &'static str,
    /// Prefix of the handle, before the node's name.
    handle: &'static str,
}

impl Tunnel {
    /// The allocation that Calico would write for this node's tunnel.
    pub(super) fn end(&self, node: &str, block: &Block, address: IpAddr) -> TunnelAllocation {
        TunnelAllocation {
            node: node.to_owned(),
            block: block.range,
            allocation: Allocation {
                address,
                handle: format!("{}{node}", self.handle),
                attributes: BTreeMap::from([
                    (attribute::NODE.to_owned(), node.to_owned()),
                    (attribute::TYPE.to_owned(), self.attribute.to_owned()),
                ]),
            },
        }
    }

    /// Whether an allocation belongs to this node's tunnel. Calico decides in the same way: by node and type.
    pub(super) fn is_of(&self, node: &str, found: &ipam::Allocation) -> bool {
        found.attribute(attribute::NODE) == Some(node)
            && found.attribute(attribute::TYPE) == Some(self.attribute)
    }
}

/// IPv4 only: agents keep no IPv6 addresses.
pub(super) const TUNNELS: [Tunnel; 2] = [
    Tunnel {
        annotation: "IPv4VXLANTunnelAddr",
        attribute: family::IPV4.tunnel_type,
        handle: family::IPV4.tunnel_handle,
    },
    Tunnel {
        annotation: "IPv4IPIPTunnelAddr",
        attribute: "ipipTunnelAddress",
        handle: "ipip-tunnel-addr-",
    },
];

/// A tunnel address that is allocated in Calico's IPAM, or has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelAllocation {
    /// Name of the Node.
    pub node: String,
    /// The block.
    pub block: IpNet,
    /// Address, handle and attributes, as Calico writes them for a tunnel address.
    pub allocation: Allocation,
}

impl TunnelAllocation {
    /// An existing allocation of this node.
    pub(super) fn of(node: &str, block: &Block, found: &ipam::Allocation) -> Self {
        Self {
            node: node.to_owned(),
            block: block.range,
            allocation: Allocation {
                address: found.address,
                handle: found.handle.clone().unwrap_or_default(),
                attributes: found
                    .attributes
                    .iter()
                    .map(|(key, value)| (key.to_string(), value.to_string()))
                    .collect(),
            },
        }
    }
}
