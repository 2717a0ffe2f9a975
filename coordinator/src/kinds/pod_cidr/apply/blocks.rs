//! Release of Calico's blocks, and deletion of the pool whose blocks are gone.

use crash_point::Edge;
use ipnet::IpNet;
use kube::api::DynamicObject;
use pod_cidr::ipam::Claim;
use serde_json::json;

use super::super::malformed::Claims;
use super::super::read_cache::ReadCache;
use super::super::{malformed, objects};
use super::StepExecutor;
use crate::calico::error::CalicoStoreError;
use crate::calico::{BLOCK_AFFINITY, IPAM_BLOCK};
use crate::read_cache::Pace;

/// Blocks that are released in one pass: during a pass of minutes nothing else would be observed.
const BLOCKS_AT_ONCE: usize = 50;

impl StepExecutor<'_> {
    /// Releases some of these blocks. Each is read by its name: one list of all blocks for each batch would be hundreds of lists.
    pub(super) async fn release(
        &self,
        ranges: &[IpNet],
        reads: &mut ReadCache,
    ) -> Result<String, CalicoStoreError> {
        let ipam = reads.ipam(self.store, Pace::Counted).await?;
        let is_empty = |range: &&IpNet| {
            let block = ipam.block(**range);
            block.is_none_or(|block| block.allocations.is_empty())
        };
        let mut released = Vec::new();
        let mut tried = 0;
        for range in ranges.iter().filter(is_empty) {
            if tried == BLOCKS_AT_ONCE {
                break;
            }
            // A block that cannot be written delays no other.
            let object = format!("IPAMBlock {range}");
            let release = async {
                tried += 1;
                self.release_one(*range, ipam.claims_on(*range)).await
            };
            if self.context.obstacles.attempt(&object, release).await? == Some(true) {
                released.push(*range);
            }
        }
        let said = format!("blocks released: {} of {}", released.len(), ranges.len());
        if released.len() == tried && tried < ranges.len() {
            reads.released(released);
        } else {
            // The last batch is done, or the blocks differ from what was read.
            reads.forget_ipam();
        }
        Ok(said)
    }

    /// Releases a block as Calico does: marks the affinity as pending deletion, then deletes the empty block, then the affinity.
    /// Each write has the version that was read: an address that is allocated meanwhile keeps the block. Returns whether the
    /// block is deleted.
    async fn release_one(&self, range: IpNet, claims: &[Claim]) -> Result<bool, CalicoStoreError> {
        let store = self.store;
        let block = store.block(range).await?;
        let is_empty = |block: &DynamicObject| {
            let found = objects::block(block);
            // A malformed block is not released.
            found.is_ok_and(|found| found.range == range && found.allocations.is_empty())
        };
        if !block.as_ref().is_none_or(is_empty) {
            return Ok(false);
        }
        let mut affinities = Vec::new();
        for claim in claims {
            let node = claim.node.as_deref().unwrap_or_default();
            let found = store.claim(&claim.name, node, range).await?;
            affinities
                .extend(found.filter(|found| objects::claim(found).is_ok_and(|claim| claim.range == range)));
        }
        for affinity in &affinities {
            store
                .patch_spec(BLOCK_AFFINITY, affinity, &json!({ "state": "pendingDeletion" }))
                .await?;
            crash_point::reach("AffinityPending", Edge::Changed, None).await;
        }
        if let Some(block) = &block {
            store.delete_marked(IPAM_BLOCK, block).await?;
        }
        for affinity in &affinities {
            if let Some(affinity) = store.again(BLOCK_AFFINITY, affinity).await? {
                store.delete_marked(BLOCK_AFFINITY, &affinity).await?;
            }
        }
        Ok(true)
    }

    pub(super) async fn delete_pool(&self, name: &str, range: &IpNet) -> Result<String, CalicoStoreError> {
        let claims = Claims::default();
        let of_range = |object: DynamicObject| {
            let is_of_range = match malformed::block(&object, &claims) {
                Ok(block) => range.contains(&block.range),
                // A malformed block may be of this range.
                Err(block) => block.may_touch(range),
            };
            is_of_range.then_some(())
        };
        let left = self.store.each(IPAM_BLOCK, of_range).await?.len();
        if left > 0 {
            return Ok(format!("new blocks of {range}: {left}; replumb reads them again"));
        }
        self.store.delete_pool(name).await?;
        Ok(format!("IPPool {name} deleted"))
    }
}
