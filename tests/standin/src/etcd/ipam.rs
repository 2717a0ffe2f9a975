//! Calico's IPAM on its keys in etcd, of v2.6 or v3.8: the same steps, other values. Each write is guarded by the
//! version that was read, and repeated from the start if another writer was faster.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use serde::Deserialize;
use tracing::info;

use super::block::{self, Claim, Handle};
use super::choice::Choice;
use super::store::{Entry, Store};
use super::{keys, release};
use crate::datastore::types::IPAMBlockSpec;
use crate::ipam::block::{Owner, affinity, new};
use crate::ipam::blocks_from;
use crate::version::Generation;

/// Number of attempts of a guarded write, as in Calico.
const TRIES: usize = 100;

/// Rules of the whole cluster, by the names in both generations.
#[derive(Debug, Deserialize)]
struct Rules {
    #[serde(default)]
    strict_affinity: bool,
    #[serde(default)]
    auto_allocate_blocks: bool,
}

/// Access to the addresses for one host.
pub struct Ipam<'store> {
    store: &'store Store,
    host: String,
}

impl<'store> Ipam<'store> {
    /// The addresses of this host.
    pub fn new(store: &'store Store, host: &str) -> Self {
        Self {
            store,
            host: host.to_owned(),
        }
    }

    /// Assigns one address from the host's blocks, or from a new one. `requested` restricts the pools, by their ranges.
    pub async fn assign_any(&self, owner: &Owner, requested: &[String]) -> Result<Ipv4Addr> {
        let rules = self.rules().await?;
        let choice = Choice::of(self.store, &self.host, requested).await?;
        let pools = &choice.usable;
        let (own, others): (Vec<Ipv4Net>, Vec<Ipv4Net>) = self
            .claimed()
            .await?
            .into_iter()
            .partition(|range| choice.has(*range));
        release::unselected(self.store, &self.host, &choice, &others).await;
        for range in &own {
            // A claim that is not confirmed yet, or has lost its block, is claimed again.
            if self.claim(*range, &rules).await?
                && let Some(address) = self.assign_from(*range, owner).await?
            {
                return Ok(address);
            }
        }
        if !rules.auto_allocate_blocks {
            bail!(
                "assign an address: the blocks {own:?} are full, and the rules forbid to claim another one"
            );
        }
        for pool in pools {
            for range in blocks_from(pool, &self.host) {
                if self.store.get(&keys::block(range)).await?.is_some() || !self.claim(range, &rules).await? {
                    continue;
                }
                if let Some(address) = self.assign_from(range, owner).await? {
                    return Ok(address);
                }
            }
        }
        bail!(
            "assign an address: no free block in the pools {:?} for host {}",
            pools.iter().map(|pool| &pool.cidr).collect::<Vec<_>>(),
            self.host
        )
    }

    /// Assigns exactly this address.
    pub async fn assign(&self, address: Ipv4Addr, owner: &Owner) -> Result<()> {
        let rules = self.rules().await?;
        let range = self
            .block_of(address)
            .await?
            .with_context(|| format!("The provided IP address {address} is not in a configured pool"))?;
        for _ in 0..TRIES {
            let Some((entry, mut block)) = self.block(range).await? else {
                self.claim(range, &rules).await?;
                continue;
            };
            if block.strict_affinity && block.affinity.as_deref() != Some(&affinity(&self.host)) {
                bail!(
                    "assign {address}: block {range} has affinity {:?}",
                    block.affinity
                );
            }
            if !block.assign(address, owner) {
                bail!("Address already assigned in block: {address}");
            }
            if self.store_assigned(&entry, range, &block, owner).await? {
                return Ok(());
            }
        }
        bail!("assign {address}: another writer was faster {TRIES} times")
    }

    /// Releases every address of a handle; returns their number.
    pub async fn release(&self, id: &str) -> Result<usize> {
        let Some(entry) = self.store.get(&keys::handle(id)).await? else {
            return Ok(0);
        };
        let mut released = 0;
        for range in Handle::read(&entry)?.block.keys() {
            let range = range
                .parse()
                .with_context(|| format!("read {}: {range:?} is not an IPv4 block", entry.key))?;
            released += self.release_from(range, id).await?;
        }
        Ok(released)
    }

    /// The holder of an address: the handle and the attributes; `None` if the address is free, or in no enabled pool.
    pub async fn holder(&self, address: Ipv4Addr) -> Result<Option<Owner>> {
        let Some(range) = self.block_of(address).await? else {
            return Ok(None);
        };
        let Some((_, block)) = self.block(range).await? else {
            return Ok(None);
        };
        Ok(block.owner(address).map(|attribute| Owner {
            handle: attribute.handle_id.clone().unwrap_or_default(),
            attributes: attribute.secondary.clone().unwrap_or_default(),
        }))
    }

