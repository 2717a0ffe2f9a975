//! Calico's objects as the migration writes them: pool, Felix configuration, blocks, handles, annotations.
//!
//! Each kind has a builder for an object that is not there yet, and a `…_change` that says what to patch in one
//! that is: only our own fields, compared as values, `None` when nothing has to be written.

mod block;
mod names;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::cluster::{IpPool, Node};
use super::settings::Settings;
use crate::flannel::{NodeAnnotations, ParseError};

pub use block::{Allocation, BlockConflict, block, block_change};
pub use names::{affinity_name, block_name, handle_name, hostname_hash, tunnel_handle};

/// Group and version of everything that is built here.
pub const API_VERSION: &str = "crd.projectcalico.org/v1";
/// Name of the pool that is created when none covers flannel's network.
pub const IP_POOL: &str = "default-ipv4-ippool";
/// Name of the one `FelixConfiguration` and of the one `IPAMConfig` that count for every node.
pub const DEFAULT: &str = "default";

/// Node annotation: the address that other nodes send tunnel packets to.
pub const ADDRESS_ANNOTATION: &str = "projectcalico.org/IPv4Address";
/// Node annotation: the address on the tunnel device.
pub const TUNNEL_ADDRESS_ANNOTATION: &str = "projectcalico.org/IPv4VXLANTunnelAddr";
/// Node annotation: the hardware address of the tunnel device.
pub const TUNNEL_MAC_ANNOTATION: &str = "projectcalico.org/VXLANTunnelMACAddr";

/// The pool that the nodes' blocks are cut from.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Block size.
    pub block_size: u8,
    /// The object to create; `None` when the pool is there already.
    pub create: Option<Value>,
}

/// A pool that is in the way: what it says and what it has to say.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("IPPool {name}: {field} is {found}, needed {needed}")]
pub struct PoolConflict {
    /// Name of the pool.
    pub name: String,
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// The value that is needed.
    pub needed: String,
}

/// Block size of a new pool: a node's subnet must hold whole blocks.
pub fn block_size(settings: &Settings) -> u8 {
    settings
        .ip_pool_block_size
        .value
        .max(settings.flannel_subnet_length.value)
}

/// The existing pool that covers flannel's network, or the one to create.
///
/// A pool of the very same range is taken over whatever its name; any other that overlaps it, or has the name of
/// the one to create, is a conflict.
pub fn pool(settings: &Settings, existing: &BTreeMap<String, IpPool>) -> Result<Pool, PoolConflict> {
    let network = settings.flannel_network.value;
    let ours = existing
        .values()
        .find(|pool| pool.cidr.trunc() == IpNet::V4(network));
    let in_the_way = existing.values().find(|pool| {
        let overlaps = pool.cidr.contains(&IpNet::V4(network)) || IpNet::V4(network).contains(&pool.cidr);
        pool.cidr.trunc() != IpNet::V4(network) && (overlaps || (ours.is_none() && pool.name == IP_POOL))
    });
    if let Some(pool) = in_the_way {
        return Err(PoolConflict {
            name: pool.name.clone(),
            field: "cidr",
            found: pool.cidr.to_string(),
            needed: format!("{network}, which is flannel's network, or a range apart from it"),
        });
    }
    let Some(ours) = ours else {
        let block_size = block_size(settings);
        let create = json!({
            "apiVersion": API_VERSION,
            "kind": "IPPool",
            "metadata": { "name": IP_POOL },
            "spec": {
                "cidr": network.to_string(),
                "blockSize": block_size,
                "ipipMode": "Never",
                "vxlanMode": "Always",
                "natOutgoing": settings.flannel_ip_masquerade.value,
                "nodeSelector": "all()",
                "allowedUses": ["Workload", "Tunnel"],
            },
        });
        return Ok(Pool {
            name: IP_POOL.to_owned(),
            block_size,
            create: Some(create),
        });
    };
    match pool_conflicts(settings, ours).into_iter().next() {
        Some(conflict) => Err(conflict),
        None => Ok(Pool {
            name: ours.name.clone(),
            block_size: ours.block_size,
            create: None,
        }),
    }
}

/// Every field of a pool of flannel's network that would break the traffic between old and new nodes.
pub fn pool_conflicts(settings: &Settings, pool: &IpPool) -> Vec<PoolConflict> {
    let least = settings.flannel_subnet_length.value;
    let fields = [
        (
            "vxlanMode",
            pool.vxlan_mode == "Always",
            pool.vxlan_mode.clone(),
            "Always".to_owned(),
        ),
        (
            "ipipMode",
            pool.ipip_mode == "Never",
            pool.ipip_mode.clone(),
            "Never".to_owned(),
        ),
        (
            "natOutgoing",
            pool.nat_outgoing == settings.flannel_ip_masquerade.value,
            pool.nat_outgoing.to_string(),
            format!("{}, as flannel masquerades", settings.flannel_ip_masquerade.value),
        ),
        (
            "blockSize",
            (least..=32).contains(&pool.block_size),
            pool.block_size.to_string(),
            format!("from {least}, the length of a node's subnet, to 32"),
        ),
        (
            "disabled",
            !pool.disabled,
            pool.disabled.to_string(),
            "false".to_owned(),
        ),
        (
            "nodeSelector",
            pool.node_selector == "all()",
            format!("{:?}", pool.node_selector),
            "all()".to_owned(),
        ),
    ];
    fields
        .into_iter()
        .filter(|(_, holds, _, _)| !holds)
        .map(|(field, _, found, needed)| PoolConflict {
            name: pool.name.clone(),
            field,
            found,
            needed,
        })
        .collect()
}

