//! Claims on blocks: a claim is written as pending, then the block is made, then the claim is confirmed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use ipnet::Ipv4Net;
use kube::ResourceExt;
use tracing::info;

use super::{Ipam, TRIES, block, names, pool};
use crate::datastore::Written;
use crate::datastore::types::{BlockAffinity, BlockAffinitySpec, IPAMBlock, IPPool};

const CONFIRMED: &str = "confirmed";
const PENDING: &str = "pending";

impl Ipam {
    /// The node's blocks in these pools, pool by pool.
    pub(super) async fn own_blocks(&self, pools: &[IPPool]) -> Result<Vec<Ipv4Net>> {
        let selector = format!(
            "projectcalico.org/affinity-type=host,projectcalico.org/hostname-hash={}",
            names::hostname_hash(&self.node)
        );
        let claims: Vec<BlockAffinity> = self.affinities.list(&selector).await?;
        let mut ranges: BTreeSet<Ipv4Net> = BTreeSet::new();
        for claim in claims {
            let ours = claim.spec.node == self.node && claim.spec.deleted != "true";
            let Some(range) = claim.spec.cidr.parse().ok().filter(|_| ours) else {
                continue;
            };
            if claim.spec.state == CONFIRMED || claim.spec.state.is_empty() || self.claim(range).await? {
                ranges.insert(range);
            }
        }
        Ok(pools
            .iter()
            .filter_map(|pool| pool.spec.range())
            .flat_map(|pool| ranges.iter().copied().filter(move |range| pool.contains(range)))
            .collect())
    }

    /// A range of the pools that is nobody's block, or one of ours with a free address.
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

    /// Every block of the pools, whoever owns it.
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

    /// Makes a block the node's; false when it is somebody else's.
    pub(super) async fn claim(&self, range: Ipv4Net) -> Result<bool> {
        let name = names::affinity(&self.node, range);
        for _ in 0..TRIES {
            let claim = match self.affinities.get(&name).await? {
                Some(claim) => claim,
                None => match self.affinities.create(&self.new_claim(&name, range)).await? {
                    Written::Done(claim) => claim,
                    Written::Conflict => continue,
                },
            };
            let block = match self.blocks.get(&names::cidr(range)).await? {
                Some(block) => block,
                None => match self.blocks.create(&self.new_block(range)?).await? {
                    Written::Done(block) => block,
                    Written::Conflict => continue,
                },
            };
            if block.spec.node() != Some(self.node.as_str()) {
                if matches!(self.affinities.delete(&claim).await?, Written::Conflict) {
                    continue;
                }
                return Ok(false);
            }
            if claim.spec.state == CONFIRMED {
                return Ok(true);
            }
            let mut confirmed = claim;
            CONFIRMED.clone_into(&mut confirmed.spec.state);
            if matches!(self.affinities.replace(&confirmed).await?, Written::Done(_)) {
                info!(%range, "claimed a block");
                return Ok(true);
            }
        }
        bail!(
            "claim block {range} for node {}: somebody else was faster {TRIES} times",
            self.node
        )
    }

    /// Gives claims of this node that an older or foreign writer made the labels by which they are found.
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
            // A conflict means that somebody else works on it: the next start looks again.
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
