//! The objects that one node needs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use super::pool::Pool;
use crate::flannel::{NodeAnnotations, ParseError};
use crate::settings::Settings;
use calico::family::{self, Family};
use calico::{Allocation, tunnel_handle};
use engine::cluster::Node;

/// The subnet of a node does not contain a whole number of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("podCIDR {range} holds no block of size /{block_size}; needed a podCIDR of /{block_size} or shorter")]
pub struct RangeError {
    /// The subnet.
    pub range: IpNet,
    /// The pool's block size.
    pub block_size: u8,
}

/// Number of blocks of an IPv6 subnet that belong to its node from the start. A /64 has too many blocks to claim all, and 4
/// blocks have 256 addresses, like an IPv4 /24.
const IPV6_BLOCKS: usize = 4;

/// The blocks of the subnet of a node that are claimed for the node, in order: for IPv4 all, for IPv6 the first ones.
///
/// # Errors
///
/// The subnet is smaller than a block, or the block size is not a prefix length of the family.
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

/// The address of the tunnel device of a node: the first of the subnet, as in flannel.
pub fn tunnel_address(range: IpNet) -> IpAddr {
    range.network()
}

/// Why the objects of a node cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeError {
    /// The node has no subnet of an address family.
    #[error("Node {node}: spec.podCIDRs is {found:?}, needed an {family} subnet")]
    NoRange {
        /// Name of the node.
        node: String,
        /// The value of the field.
        found: Vec<String>,
        /// The address family that is missing.
        family: &'static str,
    },
    /// flannel has not run on the node yet.
    #[error("Node {node}: no annotations {prefix}/…; flannel has not run on this node")]
    NoAnnotations {
        /// Name of the node.
        node: String,
        /// The prefix of the annotations.
        prefix: String,
    },
    /// flannel's annotations cannot be parsed.
    #[error("Node {node}: {source}")]
    Annotations {
        /// Name of the node.
        node: String,
        /// The error of the parser.
        source: ParseError,
    },
    /// flannel's annotations are valid, but do not describe a tunnel that the migration supports.
    #[error("Node {node}: {what} is {found}, needed {needed}")]
    Value {
        /// Name of the node.
        node: String,
        /// The name of the value.
        what: &'static str,
        /// The value found.
        found: String,
        /// The value needed.
        needed: &'static str,
    },
    /// The subnet does not fit the block size of the pool.
    #[error("Node {node}: {source}")]
    Range {
        /// Name of the node.
        node: String,
        /// The subnet and the block size.
        source: RangeError,
    },
}

/// The objects that a node needs before nodes on Calico can send packets to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeObjects {
    /// The subnets of the node, one of each address family.
    pub ranges: Vec<NodeRange>,
    /// Annotations to write on the Node; empty if the Node has them already.
    pub annotations: BTreeMap<&'static str, String>,
}

/// The subnet of a node in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRange {
    /// The subnet.
    pub range: IpNet,
    /// The blocks, in order. The first block contains the tunnel address.
    pub blocks: Vec<IpNet>,
    /// The tunnel address.
    pub tunnel: Allocation,
}

impl NodeObjects {
    /// All blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = IpNet> {
        self.ranges.iter().flat_map(|range| range.blocks.iter().copied())
    }

    /// The allocations in this block.
    pub fn allocations(&self, block: IpNet) -> Vec<Allocation> {
        self.ranges
            .iter()
            .map(|range| &range.tunnel)
            .filter(|tunnel| block.contains(&tunnel.address))
            .cloned()
            .collect()
    }
}

/// Builds the objects for one node, in these pools.
///
/// # Errors
///
/// The Node has no subnet in the range of a pool, or flannel's annotations are missing, malformed, or of another backend than
/// vxlan.
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

/// The tunnel end of a node by flannel's annotations: its address and its MAC address. An error has the name of the value, the
/// value found and the value needed.
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
            "the node's IPv6 address, which flannel takes from the interface of the default route",
        )),
    }
}

/// The annotations for Felix that are missing or different. calico-node writes the address with a prefix length, which counts as
/// the same address.
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
