//! What has to be there for one node.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use thiserror::Error;

use super::block::Allocation;
use super::names::tunnel_handle;
use super::{ADDRESS_ANNOTATION, TUNNEL_ADDRESS_ANNOTATION, TUNNEL_MAC_ANNOTATION};
use crate::flannel::{NodeAnnotations, ParseError};
use crate::flannel_to_calico::cluster::Node;
use crate::flannel_to_calico::settings::Settings;

/// A node's subnet that holds no whole number of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("podCIDR {range} holds no block of size /{block_size}; needed a podCIDR of /{block_size} or shorter")]
pub struct RangeError {
    /// The subnet.
    pub range: Ipv4Net,
    /// The pool's block size.
    pub block_size: u8,
}

/// The blocks of a node's subnet, in order.
pub fn blocks(range: Ipv4Net, block_size: u8) -> Result<Vec<Ipv4Net>, RangeError> {
    range
        .subnets(block_size)
        .map(Iterator::collect)
        .map_err(|_| RangeError { range, block_size })
}

/// The address on a node's tunnel device: the first of its subnet, as flannel has it.
pub fn tunnel_address(range: Ipv4Net) -> Ipv4Addr {
    range.network()
}

/// Why the objects of a node cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// The node has no IPv4 subnet.
    #[error("Node {node}: spec.podCIDRs is {found:?}, needed an IPv4 subnet")]
    NoRange {
        /// Name of the node.
        node: String,
        /// What the field says.
        found: Vec<String>,
    },
    /// flannel has not run on the node yet.
    #[error("Node {node}: no annotations {prefix}/…; flannel has not run on it")]
    NoAnnotations {
        /// Name of the node.
        node: String,
        /// Their prefix.
        prefix: String,
    },
    /// flannel's annotations are not understood.
    #[error("Node {node}: {source}")]
    Annotations {
        /// Name of the node.
        node: String,
        /// What is wrong with them.
        source: ParseError,
    },
    /// flannel's annotations are understood, and a tunnel cannot be built from them.
    #[error("Node {node}: {what} is {found}, needed {needed}")]
    Value {
        /// Name of the node.
        node: String,
        /// Which value.
        what: &'static str,
        /// What it is.
        found: String,
        /// What is needed.
        needed: &'static str,
    },
    /// The subnet and the pool's blocks do not fit.
    #[error("Node {node}: {source}")]
    Range {
        /// Name of the node.
        node: String,
        /// What does not fit.
        source: RangeError,
    },
}

/// What has to be there for a node before Calico's side can send packets to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeObjects {
    /// Its subnet.
    pub range: Ipv4Net,
    /// Its blocks, in order; the first one holds the tunnel address.
    pub blocks: Vec<Ipv4Net>,
    /// The tunnel address.
    pub tunnel: Allocation,
    /// Annotations to write on the Node; empty when they say the same already.
    pub annotations: BTreeMap<&'static str, String>,
}

impl NodeObjects {
    /// Allocations that belong into this block.
    pub fn allocations(&self, block: Ipv4Net) -> Vec<Allocation> {
        block
            .contains(&self.tunnel.address)
            .then(|| self.tunnel.clone())
            .into_iter()
            .collect()
    }
}

/// Everything that is built for one node.
pub fn of_node(node: &Node, settings: &Settings, block_size: u8) -> Result<NodeObjects, NodeError> {
    let name = || node.name.clone();
    let prefix = &settings.flannel_annotation_prefix.value;
    let range = node
        .pod_cidr()
        .ok_or_else(|| NodeError::NoRange {
            node: name(),
            found: node.pod_cidrs.clone(),
        })?
        .trunc();
    let flannel = NodeAnnotations::read(&node.annotations, prefix)
        .map_err(|source| NodeError::Annotations { node: name(), source })?
        .ok_or_else(|| NodeError::NoAnnotations {
            node: name(),
            prefix: prefix.clone(),
        })?;
    if flannel.vtep_mac.is_empty() {
        return Err(NodeError::Value {
            node: name(),
            what: "flannel's backend",
            found: flannel.backend,
            needed: "vxlan",
        });
    }
    let IpAddr::V4(address) = flannel.public_address else {
        return Err(NodeError::Value {
            node: name(),
            what: "flannel's public-ip",
            found: flannel.public_address.to_string(),
            needed: "an IPv4 address",
        });
    };
    let blocks = blocks(range, block_size).map_err(|source| NodeError::Range { node: name(), source })?;
    Ok(NodeObjects {
        range,
        blocks,
        tunnel: Allocation {
            address: tunnel_address(range),
            handle: tunnel_handle(&node.name),
            attributes: BTreeMap::from([
                ("node".to_owned(), node.name.clone()),
                ("type".to_owned(), "vxlanTunnelAddress".to_owned()),
            ]),
        },
        annotations: annotation_changes(
            &node.annotations,
            address,
            tunnel_address(range),
            &flannel.vtep_mac,
        ),
    })
}

/// The annotations that Felix reads off a Node, as far as they do not say the same already: calico-node writes the
/// address with the length of its subnet, which is the same address.
fn annotation_changes(
    found: &BTreeMap<String, String>,
    address: Ipv4Addr,
    tunnel: Ipv4Addr,
    mac: &str,
) -> BTreeMap<&'static str, String> {
    let same_address = |key: &str, address: Ipv4Addr| {
        found
            .get(key)
            .and_then(|text| text.split('/').next())
            .and_then(|text| text.parse().ok())
            == Some(address)
    };
    let mut changes = BTreeMap::new();
    if !same_address(ADDRESS_ANNOTATION, address) {
        changes.insert(ADDRESS_ANNOTATION, format!("{address}/32"));
    }
    if !same_address(TUNNEL_ADDRESS_ANNOTATION, tunnel) {
        changes.insert(TUNNEL_ADDRESS_ANNOTATION, tunnel.to_string());
    }
    if !found
        .get(TUNNEL_MAC_ANNOTATION)
        .is_some_and(|text| text.eq_ignore_ascii_case(mac))
    {
        changes.insert(TUNNEL_MAC_ANNOTATION, mac.to_owned());
    }
    changes
}