    /// The block of an enabled pool with this address.
    async fn block_of(&self, address: Ipv4Addr) -> Result<Option<Ipv4Net>> {
        let pools = Choice::enabled(self.store).await?;
        let mut holding = pools
            .iter()
            .filter(|pool| pool.range().is_some_and(|range| range.contains(&address)));
        let mut blocks = holding
            .next()
            .into_iter()
            .flat_map(|pool| blocks_from(pool, &self.host));
        Ok(blocks.find(|range| range.contains(&address)))
    }

    async fn rules(&self) -> Result<Rules> {
        match self.store.get(keys::IPAM_CONFIG).await? {
            Some(entry) => serde_json::from_str(&entry.value).with_context(|| format!("read {}", entry.key)),
            None => Ok(Rules {
                strict_affinity: false,
                auto_allocate_blocks: true,
            }),
        }
    }

    /// The blocks that the host has claimed.
    async fn claimed(&self) -> Result<Vec<Ipv4Net>> {
        let entries = self.store.list(&keys::claims(&self.host)).await?;
        let claims = entries.iter().filter_map(|entry| keys::read_claim(&entry.key));
        Ok(claims.map(|(_, range)| range).collect())
    }

    async fn block(&self, range: Ipv4Net) -> Result<Option<(Entry, IPAMBlockSpec)>> {
        match self.store.get(&keys::block(range)).await? {
            Some(entry) => {
                let block = block::read(&entry)?;
                Ok(Some((entry, block)))
            }
            None => Ok(None),
        }
    }

    /// Claims a block for the host; `false` if another host has it. v3 writes a pending claim, creates the block, and
    /// then confirms the claim; v2 has only the claim and the block.
    async fn claim(&self, range: Ipv4Net, rules: &Rules) -> Result<bool> {
        let generation = self.store.generation;
        let key = keys::claim(&self.host, range);
        for _ in 0..TRIES {
            let Some(claim) = self.store.get(&key).await? else {
                let pending = block::claim_text(Claim::Pending, generation)?;
                self.store.create(&key, &pending).await?;
                continue;
            };
            let Some((_, block)) = self.block(range).await? else {
                let mut block = new(range, &self.host, 0);
                block.strict_affinity = rules.strict_affinity;
                let value = block::text(&block, generation, true)?;
                if self.store.create(&keys::block(range), &value).await? {
                    info!(%range, "claimed a block");
                }
                continue;
            };
            if block.affinity.as_deref() != Some(&affinity(&self.host)) {
                if self.store.delete(&claim).await? {
                    return Ok(false);
                }
                continue;
            }
            let confirmed = block::claim_text(Claim::Confirmed, generation)?;
            if block::read_claim(&claim) == Claim::Confirmed || self.store.replace(&claim, &confirmed).await?
            {
                return Ok(true);
            }
        }
        bail!("claim the block {range}: another writer was faster {TRIES} times")
    }

    async fn assign_from(&self, range: Ipv4Net, owner: &Owner) -> Result<Option<Ipv4Addr>> {
        for _ in 0..TRIES {
            let Some((entry, mut block)) = self.block(range).await? else {
                return Ok(None);
            };
            let Some(address) = block.assign_any(owner, &[]) else {
                return Ok(None);
            };
            if self.store_assigned(&entry, range, &block, owner).await? {
                return Ok(Some(address));
            }
        }
        bail!("assign an address of block {range}: another writer was faster {TRIES} times")
    }

    /// Stores a block after an assignment. The handle is counted first: a count that is too high is harmless.
    async fn store_assigned(
        &self,
        entry: &Entry,
        range: Ipv4Net,
        block: &IPAMBlockSpec,
        owner: &Owner,
    ) -> Result<bool> {
        self.count(&owner.handle, |handle| handle.add(range)).await?;
        let value = block::text(block, self.store.generation, false)?;
        let stored = self.store.replace(entry, &value).await?;
        if !stored {
            self.count(&owner.handle, |handle| handle.take(range, 1)).await?;
        }
        Ok(stored)
    }

    async fn release_from(&self, range: Ipv4Net, id: &str) -> Result<usize> {
        for _ in 0..TRIES {
            let Some((entry, mut block)) = self.block(range).await? else {
                return Ok(0);
            };
            let released = block.release(id);
            if released == 0 {
                return Ok(0);
            }
            let done = if block.is_empty() && block.affinity.is_none() {
                self.store.delete(&entry).await?
            } else {
                let value = block::text(&block, self.store.generation, false)?;
                self.store.replace(&entry, &value).await?
            };
            if done {
                self.count(id, |handle| handle.take(range, released)).await?;
                return Ok(released);
            }
        }
        bail!("release {id} from block {range}: another writer was faster {TRIES} times")
    }

