//! The IP pool that contains the blocks of the nodes.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde_json::{Value, json};
use thiserror::Error;

use crate::settings::{PodNetwork, Settings};
use calico::{API_VERSION, family};
use engine::cluster::IpPool;

/// The IP pool that contains the blocks of the nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// The name.
    pub name: String,
    /// The range, which is flannel's network.
    pub range: IpNet,
    /// The prefix length of the blocks.
    pub block_size: u8,
    /// The object to create; `None` if the pool exists.
    pub create: Option<Value>,
}

/// A conflict with an existing pool: the value found and the value needed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("IPPool {name}: {field} is {found}, needed {needed}")]
pub struct PoolConflict {
    /// Name of the pool.
    pub name: String,
    /// The field.
    pub field: &'static str,
    /// The value of the field.
    pub found: String,
    /// The value that is needed.
    pub needed: String,
}

/// Block size of a new pool: the subnet of a node must contain whole blocks.
pub fn block_size(network: &PodNetwork) -> u8 {
    network.block_size.max(network.subnet_length)
}

/// The pools of all networks of flannel, in their order.
///
/// # Errors
///
/// An existing pool is in conflict with a network of flannel, as in [`pool`].
pub fn pools(settings: &Settings, existing: &BTreeMap<String, IpPool>) -> Result<Vec<Pool>, PoolConflict> {
    settings
        .pod_networks()
        .iter()
        .map(|network| pool(settings, network, existing))
        .collect()
}

/// The existing pool of this network of flannel, or the pool to create.
///
/// A pool with the same range is used whatever its name is. Any other pool that overlaps the range, or that has the name of the
/// pool to create, is a conflict.
///
/// # Errors
///
/// A pool overlaps the range or has the name of the pool to create, or the pool of the range has a field that breaks the traffic
/// between old and new nodes.
pub fn pool(
    settings: &Settings,
    network: &PodNetwork,
    existing: &BTreeMap<String, IpPool>,
) -> Result<Pool, PoolConflict> {
    let range = network.range;
    let new_name = family::of(&range).pool;
    let same_range = existing.values().find(|pool| pool.cidr.trunc() == range);
    let conflicting = existing.values().find(|pool| {
        let overlaps = pool.cidr.contains(&range) || range.contains(&pool.cidr);
        pool.cidr.trunc() != range && (overlaps || (same_range.is_none() && pool.name == new_name))
    });
    if let Some(pool) = conflicting {
        return Err(PoolConflict {
            name: pool.name.clone(),
            field: "cidr",
            found: pool.cidr.to_string(),
            needed: format!("{range}, which is flannel's network, or a range that does not overlap it"),
        });
    }
    let Some(same_range) = same_range else {
        let block_size = block_size(network);
        let create = json!({
            "apiVersion": API_VERSION,
            "kind": "IPPool",
            "metadata": { "name": new_name },
            "spec": {
                "cidr": range.to_string(),
                "blockSize": block_size,
                "ipipMode": "Never",
                "vxlanMode": "Always",
                "natOutgoing": settings.flannel_ip_masquerade.value,
                "nodeSelector": "all()",
                "allowedUses": ["Workload", "Tunnel"],
            },
        });
        return Ok(Pool {
            name: new_name.to_owned(),
            range,
            block_size,
            create: Some(create),
        });
    };
    match pool_conflicts(settings, network, same_range).into_iter().next() {
        Some(conflict) => Err(conflict),
        None => Ok(Pool {
            name: same_range.name.clone(),
            range,
            block_size: same_range.block_size,
            create: None,
        }),
    }
}

/// All fields of a pool of flannel's network that would break the traffic between old and new nodes.
pub fn pool_conflicts(settings: &Settings, network: &PodNetwork, pool: &IpPool) -> Vec<PoolConflict> {
    let (least, most) = match network.range {
        IpNet::V4(_) => (network.subnet_length, 32),
        // Only the first blocks of the subnet belong to the node, and the block size determines them.
        IpNet::V6(_) => (block_size(network), block_size(network)),
    };
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
            format!(
                "{}, equal to flannel's masquerade setting",
                settings.flannel_ip_masquerade.value
            ),
        ),
        (
            "blockSize",
            (least..=most).contains(&pool.block_size),
            pool.block_size.to_string(),
            if least == most {
                least.to_string()
            } else {
                format!("from {least}, the length of the subnet of a node, to {most}")
            },
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
