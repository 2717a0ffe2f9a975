//! Claims that v3 gives back: of empty blocks whose pool does not select their node any more. A disabled pool's are not: Calico
//! looks at enabled pools only, and when it takes the next address only.

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

/// How often a guarded write is tried.
const TRIES: usize = 100;

/// Gives back those of this host's blocks that are empty and of an enabled pool which does not select it. What fails is tried
/// again by whoever takes the next address.
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
            warn!(%range, "give back a block that the node is not selected for: {error:#}");
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

/// Gives a host's claim back when nobody has an address of the block: the claim is marked, the block goes, the claim goes.
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
            info!(%range, host, "gave back an empty block: its pool does not select the node");
            return Ok(());
        }
    }
    bail!("give back block {range} of {host}: another writer was faster {TRIES} times")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::ipam::{Ipam, owner};
    use super::super::resource::POOL;
    use super::*;

    /// Two pools of one block each, the second one closed.
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

    async fn give(store: &Store, pod: &str, requested: &[&str]) -> Result<String> {
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
    async fn a_disabled_pool_gives_nothing_and_its_empty_block_stays_the_nodes() {
        let store = store().await;
        assert_eq!(give(&store, "before", &[]).await.unwrap(), "10.244.0.0");
        change(&store, "new", &json!({ "disabled": false })).await;
        change(&store, "old", &json!({ "disabled": true })).await;
        assert_eq!(give(&store, "after", &[]).await.unwrap(), "10.200.0.0");
        Ipam::new(&store, "n1").release("before").await.unwrap();
        assert_eq!(give(&store, "later", &[]).await.unwrap(), "10.200.0.1");
        assert_eq!(blocks(&store).await, ["10.200.0.0-26", "10.244.0.0-26"]);
        let refused = give(&store, "pinned", &["old"]).await.unwrap_err().to_string();
        assert_eq!(
            refused,
            "the given pool (10.244.0.0/26) does not exist, or is not enabled"
        );
    }

    #[tokio::test]
    async fn a_pool_that_selects_nobody_serves_whom_asks_and_takes_its_block_back_at_the_next_address() {
        let store = store().await;
        change(
            &store,
            "new",
            &json!({ "disabled": false, "nodeSelector": "!all()" }),
        )
        .await;
        assert_eq!(give(&store, "other", &[]).await.unwrap(), "10.244.0.0");
        for (pod, pool, address) in [
            ("by-name", "new", "10.200.0.0"),
            ("by-range", "10.200.0.0/26", "10.200.0.1"),
        ] {
            assert_eq!(give(&store, pod, &[pool]).await.unwrap(), address);
        }
        give(&store, "another", &[]).await.unwrap();
        assert_eq!(blocks(&store).await.len(), 2, "it is in use");
        for pod in ["by-name", "by-range"] {
            Ipam::new(&store, "n1").release(pod).await.unwrap();
        }
        assert_eq!(blocks(&store).await.len(), 2, "nobody has taken an address since");
        give(&store, "next", &[]).await.unwrap();
        assert_eq!(blocks(&store).await, ["10.244.0.0-26"]);
    }

    #[tokio::test]
    async fn what_somebody_deletes_in_a_disabled_pool_is_not_claimed_again() {
        let store = store().await;
        give(&store, "before", &[]).await.unwrap();
        Ipam::new(&store, "n1").release("before").await.unwrap();
        change(&store, "new", &json!({ "disabled": false })).await;
        change(&store, "old", &json!({ "disabled": true })).await;
        let range = "10.244.0.0/26".parse().unwrap();
        for key in [keys::block(range), keys::claim("n1", range)] {
            let entry = store.get(&key).await.unwrap().unwrap();
            assert!(store.delete(&entry).await.unwrap());
        }
        give(&store, "after", &[]).await.unwrap();
        assert_eq!(blocks(&store).await, ["10.200.0.0-26"]);
    }
}
