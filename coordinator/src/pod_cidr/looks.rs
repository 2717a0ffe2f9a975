//! What no watch brings, read again when it is old: so that a pass costs the API server little, however large the cluster is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use plan::cluster::Malformed;
use plan::pod_cidr::facts::{Block, WorkloadFacts};
use plan::pod_cidr::mentions::Mention;
use plan::pod_cidr::moves::Workload;
use plan::pod_cidr::residents::Needed;

use super::read;
use crate::cache::Cache;
use crate::context::Context;
use crate::write::WriteError;

/// While somebody waits for it.
const SOON: Duration = Duration::from_secs(2);
/// While nobody does.
const SELDOM: Duration = Duration::from_secs(15);

/// How soon something is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Somebody waits for it.
    Soon,
    /// It is only counted.
    Seldom,
}

impl Pace {
    fn time(self) -> Duration {
        match self {
            Self::Soon => SOON,
            Self::Seldom => SELDOM,
        }
    }
}

/// The blocks of Calico's IPAM, and the range of every affinity to one.
pub type Blocks = Result<(Vec<Block>, Vec<IpNet>), Malformed>;

/// What was read last, and when. Lost at a restart: then it is read again.
#[derive(Debug, Default)]
pub struct Looks {
    workloads: Option<(Instant, BTreeMap<Workload, WorkloadFacts>)>,
    needed: Option<(Instant, Needed)>,
    mentions: Option<(Instant, Vec<Mention>)>,
    blocks: Option<(Instant, Blocks)>,
}

fn is_old<T>(look: Option<&(Instant, T)>, pace: Pace) -> bool {
    look.is_none_or(|(at, _)| at.elapsed() >= pace.time())
}

impl Looks {
    /// Workloads that make pods again.
    pub async fn workloads(
        &mut self,
        context: &Context,
        cache: &Cache,
        pace: Pace,
    ) -> Result<BTreeMap<Workload, WorkloadFacts>, WriteError> {
        if is_old(self.workloads.as_ref(), pace) {
            self.workloads = Some((Instant::now(), read::workloads(context, cache).await?));
        }
        Ok(self
            .workloads
            .as_ref()
            .map(|(_, found)| found.clone())
            .unwrap_or_default())
    }

    /// What others need pods for.
    pub async fn needed(
        &mut self,
        context: &Context,
        pods: &[plan::drain::Pod],
        pace: Pace,
    ) -> Result<Needed, WriteError> {
        if is_old(self.needed.as_ref(), pace) {
            self.needed = Some((Instant::now(), read::needed(context, pods).await?));
        }
        Ok(self
            .needed
            .as_ref()
            .map(|(_, found)| found.clone())
            .unwrap_or_default())
    }

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