fn felix_spec(settings: &Settings) -> Map<String, Value> {
    Map::from_iter([
        ("vxlanVNI".to_owned(), settings.flannel_vni.value.into()),
        ("vxlanPort".to_owned(), settings.flannel_port.value.into()),
        ("vxlanMTU".to_owned(), settings.flannel_mtu.value.into()),
    ])
}

/// `FelixConfiguration default`: Calico's device is like flannel's, so that old and new nodes understand each other.
pub fn felix_configuration(settings: &Settings) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "FelixConfiguration",
        "metadata": { "name": DEFAULT },
        "spec": felix_spec(settings),
    })
}

/// What to patch in the spec of a `FelixConfiguration default` that is there.
///
/// `vxlanEnabled: false`, which Calico's own controller leaves behind when it dies, is cleared: Felix then derives
/// it from the pool. It is never set to false: that cuts every node that is on Calico already.
pub fn felix_configuration_change(settings: &Settings, spec: &Value) -> Option<Value> {
    let mut change = differing(spec, felix_spec(settings));
    if spec.get("vxlanEnabled") == Some(&Value::Bool(false)) {
        change.insert("vxlanEnabled".to_owned(), Value::Null);
    }
    (!change.is_empty()).then_some(Value::Object(change))
}

fn ipam_spec() -> Map<String, Value> {
    Map::from_iter([
        ("strictAffinity".to_owned(), true.into()),
        ("autoAllocateBlocks".to_owned(), false.into()),
    ])
}

/// `IPAMConfig default`: new pods get addresses inside their node's podCIDR only, since flannel's nodes have no
/// route to any other.
pub fn ipam_config() -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "IPAMConfig",
        "metadata": { "name": DEFAULT },
        "spec": ipam_spec(),
    })
}

/// What to patch in the spec of an `IPAMConfig default` that is there.
pub fn ipam_config_change(spec: &Value) -> Option<Value> {
    let change = differing(spec, ipam_spec());
    (!change.is_empty()).then_some(Value::Object(change))
}

/// The wanted fields that are not there with that value.
fn differing(spec: &Value, wanted: Map<String, Value>) -> Map<String, Value> {
    wanted
        .into_iter()
        .filter(|(key, value)| spec.get(key) != Some(value))
        .collect()
}

/// Where a claim of a node on a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// Announced: the block is written next.
    Pending,
    /// The block is there and has this owner.
    Confirmed,
}

impl ClaimState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Confirmed => "confirmed",
        }
    }
}

/// The `BlockAffinity` of a node's claim on a block. Calico's order is: pending, then the block, then confirmed.
pub fn block_affinity(node: &str, block: Ipv4Net, state: ClaimState) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "BlockAffinity",
        "metadata": {
            "name": affinity_name(node, block),
            "labels": affinity_labels(node),
        },
        "spec": {
            "state": state.as_str(),
            "node": node,
            "type": "host",
            "cidr": block.to_string(),
            // A text in Calico's schema, not a truth value.
            "deleted": "false",
        },
    })
}

/// Labels by which Calico's readers select a node's claims.
pub fn affinity_labels(node: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("projectcalico.org/affinity-type", "host".to_owned()),
        ("projectcalico.org/ip-version", "4".to_owned()),
        ("projectcalico.org/hostname-hash", hostname_hash(node)),
    ])
}

/// What to patch in the spec of a `BlockAffinity` that is there. A confirmed claim is not made pending again.
pub fn block_affinity_change(spec: &Value, state: ClaimState) -> Option<Value> {
    let found = spec.get("state").and_then(Value::as_str);
    let settled = found == Some(ClaimState::Confirmed.as_str()) || found == Some(state.as_str());
    (!settled).then(|| json!({ "state": state.as_str() }))
}

/// The `IPAMHandle` by which addresses are released together.
pub fn handle(handle: &str, block: Ipv4Net, addresses: u32) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "IPAMHandle",
        "metadata": { "name": handle_name(handle) },
        "spec": {
            "handleID": handle,
            "block": { block.to_string(): addresses },
            "deleted": false,
        },
    })
}

/// What to patch in the spec of an `IPAMHandle` that is there.
pub fn handle_change(spec: &Value, block: Ipv4Net, addresses: u32) -> Option<Value> {
    let counted = spec.get("block").and_then(|blocks| blocks.get(block.to_string()));
    (counted != Some(&Value::from(addresses))).then(|| json!({ "block": { block.to_string(): addresses } }))
}

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

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
