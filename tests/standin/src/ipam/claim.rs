//! Claims on blocks: a pending claim is written, then the block is created, then the claim is confirmed.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use ipnet::Ipv4Net;
use kube::ResourceExt;
use tracing::info;

use super::{Ipam, TRIES, block, names, pool};
use crate::datastore::Written;
use crate::datastore::types::{BlockAffinity, BlockAffinitySpec, IPAMBlock, IPPool};

const CONFIRMED: &str = "confirmed";
const PENDING: &str = "pending";
pub(super) const PENDING_DELETION: &str = "pendingDeletion";
const DELETED: &str = "true";

impl Ipam {
    /// The ranges that the node has claims on, in the order of the claims' names.
    pub(super) async fn claimed(&self) -> Result<Vec<Ipv4Net>> {
        let selector = format!(
            "projectcalico.org/affinity-type=host,projectcalico.org/hostname-hash={}",
            names::hostname_hash(&self.node)
        );
        let claims: Vec<BlockAffinity> = self.affinities.list(&selector).await?;
        Ok(claims
            .into_iter()
            .filter(|claim| claim.spec.node == self.node && claim.spec.deleted != DELETED)
            .filter_map(|claim| claim.spec.cidr.parse().ok())
            .collect())
    }

    /// A range of the pools without a block, or a block of this node with a free address.
    pub(super) async fn free_range(&self, pools: &[IPPool], reserved: &[Ipv4Net]) -> Result<Option<Ipv4Net>> {
        let known = self.known_blocks().await?;
        let free = |range: &Ipv4Net| {
            let entirely_reserved = reserved.iter().any(|reservation| reservation.contains(range));
            !entirely_reserved
                && known.get(range).is_none_or(|block| {
                    block.spec.node() == Some(self.node.as_str()) && block.spec.free(reserved) > 0
                })
        };
        Ok(pools
            .iter()
            .flat_map(|pool| pool::blocks(&pool.spec, &self.node))
            .find(free))
    }

    /// Every block of the pools, of any owner.
    pub(super) async fn ranges_in(&self, pools: &[IPPool]) -> Result<Vec<Ipv4Net>> {
        let known = self.known_blocks().await?;
        let every = pools.iter().flat_map(|pool| pool::blocks(&pool.spec, &self.node));
        Ok(every.filter(|range| known.contains_key(range)).collect())
    }

    async fn known_blocks(&self) -> Result<BTreeMap<Ipv4Net, IPAMBlock>> {
        let blocks: Vec<IPAMBlock> = self.blocks.list("").await?;
        Ok(blocks
            .into_iter()
            .filter_map(|block| Some((block.spec.range()?, block)))
            .collect())
    }

    /// Claims a block for the node; false if another node has it.
    pub(super) async fn claim(&self, range: Ipv4Net) -> Result<bool> {
        let name = names::affinity(&self.node, range);
        for _ in 0..TRIES {
            let claim = match self.claim_on(&name).await? {
                Some(claim) => claim,
                None => match self.affinities.create(&self.new_claim(&name, range)).await? {
                    Written::Done(claim) => claim,
                    Written::Conflict => continue,
                },
            };
            let confirmed = claim.spec.state == CONFIRMED || claim.spec.state.is_empty();
            let Some(block) = self.block(range).await? else {
                // Pending while the block is created: a claim without a block is then a known state.
                let Written::Done(claim) = self.set(claim, PENDING).await? else {
                    continue;
                };
                if let Written::Done(_) = self.blocks.create(&self.new_block(range)?).await?
                    && let Written::Done(_) = self.set(claim, CONFIRMED).await?
                {
                    info!(%range, "claimed a block");
                    return Ok(true);
                }
                continue;
            };
            if block.spec.node() != Some(self.node.as_str()) {
                if matches!(self.affinities.delete(&claim).await?, Written::Conflict) {
                    continue;
                }
                return Ok(false);
            }
            if confirmed {
                return Ok(true);
            }
            let Written::Done(claim) = self.set(claim, PENDING).await? else {
                continue;
            };
            // A new version of the block: a writer that read it before cannot delete it.
            let mut block = block;
            block.spec.sequence_number += 1;
            if let Written::Done(_) = self.blocks.replace(&block).await?
                && let Written::Done(_) = self.set(claim, CONFIRMED).await?
            {
                info!(%range, "confirmed the claim on a block");
                return Ok(true);
            }
        }
        bail!(
            "claim block {range} for node {}: another writer was faster {TRIES} times",
            self.node
        )
    }

    /// A claim by its name. A claim that another writer has marked as deleted and left is deleted now.
    pub(super) async fn claim_on(&self, name: &str) -> Result<Option<BlockAffinity>> {
        match self.affinities.get(name).await? {
            Some(claim) if claim.spec.deleted == DELETED => {
                self.affinities.delete(&claim).await?;
                Ok(None)
            }
            found => Ok(found),
        }
    }

    /// Sets the state of a claim, if it differs.
    pub(super) async fn set(&self, mut claim: BlockAffinity, state: &str) -> Result<Written<BlockAffinity>> {
        if claim.spec.state == state {
            return Ok(Written::Done(claim));
        }
        state.clone_into(&mut claim.spec.state);
        self.affinities.replace(&claim).await
    }

    /// Adds the labels that identify claims of this node, if an older or foreign writer has omitted them.
    pub async fn upgrade(&self) -> Result<()> {
        for mut claim in self.affinities.list("").await? {
            if claim.spec.node != self.node || claim.spec.cidr.parse::<Ipv4Net>().is_err() {
                continue;
            }
            let labels = self.labels();
            if labels
                .iter()
                .all(|(name, value)| claim.labels().get(name) == Some(value))
            {
                continue;
            }
            claim.labels_mut().extend(labels);
            info!(claim = claim.name_any(), "added the labels of a claim on a block");
            // A conflict means that another writer changes it: the next start tries again.
            self.affinities.replace(&claim).await?;
        }
        Ok(())
    }

    fn labels(&self) -> BTreeMap<String, String> {
        [
            ("affinity-type", "host".to_owned()),
            ("ip-version", "4".to_owned()),
            ("hostname-hash", names::hostname_hash(&self.node)),
        ]
        .into_iter()
        .map(|(name, value)| (format!("projectcalico.org/{name}"), value))
        .collect()
    }

    fn new_claim(&self, name: &str, range: Ipv4Net) -> BlockAffinity {
        let mut claim = BlockAffinity::new(
            name,
            BlockAffinitySpec {
                state: PENDING.to_owned(),
                node: self.node.clone(),
                kind: Some("host".to_owned()),
                cidr: range.to_string(),
                deleted: "false".to_owned(),
                ..BlockAffinitySpec::default()
            },
        );
        claim.labels_mut().extend(self.labels());
        claim
    }

    fn new_block(&self, range: Ipv4Net) -> Result<IPAMBlock> {
        let now = u64::try_from(jiff::Timestamp::now().as_nanosecond())?;
        Ok(IPAMBlock::new(
            &names::cidr(range),
            block::new(range, &self.node, now),
        ))
    }
}

/// The ranges that lie in one of the pools.
pub(super) fn within(ranges: &[Ipv4Net], pools: &[IPPool]) -> Vec<Ipv4Net> {
    let is_in = |range: &Ipv4Net| pool::holding(pools, range.addr()).is_some();
    ranges.iter().copied().filter(is_in).collect()
}
