//! Claims that v3 releases: of empty blocks whose pool no longer selects their node. Claims of a disabled pool stay:
//! Calico checks only enabled pools, and only at the next assignment.

use anyhow::{Result, bail};
use ipnet::Ipv4Net;
use tracing::{info, warn};

use super::block::{self, Claim};
use super::choice::Choice;
use super::keys;
use super::store::Store;
use crate::datastore::types::IPPoolSpec;
use crate::ipam::block::affinity;
use crate::ipam::selects_node;
use crate::version::Generation;

/// Number of attempts of a guarded write.
const TRIES: usize = 100;

/// Releases this host's empty blocks of enabled pools that do not select it. After a failure the next assignment tries again.
pub async fn unselected(store: &Store, host: &str, choice: &Choice, blocks: &[Ipv4Net]) {
    if store.generation == Generation::V2 {
        return;
    }
    for range in blocks {
        let released = async {
            if is_unselected(*range, choice)? {
                claim(store, host, *range).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        if let Err(error) = released.await {
            warn!(%range, "release a block of a pool that does not select the node: {error:#}");
        }
    }
}

/// Whether a block is of an enabled pool that does not select the node.
fn is_unselected(block: Ipv4Net, choice: &Choice) -> Result<bool> {
    let holds = |pool: &&IPPoolSpec| pool.range().is_some_and(|range| range.contains(&block));
    match choice.enabled.iter().find(holds) {
        Some(pool) => Ok(!selects_node(pool, &choice.labels)?),
        None => Ok(false),
    }
}

/// Releases a host's claim if no address of the block is assigned: the claim is marked, the block is deleted, the
/// claim is deleted.
async fn claim(store: &Store, host: &str, range: Ipv4Net) -> Result<()> {
    for _ in 0..TRIES {
        let (Some(claim), Some(entry)) = (
            store.get(&keys::claim(host, range)).await?,
            store.get(&keys::block(range)).await?,
        ) else {
            return Ok(());
        };
        let block = block::read(&entry)?;
        if !block.is_empty() || block.affinity.as_deref() != Some(&affinity(host)) {
            return Ok(());
        }
        let pending = block::claim_text(Claim::PendingDeletion, store.generation)?;
        if !store.replace(&claim, &pending).await? || !store.delete(&entry).await? {
            continue;
        }
        if let Some(claim) = store.get(&keys::claim(host, range)).await?
            && store.delete(&claim).await?
        {
            info!(%range, host, "released an empty block: its pool does not select the node");
            return Ok(());
        }
    }
    bail!("release block {range} of {host}: another writer was faster {TRIES} times")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::ipam::{Ipam, owner};
    use super::super::resource::POOL;
    use super::*;

    /// Two pools of one block each, the second one disabled.
    async fn store() -> Store {
        let store = Store::in_memory(Generation::V3);
        for (name, range, disabled) in [("new", "10.200.0.0/26", true), ("old", "10.244.0.0/26", false)] {
            let spec = json!({ "cidr": range, "disabled": disabled });
            POOL.create(&store, name, spec).await.unwrap();
        }
        store
    }

    async fn change(store: &Store, pool: &str, spec: &Value) {
        let merge = |found: &mut Value| {
            for (field, value) in spec.as_object().unwrap() {
                found[field] = value.clone();
            }
        };
        POOL.ensure(store, pool, merge).await.unwrap();
    }

    async fn assign(store: &Store, pod: &str, requested: &[&str]) -> Result<String> {
        let requested: Vec<String> = requested.iter().map(|it| (*it).to_owned()).collect();
        let owner = owner(Generation::V3, pod.to_owned(), "n1", "default", pod);
        let address = Ipam::new(store, "n1").assign_any(&owner, &requested).await?;
        Ok(address.to_string())
    }

    /// Last parts of the keys of all blocks; each has its claim.
    async fn blocks(store: &Store) -> Vec<String> {
        let part = |key: &str| key.rsplit('/').next().unwrap_or_default().to_owned();
        let of = async |directory: &str| -> Vec<String> {
            let entries = store.list(directory).await.unwrap();
            entries.iter().map(|entry| part(&entry.key)).collect()
        };
        let blocks = of("/calico/ipam/v2/assignment/ipv4/block").await;
        assert_eq!(blocks, of(&keys::claims("n1")).await);
        blocks
    }

    #[tokio::test]
    async fn a_disabled_pool_assigns_no_address_and_its_empty_block_keeps_its_node() {
        let store = store().await;
        assert_eq!(assign(&store, "before", &[]).await.unwrap(), "10.244.0.0");
        change(&store, "new", &json!({ "disabled": false })).await;
        change(&store, "old", &json!({ "disabled": true })).await;
        assert_eq!(assign(&store, "after", &[]).await.unwrap(), "10.200.0.0");
        Ipam::new(&store, "n1").release("before").await.unwrap();
        assert_eq!(assign(&store, "later", &[]).await.unwrap(), "10.200.0.1");
        assert_eq!(blocks(&store).await, ["10.200.0.0-26", "10.244.0.0-26"]);
        let refused = assign(&store, "pinned", &["old"]).await.unwrap_err().to_string();
        assert_eq!(
            refused,
            "the given pool (10.244.0.0/26) does not exist, or is not enabled"
        );
    }

    #[tokio::test]
    async fn a_pool_without_nodes_serves_requests_and_its_empty_block_is_released_at_the_next_assignment() {
        let store = store().await;
        change(
            &store,
            "new",
            &json!({ "disabled": false, "nodeSelector": "!all()" }),
        )
        .await;
        assert_eq!(assign(&store, "other", &[]).await.unwrap(), "10.244.0.0");
        for (pod, pool, address) in [
            ("by-name", "new", "10.200.0.0"),
            ("by-range", "10.200.0.0/26", "10.200.0.1"),
        ] {
            assert_eq!(assign(&store, pod, &[pool]).await.unwrap(), address);
        }
        assign(&store, "another", &[]).await.unwrap();
        assert_eq!(blocks(&store).await.len(), 2, "the block is in use");
        for pod in ["by-name", "by-range"] {
            Ipam::new(&store, "n1").release(pod).await.unwrap();
        }
        assert_eq!(blocks(&store).await.len(), 2, "no address was assigned since");
        assign(&store, "next", &[]).await.unwrap();
        assert_eq!(blocks(&store).await, ["10.244.0.0-26"]);
    }

    #[tokio::test]
    async fn a_block_deleted_in_a_disabled_pool_is_not_claimed_again() {
        let store = store().await;
        assign(&store, "before", &[]).await.unwrap();
        Ipam::new(&store, "n1").release("before").await.unwrap();
        change(&store, "new", &json!({ "disabled": false })).await;
        change(&store, "old", &json!({ "disabled": true })).await;
        let range = "10.244.0.0/26".parse().unwrap();
        for key in [keys::block(range), keys::claim("n1", range)] {
            let entry = store.get(&key).await.unwrap().unwrap();
            assert!(store.delete(&entry).await.unwrap());
        }
        assign(&store, "after", &[]).await.unwrap();
        assert_eq!(blocks(&store).await, ["10.200.0.0-26"]);
    }
}
