//! Calico's IPAM on the objects in the API: pools, blocks, claims on blocks, handles. Each write is guarded by the
//! version that was read, and repeated from the start if another writer was faster.

pub mod block;
mod claim;
mod handle;
pub mod names;
mod pool;
mod release;

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use kube::Client;
use tracing::info;

use self::block::Owner;
use crate::datastore::types::{
    BlockAffinity, IPAMBlock, IPAMConfig, IPAMConfigSpec, IPAMHandle, IPPool, IPReservation,
};
use crate::datastore::{Store, Written};

pub use self::pool::{blocks as blocks_from, selects_node};

/// Number of attempts of a guarded write, as in Calico.
const TRIES: usize = 100;
/// Default maximum of blocks of a node, as in Calico.
const BLOCKS_PER_NODE: usize = 20;

/// The use of an address, in the words of a pool's `allowedUses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A pod.
    Workload,
    /// A tunnel device.
    Tunnel,
}

/// Access to the addresses for one node.
pub struct Ipam {
    client: Client,
    node: String,
    blocks: Store<IPAMBlock>,
    affinities: Store<BlockAffinity>,
    handles: Store<IPAMHandle>,
    pools: Store<IPPool>,
    reservations: Store<IPReservation>,
    configurations: Store<IPAMConfig>,
}

impl Ipam {
    /// The addresses of this node.
    pub fn new(client: &Client, node: &str) -> Self {
        Self {
            client: client.clone(),
            node: node.to_owned(),
            blocks: Store::new(client),
            affinities: Store::new(client),
            handles: Store::new(client),
            pools: Store::new(client),
            reservations: Store::new(client),
            configurations: Store::new(client),
        }
    }

    /// Assigns one address from the node's blocks, from a new block, or — unless affinity is strict — from another
    /// node's block. `requested` restricts the pools by name or range. The answer has the prefix length of the block,
    /// as in Calico.
    pub async fn assign_any(&self, owner: &Owner, purpose: Use, requested: &[String]) -> Result<Ipv4Net> {
        let rules = self.rules().await?;
        let reserved = self.reserved().await?;
        let namespace = owner.attributes.get("namespace").map(String::as_str);
        let choice = self.choose(purpose, requested, namespace).await?;
        let claimed = self.claimed().await?;
        self.release_unselected(&choice, &claimed).await;
        let pools = choice.usable;
        let own = claim::within(&claimed, &pools);
        for range in &own {
            // A claim that is not confirmed yet, or has lost its block, is claimed again.
            if !self.claim(*range).await? {
                continue;
            }
            if let Some(address) = self.assign_from(*range, owner, &reserved, true).await? {
                return Ok(address);
            }
        }
        let limit = match rules.max_blocks_per_host {
            None | Some(0) => BLOCKS_PER_NODE,
            Some(limit) => limit,
        };
        if own.len() >= limit {
            bail!(
                "assign an address: node {} has {} blocks, all full, and its limit is {limit}",
                self.node,
                own.len()
            );
        }
        if !rules.auto_allocate_blocks {
            bail!(
                "failed to find or claim a block: the {} blocks of node {} ({}) have no free address, and the \
                 IPAMConfig says autoAllocateBlocks false",
                own.len(),
                self.node,
                own.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            );
        }
        for _ in 0..TRIES {
            let Some(range) = self.free_range(&pools, &reserved).await? else {
                break;
            };
            if !self.claim(range).await? {
                continue;
            }
            if let Some(address) = self.assign_from(range, owner, &reserved, true).await? {
                return Ok(address);
            }
        }
        if !rules.strict_affinity {
            for range in self.ranges_in(&pools).await? {
                if let Some(address) = self.assign_from(range, owner, &reserved, false).await? {
                    info!(%address, "borrowed an address from another node's block");
                    return Ok(address);
                }
            }
        }
        bail!(
            "assign an address: no free one in the pools {} for node {} (strict affinity: {})",
            pools
                .iter()
                .map(|pool| pool.spec.cidr.as_str())
                .collect::<Vec<_>>()
                .join(", "),
            self.node,
            rules.strict_affinity
        )
    }

    /// Assigns exactly this address.
    pub async fn assign(&self, address: Ipv4Addr, owner: &Owner) -> Result<()> {
        let rules = self.rules().await?;
        let pools = self.enabled_pools().await?;
        let Some(range) = pool::block_of(&pools, address)? else {
            bail!("the provided IP address {address} is not in a configured pool");
        };
        for _ in 0..TRIES {
            let Some(mut block) = self.block(range).await? else {
                self.claim(range).await?;
                continue;
            };
            if rules.strict_affinity && block.spec.node() != Some(self.node.as_str()) {
                bail!(
                    "assign {address}: block {range} has affinity {:?}",
                    block.spec.affinity
                );
            }
            if !block.spec.assign(address, owner) {
                bail!(
                    "assign {address}: it is assigned to {:?}",
                    block.spec.owner(address)
                );
            }
            if self.store_assigned(range, &mut block, owner).await? {
                return Ok(());
            }
        }
        bail!("assign {address}: another writer was faster {TRIES} times")
    }

