//! What has to be there for one node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use super::family::{self, Family};
use super::pool::Pool;
use super::{Allocation, tunnel_handle};
use crate::flannel::{NodeAnnotations, ParseError};
use crate::settings::Settings;
use engine::cluster::Node;

/// A node's subnet that holds no whole number of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("podCIDR {range} holds no block of size /{block_size}; needed a podCIDR of /{block_size} or shorter")]
pub struct RangeError {
    /// The subnet.
    pub range: IpNet,
    /// The pool's block size.
    pub block_size: u8,
}

/// So many blocks of an IPv6 subnet are a node's from the start: nobody can claim all of a /64, and 256 addresses are as many
/// as a /24 has.
const IPV6_BLOCKS: usize = 4;

/// The blocks of a node's subnet that are claimed for it, in order: in IPv4 all, in IPv6 the first ones.
pub fn blocks(range: IpNet, block_size: u8) -> Result<Vec<IpNet>, RangeError> {
    let error = |_| RangeError { range, block_size };
    Ok(match range {
        IpNet::V4(range) => range.subnets(block_size).map_err(error)?.map(IpNet::V4).collect(),
        IpNet::V6(range) => range
            .subnets(block_size)
            .map_err(error)?
            .take(IPV6_BLOCKS)
            .map(IpNet::V6)
            .collect(),
    })
}

/// The address on a node's tunnel device: the first of its subnet, as flannel has it.
pub fn tunnel_address(range: IpNet) -> IpAddr {
    range.network()
}

/// Why the objects of a node cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// The node has no subnet of a family.
    #[error("Node {node}: spec.podCIDRs is {found:?}, needed an {family} subnet")]
    NoRange {
        /// Name of the node.
        node: String,
        /// What the field says.
        found: Vec<String>,
        /// The family that is missing.
        family: &'static str,
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
    /// Its subnets, one of each family.
    pub ranges: Vec<NodeRange>,
    /// Annotations to write on the Node; empty when they say the same already.
    pub annotations: BTreeMap<&'static str, String>,
}

/// A node's subnet of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRange {
    /// The subnet.
    pub range: IpNet,
    /// Its blocks, in order; the first one holds the tunnel address.
    pub blocks: Vec<IpNet>,
    /// The tunnel address.
    pub tunnel: Allocation,
}

impl NodeObjects {
    /// Every block, in order.
    pub fn blocks(&self) -> impl Iterator<Item = IpNet> {
        self.ranges.iter().flat_map(|range| range.blocks.iter().copied())
    }

    /// Allocations that belong into this block.
    pub fn allocations(&self, block: IpNet) -> Vec<Allocation> {
        self.ranges
            .iter()
            .map(|range| &range.tunnel)
            .filter(|tunnel| block.contains(&tunnel.address))
            .cloned()
            .collect()
    }
}

/// Everything that is built for one node, in the blocks of these pools.
pub fn of_node(node: &Node, settings: &Settings, pools: &[Pool]) -> Result<NodeObjects, NodeError> {
    let name = || node.name.clone();
    let prefix = &settings.flannel_annotation_prefix.value;
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
    let mut objects = NodeObjects {
        ranges: Vec::new(),
        annotations: BTreeMap::new(),
    };
    for pool in pools {
        let family = family::of(&pool.range);
        let range = node
            .range_of(&pool.range)
            .ok_or_else(|| NodeError::NoRange {
                node: name(),
                found: node.pod_cidrs.clone(),
                family: family.name,
            })?
            .trunc();
        let (address, mac) =
            tunnel_end(&flannel, &pool.range).map_err(|(what, found, needed)| NodeError::Value {
                node: name(),
                what,
                found,
                needed,
            })?;
        let tunnel = tunnel_address(range);
        objects.annotations.extend(annotation_changes(
            family,
            &node.annotations,
            address,
            tunnel,
            mac,
        ));
        objects.ranges.push(NodeRange {
            range,
            blocks: blocks(range, pool.block_size)
                .map_err(|source| NodeError::Range { node: name(), source })?,
            tunnel: Allocation {
                address: tunnel,
                handle: tunnel_handle(family, &node.name),
                attributes: BTreeMap::from([
                    ("node".to_owned(), node.name.clone()),
                    ("type".to_owned(), family.tunnel_type.to_owned()),
                ]),
            },
        });
    }
    Ok(objects)
}

/// A node's end of the tunnel by flannel's annotations: where packets are sent to, and the hardware address behind it. An error
/// says what is wrong, what it is, and what is needed.
fn tunnel_end<'flannel>(
    flannel: &'flannel NodeAnnotations,
    network: &IpNet,
) -> Result<(IpAddr, &'flannel str), (&'static str, String, &'static str)> {
    match (network, &flannel.ipv6) {
        (IpNet::V4(_), _) if flannel.public_address.is_ipv4() => {
            Ok((flannel.public_address, &flannel.vtep_mac))
        }
        (IpNet::V4(_), _) => Err((
            "flannel's public-ip",
            flannel.public_address.to_string(),
            "an IPv4 address",
        )),
        (IpNet::V6(_), Some(ipv6)) => Ok((ipv6.public_address.into(), &ipv6.vtep_mac)),
        (IpNet::V6(_), None) => Err((
            "flannel's public-ipv6",
            "missing".to_owned(),
            "the node's IPv6 address: flannel has it from the interface of the default route",
        )),
    }
}

/// The annotations that Felix reads off a Node, as far as they do not say the same already: calico-node writes the
/// address with the length of its subnet, which is the same address.
fn annotation_changes(
    family: &Family,
    found: &BTreeMap<String, String>,
    address: IpAddr,
    tunnel: IpAddr,
    mac: &str,
) -> BTreeMap<&'static str, String> {
    let same_address = |key: &str, address: IpAddr| {
        found
            .get(key)
            .and_then(|text| text.split('/').next())
            .and_then(|text| text.parse().ok())
            == Some(address)
    };
    let mut changes = BTreeMap::new();
    if !same_address(family.address_annotation, address) {
        changes.insert(family.address_annotation, IpNet::from(address).to_string());
    }
    if !same_address(family.tunnel_address_annotation, tunnel) {
        changes.insert(family.tunnel_address_annotation, tunnel.to_string());
    }
    if !found
        .get(family.tunnel_mac_annotation)
        .is_some_and(|text| text.eq_ignore_ascii_case(mac))
    {
        changes.insert(family.tunnel_mac_annotation, mac.to_owned());
    }
    changes
}
