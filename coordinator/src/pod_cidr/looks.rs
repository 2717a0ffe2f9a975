//! What no watch brings, read again when it is old: so that a pass costs the API server little, however large the cluster is.

use std::time::Instant;

use ipnet::IpNet;
use plan::cluster::Malformed;
use plan::pod_cidr::facts::Block;
use plan::pod_cidr::mentions::Mention;

use super::read;
use crate::cache::Cache;
use crate::context::Context;
use crate::looks::{Pace, is_old};
use crate::write::WriteError;

/// The blocks of Calico's IPAM, and the range of every affinity to one.
pub type Blocks = Result<(Vec<Block>, Vec<IpNet>), Malformed>;

/// What was read last, and when. Lost at a restart: then it is read again.
#[derive(Debug, Default)]
pub struct Looks {
    mentions: Option<(Instant, Vec<Mention>)>,
    blocks: Option<(Instant, Blocks)>,
}

impl Looks {
    /// Who else says a range.
    pub async fn mentions(
        &mut self,
        context: &Context,
        cache: &Cache,
        pace: Pace,
    ) -> Result<Vec<Mention>, WriteError> {
        if is_old(self.mentions.as_ref(), pace) {
            self.mentions = Some((Instant::now(), read::mentions(context, cache).await?));
        }
        Ok(self
            .mentions
            .as_ref()
            .map(|(_, found)| found.clone())
            .unwrap_or_default())
    }

    /// Blocks and affinities.
    pub async fn blocks(&mut self, context: &Context, pace: Pace) -> Result<Blocks, WriteError> {
        if is_old(self.blocks.as_ref(), pace) {
            self.blocks = Some((Instant::now(), read::blocks(context).await?));
        }
        Ok(match &self.blocks {
            Some((_, found)) => found.clone(),
            None => Ok((Vec::new(), Vec::new())),
        })
    }

    /// What was released or deleted is looked at anew.
    pub fn forget_blocks(&mut self) {
        self.blocks = None;
    }
}