    /// Changes a handle; a handle without addresses is deleted.
    async fn count(&self, id: &str, change: impl Fn(&mut Handle)) -> Result<()> {
        let key = keys::handle(id);
        for _ in 0..TRIES {
            let found = self.store.get(&key).await?;
            let mut handle = match &found {
                Some(entry) => Handle::read(entry)?,
                None => Handle::default(),
            };
            change(&mut handle);
            let value = handle.text(self.store.generation)?;
            let done = match (found, handle.block.is_empty()) {
                (None, true) => true,
                (None, false) => self.store.create(&key, &value).await?,
                (Some(entry), true) => self.store.delete(&entry).await?,
                (Some(entry), false) => self.store.replace(&entry, &value).await?,
            };
            if done {
                return Ok(());
            }
        }
        bail!("count for the handle {id}: another writer was faster {TRIES} times")
    }
}

/// The holder of a pod's address. v2.6 stores only the handle.
pub fn owner(generation: Generation, handle: String, host: &str, namespace: &str, pod: &str) -> Owner {
    let attributes = match generation {
        Generation::V2 => Vec::new(),
        Generation::V3 => vec![("node", host), ("pod", pod), ("namespace", namespace)],
    };
    let owned = attributes
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    Owner {
        handle,
        attributes: owned.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::resource::POOL;
    use super::*;

    async fn store(generation: Generation) -> Store {
        let store = Store::in_memory(generation);
        match generation {
            Generation::V2 => {
                let pool = r#"{"cidr":"10.244.0.0/24","ipip":"","ipip_mode":"","masquerade":true,"ipam":true,"disabled":false}"#;
                store.put(&keys::pool("10.244.0.0/24", 4), pool).await.unwrap();
            }
            Generation::V3 => {
                POOL.create(&store, "p", json!({ "cidr": "10.244.0.0/24" }))
                    .await
                    .unwrap();
            }
        }
        store
    }

    fn of(store: &Store, handle: &str) -> Owner {
        owner(store.generation, handle.to_owned(), "n1", "default", "p")
    }

    async fn value(store: &Store, key: &str) -> Value {
        let entry = store.get(key).await.unwrap().unwrap();
        serde_json::from_str(&entry.value).unwrap()
    }

    #[tokio::test]
    async fn an_address_is_assigned_and_released_in_both_generations() {
        for generation in [Generation::V2, Generation::V3] {
            let store = store(generation).await;
            let ipam = Ipam::new(&store, "n1");
            let address = ipam.assign_any(&of(&store, "h"), &[]).await.unwrap();
            let range = Ipv4Net::new(address, 26).unwrap().trunc();
            let claim = value(&store, &keys::claim("n1", range)).await;
            let handle = value(&store, &keys::handle("h")).await;
            match generation {
                Generation::V2 => assert_eq!(claim, json!({})),
                Generation::V3 => assert_eq!(claim, json!({ "state": "confirmed", "deleted": false })),
            }
            assert_eq!(handle["block"], json!({ range.to_string(): 1 }));
            let second = ipam.assign_any(&of(&store, "i"), &[]).await.unwrap();
            assert_eq!(u32::from(second), u32::from(address) + 1, "of the same block");
            assert_eq!(ipam.release("h").await.unwrap(), 1);
            assert_eq!(ipam.release("h").await.unwrap(), 0);
            assert_eq!(store.get(&keys::handle("h")).await.unwrap(), None);
            let block = value(&store, &keys::block(range)).await;
            assert_eq!(block["attributes"].as_array().unwrap().len(), 1);
            assert!(ipam.assign(second, &of(&store, "j")).await.is_err());
            ipam.assign(address, &of(&store, "j")).await.unwrap();
        }
    }

    #[tokio::test]
    async fn two_hosts_have_different_blocks_until_no_block_is_free() {
        let store = store(Generation::V3).await;
        let mut blocks = Vec::new();
        for host in ["n1", "n2", "n3", "n4"] {
            let address = Ipam::new(&store, host)
                .assign_any(&of(&store, host), &[])
                .await
                .unwrap();
            blocks.push(Ipv4Net::new(address, 26).unwrap().trunc());
        }
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 4);
        let refused = Ipam::new(&store, "n5").assign_any(&of(&store, "n5"), &[]).await;
        assert!(refused.unwrap_err().to_string().contains("no free block"));
    }

    #[tokio::test]
    async fn a_claim_of_v2_counts_as_confirmed_in_v3() {
        let store = store(Generation::V3).await;
        let range: Ipv4Net = "10.244.0.64/26".parse().unwrap();
        let claim = r#"{"state":"","deleted":false}"#;
        store.put(&keys::claim("n1", range), claim).await.unwrap();
        let block = block::text(&new(range, "n1", 0), Generation::V3, true).unwrap();
        store.put(&keys::block(range), &block).await.unwrap();
        let address = Ipam::new(&store, "n1")
            .assign_any(&of(&store, "h"), &[])
            .await
            .unwrap();
        assert_eq!(address.to_string(), "10.244.0.64");
        assert_eq!(
            store.get(&keys::claim("n1", range)).await.unwrap().unwrap().value,
            claim
        );
    }
}
