//! The pool of addresses that the nodes' blocks are cut from.

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde_json::{Value, json};
use thiserror::Error;

use super::family;
use crate::settings::{PodNetwork, Settings};
use calico::API_VERSION;
use engine::cluster::IpPool;

/// The pool that the nodes' blocks are cut from.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Its range, flannel's network.
    pub range: IpNet,
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
pub fn block_size(network: &PodNetwork) -> u8 {
    network.block_size.max(network.subnet_length)
}

/// The pools of all of flannel's networks, in their order.
pub fn pools(settings: &Settings, existing: &BTreeMap<String, IpPool>) -> Result<Vec<Pool>, PoolConflict> {
    settings
        .pod_networks()
        .iter()
        .map(|network| pool(settings, network, existing))
        .collect()
}

/// The existing pool that covers this network of flannel's, or the one to create.
///
/// A pool of the very same range is taken over whatever its name; any other that overlaps it, or has the name of
/// the one to create, is a conflict.
pub fn pool(
    settings: &Settings,
    network: &PodNetwork,
    existing: &BTreeMap<String, IpPool>,
) -> Result<Pool, PoolConflict> {
    let range = network.range;
    let new_name = family::of(&range).pool;
    let ours = existing.values().find(|pool| pool.cidr.trunc() == range);
    let in_the_way = existing.values().find(|pool| {
        let overlaps = pool.cidr.contains(&range) || range.contains(&pool.cidr);
        pool.cidr.trunc() != range && (overlaps || (ours.is_none() && pool.name == new_name))
    });
    if let Some(pool) = in_the_way {
        return Err(PoolConflict {
            name: pool.name.clone(),
            field: "cidr",
            found: pool.cidr.to_string(),
            needed: format!("{range}, which is flannel's network, or a range apart from it"),
        });
    }
    let Some(ours) = ours else {
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
    match pool_conflicts(settings, network, ours).into_iter().next() {
        Some(conflict) => Err(conflict),
        None => Ok(Pool {
            name: ours.name.clone(),
            range,
            block_size: ours.block_size,
            create: None,
        }),
    }
}

/// Every field of a pool of flannel's network that would break the traffic between old and new nodes.
pub fn pool_conflicts(settings: &Settings, network: &PodNetwork, pool: &IpPool) -> Vec<PoolConflict> {
    let (least, most) = match network.range {
        IpNet::V4(_) => (network.subnet_length, 32),
        // Which blocks are a node's is known by their size: not all of its subnet are.
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
            format!("{}, as flannel masquerades", settings.flannel_ip_masquerade.value),
        ),
        (
            "blockSize",
            (least..=most).contains(&pool.block_size),
            pool.block_size.to_string(),
            if least == most {
                least.to_string()
            } else {
                format!("from {least}, the length of a node's subnet, to {most}")
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