    /// Releases every address of a handle; returns their number.
    pub async fn release(&self, handle: &str) -> Result<usize> {
        let Some(found) = self.handles.get(&handle::object_name(handle)).await? else {
            return Ok(0);
        };
        let mut released = 0;
        for text in found.spec.block.keys() {
            let range: Ipv4Net = match text.parse() {
                Ok(range) => range,
                Err(_) => continue,
            };
            released += self.release_from(range, handle).await?;
        }
        Ok(released)
    }

    /// The holder of an address: the handle and the attributes; `None` if the address is free, or in no enabled pool.
    pub async fn holder(&self, address: Ipv4Addr) -> Result<Option<Owner>> {
        let pools = self.enabled_pools().await?;
        let Some(range) = pool::block_of(&pools, address)? else {
            return Ok(None);
        };
        let Some(block) = self.block(range).await? else {
            return Ok(None);
        };
        Ok(block.spec.owner(address).map(|attribute| Owner {
            handle: block::clean(attribute.handle_id.as_deref().unwrap_or_default()).to_owned(),
            attributes: attribute.secondary.clone().unwrap_or_default(),
        }))
    }

    /// A block. A block that another writer has marked as deleted and left is deleted now, as in Calico.
    async fn block(&self, range: Ipv4Net) -> Result<Option<IPAMBlock>> {
        match self.blocks.get(&names::cidr(range)).await? {
            Some(block) if block.spec.deleted => {
                // A conflict means that another writer changes it; in either case it does not belong to this node.
                self.blocks.delete(&block).await?;
                Ok(None)
            }
            found => Ok(found),
        }
    }

    async fn assign_from(
        &self,
        range: Ipv4Net,
        owner: &Owner,
        reserved: &[Ipv4Net],
        own: bool,
    ) -> Result<Option<Ipv4Net>> {
        for _ in 0..TRIES {
            let Some(mut block) = self.block(range).await? else {
                return Ok(None);
            };
            if (own && block.spec.node() != Some(self.node.as_str())) || block.spec.free(reserved) == 0 {
                return Ok(None);
            }
            let Some(address) = block.spec.assign_any(owner, reserved) else {
                return Ok(None);
            };
            if self.store_assigned(range, &mut block, owner).await? {
                return Ok(Some(Ipv4Net::new(address, range.prefix_len())?));
            }
        }
        bail!("assign an address of block {range}: another writer was faster {TRIES} times")
    }

    /// Stores a block after an assignment. The handle is counted first: a count that is too high is harmless, a count
    /// that is too low leaks the address.
    async fn store_assigned(&self, range: Ipv4Net, block: &mut IPAMBlock, owner: &Owner) -> Result<bool> {
        self.count(&owner.handle, range, 1).await?;
        block.spec.sequence_number += 1;
        match self.blocks.replace(block).await {
            Ok(Written::Done(_)) => Ok(true),
            Ok(Written::Conflict) => {
                self.count(&owner.handle, range, -1).await?;
                Ok(false)
            }
            Err(error) => {
                self.count(&owner.handle, range, -1)
                    .await
                    .context("after a block could not be stored")?;
                Err(error)
            }
        }
    }

    async fn release_from(&self, range: Ipv4Net, handle: &str) -> Result<usize> {
        for _ in 0..TRIES {
            let Some(mut block) = self.block(range).await? else {
                self.count(handle, range, i64::MIN).await?;
                return Ok(0);
            };
            let released = block.spec.release(handle);
            if released == 0 {
                self.count(handle, range, i64::MIN).await?;
                return Ok(0);
            }
            let conflict = if block.spec.is_empty() && block.spec.affinity.is_none() {
                matches!(self.blocks.delete(&block).await?, Written::Conflict)
            } else {
                block.spec.sequence_number += 1;
                matches!(self.blocks.replace(&block).await?, Written::Conflict)
            };
            if !conflict {
                self.count(handle, range, -i64::try_from(released)?).await?;
                if let Some(node) = block.spec.node() {
                    self.release_where_unselected(range, node).await;
                }
                return Ok(released);
            }
        }
        bail!("release the addresses of {handle} in block {range}: another writer was faster {TRIES} times")
    }

    /// The assignment rules; if there are none, the default ones are stored.
    async fn rules(&self) -> Result<IPAMConfigSpec> {
        if let Some(found) = self.configurations.get("default").await? {
            return Ok(found.spec);
        }
        let rules = IPAMConfigSpec {
            auto_allocate_blocks: true,
            max_blocks_per_host: Some(0),
            ..IPAMConfigSpec::default()
        };
        match self
            .configurations
            .create(&IPAMConfig::new("default", rules))
            .await?
        {
            Written::Done(stored) => Ok(stored.spec),
            Written::Conflict => {
                let found = self.configurations.get("default").await?;
                Ok(found
                    .context(
                        "read IPAMConfig default, which another writer has just created: it does not exist",
                    )?
                    .spec)
            }
        }
    }

    async fn reserved(&self) -> Result<Vec<Ipv4Net>> {
        let found: Vec<IPReservation> = self.reservations.list("").await?;
        let texts = found
            .iter()
            .flat_map(|reservation| &reservation.spec.reserved_cidrs);
        Ok(texts.filter_map(|text| pool::range(text)).collect())
    }
}
