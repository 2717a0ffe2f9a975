//! The address of the node's tunnel device: kept if the IPAM has it for this node, otherwise a new one.

pub mod kubernetes;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::Result;
use serde_json::Value;
use tracing::{error, info, warn};

use crate::datastore::types::IPPoolSpec;
use crate::ipam::block::Owner;
use crate::ipam::{names, selects_node};

/// A Node from the datastore.
pub struct Read<Version> {
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The address of its tunnel device.
    pub address: Option<Ipv4Addr>,
    /// The version for the next write.
    pub version: Version,
}

/// Datastore of Nodes, pools and addresses.
pub trait Ledger {
    /// The version of a Node, for its next write.
    type Version;
    /// This node's Node.
    async fn node(&self) -> Result<Read<Self::Version>>;
    /// Every pool.
    async fn pools(&self) -> Result<Vec<IPPoolSpec>>;
    /// The holder of an address of an enabled pool.
    async fn holder(&self, address: Ipv4Addr) -> Result<Option<Owner>>;
    /// Releases every address of a handle.
    async fn release(&self, handle: &str) -> Result<()>;
    /// Assigns an address of these pools.
    async fn assign(&self, owner: &Owner, requested: &[String]) -> Result<Ipv4Addr>;
    /// Writes the address into the Node, or removes it.
    async fn note(&self, version: Self::Version, address: Option<Ipv4Addr>) -> Result<()>;
}

/// Corrects the address.
pub async fn reconcile(ledger: &impl Ledger, name: &str) -> Result<()> {
    let node = ledger.node().await?;
    let pools = ledger.pools().await?;
    let mut usable: Vec<&IPPoolSpec> = Vec::new();
    for pool in &pools {
        // As in Calico's own allocateip: a pool that does not select the node gives no tunnel an address.
        if fits(pool) && selects_node(pool, &node.labels)? {
            usable.push(pool);
        }
    }
    let handle = names::tunnel_handle(name);
    if usable.is_empty() {
        ledger.release(&handle).await?;
        if node.address.is_some() {
            info!("no enabled pool with VXLAN selects the node: the tunnel's address is released");
            ledger.note(node.version, None).await?;
        }
        return Ok(());
    }
    if let Some(address) = node.address {
        let in_pool = usable
            .iter()
            .any(|pool| pool.range().is_some_and(|range| range.contains(&address)));
        match ledger.holder(address).await? {
            Some(holder) if is_tunnel(&holder, name) && in_pool => return Ok(()),
            Some(holder) if !is_tunnel(&holder, name) => {
                warn!(%address, ?holder, "current address is occupied, assign a new one");
            }
            _ => {
                info!(%address, "current address is not assigned, or not in a valid pool: assign a new one");
                ledger.release(&handle).await?;
            }
        }
    } else {
        ledger.release(&handle).await?;
    }
    let owner = Owner {
        handle,
        attributes: BTreeMap::from([
            ("node".to_owned(), name.to_owned()),
            ("type".to_owned(), "vxlanTunnelAddress".to_owned()),
        ]),
    };
    let requested: Vec<String> = usable.iter().map(|pool| pool.cidr.clone()).collect();
    let address = ledger.assign(&owner, &requested).await?;
    if let Err(failure) = ledger.note(node.version, Some(address)).await {
        // As in Calico: an address that no Node has is released.
        if let Err(second) = ledger.release(&owner.handle).await {
            error!("release {address}: {second:#}");
        }
        return Err(failure);
    }
    info!(%address, "assigned a new tunnel address");
    Ok(())
}

fn fits(pool: &IPPoolSpec) -> bool {
    let tunnel = pool
        .allowed_uses
        .as_ref()
        .is_none_or(|uses| uses.is_empty() || uses.iter().any(|it| it == "Tunnel"));
    !pool.disabled && pool.is_vxlan() && tunnel
}

fn is_tunnel(holder: &Owner, node: &str) -> bool {
    let attribute = |name: &str| holder.attributes.get(name).map(String::as_str);
    attribute("type") == Some("vxlanTunnelAddress") && attribute("node") == Some(node)
}

/// The changes that make Calico check the address again: **not another node selector of a pool** (v3.31.7, measured),
/// and no change of the Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched(Vec<Vec<Value>>);

impl Watched {
    /// The relevant fields of these pools.
    pub fn of(pools: &[IPPoolSpec]) -> Self {
        let watched = |pool: &IPPoolSpec| {
            vec![
                pool.cidr.clone().into(),
                pool.ipip_mode.clone().into(),
                pool.vxlan_mode.clone().into(),
                pool.nat_outgoing.into(),
                pool.disabled.into(),
                pool.other.get("disableBGPExport").cloned().unwrap_or_default(),
                pool.assignment_mode.clone().into(),
                // The order of a list is relevant.
                pool.allowed_uses.clone().into(),
            ]
        };
        Self(pools.iter().map(watched).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_pool_selector_causes_no_check_and_a_changed_order_of_uses_does() {
        let pool = IPPoolSpec {
            cidr: "10.244.0.0/16".to_owned(),
            allowed_uses: Some(vec!["Workload".to_owned(), "Tunnel".to_owned()]),
            ..IPPoolSpec::default()
        };
        let seen = Watched::of(std::slice::from_ref(&pool));
        let mut other = pool.clone();
        other.node_selector = Some("!all()".to_owned());
        assert_eq!(Watched::of(&[other.clone()]), seen);
        other.allowed_uses = Some(vec!["Tunnel".to_owned(), "Workload".to_owned()]);
        assert_ne!(Watched::of(&[other]), seen);
        assert_ne!(Watched::of(&[pool.clone(), pool]), seen);
    }
}
