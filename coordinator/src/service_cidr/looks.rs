//! What outlives a pass of this kind, and is lost at a restart.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use plan::cluster::Malformed;
use plan::decision::{Decision, WaitReason};
use plan::service_cidr::facts::{ApiServer, Mention};
use plan::service_cidr::ranges::ServiceCidr as Range;

use super::knowledge::Confirmed;
use super::objects::{all_ranges, api_version};
use super::observed::Observed;
use super::trial::Trials;
use super::unchanged::Watches;
use super::{api_servers, mentions};
use crate::cache::Cache;
use crate::context::Context;
use crate::looks::{Pace, is_old};
use crate::write::WriteError;

/// What was read last, and when.
#[derive(Default)]
pub struct Looks {
    /// Services, endpoints, addresses and ranges, while nothing of them has changed.
    whole: Option<(Instant, Arc<Whole>)>,
    watches: Option<Watches>,
    api_servers: Option<(Instant, BTreeMap<IpAddr, ApiServer>)>,
    mentions: Option<(Instant, Vec<Mention>)>,
    /// Helpers that every node is known to know.
    pub confirmed: Confirmed,
    /// Which writes the API server would take.
    pub trials: Trials,
    /// Services that wait in the middle of their exchange.
    pub waits: Waits,
}

/// Services, their endpoints, who has which address, and the ranges.
pub struct Whole {
    /// Version of the API that has ranges as objects.
    pub version: String,
    /// Services, endpoints and addresses.
    pub observed: Observed,
    /// The ranges, or the first that was not understood.
    pub ranges: Result<Vec<Range>, Malformed>,
}

/// Since when Services wait in the middle of their exchange.
#[derive(Default)]
pub struct Waits(BTreeMap<String, Timestamp>);

/// A Service that has waited for so long leaves its place to another.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

impl Waits {
    /// Whether this Service has waited so long that another one may take its place. One whose writes are refused has.
    pub fn is_slow<Step>(&mut self, service: &str, decision: &Decision<Step>, now: Timestamp) -> bool {
        match decision {
            Decision::Wait(wait) => {
                let since = *self.0.entry(service.to_owned()).or_insert(now);
                wait.reason == WaitReason::RequestRefused || now.duration_since(since) >= PATIENCE
            }
            // One that goes on after a long wait still has no place.
            Decision::Run(_) => self
                .0
                .get(service)
                .is_some_and(|since| now.duration_since(*since) >= PATIENCE),
            Decision::Settled | Decision::Halt(_) => {
                self.0.remove(service);
                false
            }
        }
    }
}

impl Looks {
    /// Everything, as it was when it was read last where nothing has changed since; `None` where the API has no ranges of Services. It is
    /// read again by the next pass unless [`Looks::keep`] is called.
    pub async fn whole(&mut self, context: &Context) -> Result<Option<(Instant, Arc<Whole>)>, WriteError> {
        let watches = self
            .watches
            .get_or_insert_with(|| Watches::start(&context.watching));
        let may_differ = watches.changed();
        let known = self.whole.take();
        if !may_differ && !is_old(known.as_ref(), Pace::Seldom) {
            return Ok(known);
        }
        let at = Instant::now();
        let Some(version) = api_version(&context.client).await? else {
            return Ok(None);
        };
        let (observed, ranges) = tokio::try_join!(
            Observed::read(&context.client, &version),
            all_ranges(&context.client, &version)
        )?;
        let whole = Whole {
            version,
            observed,
            ranges,
        };
        Ok(Some((at, Arc::new(whole))))
    }

    /// Nothing was written since it was read: it counts until something changes.
    pub fn keep(&mut self, whole: (Instant, Arc<Whole>)) {
        self.whole = Some(whole);
    }

    /// Ends the watches.
    pub fn stop(&mut self) {
        self.watches = None;
        self.whole = None;
    }

    /// Every API server.
    pub async fn api_servers(
        &mut self,
        context: &Context,
        cache: &Cache,
        pace: Pace,
    ) -> Result<BTreeMap<IpAddr, ApiServer>, WriteError> {
        if is_old(self.api_servers.as_ref(), pace) {
            self.api_servers = Some((Instant::now(), api_servers::read(context, cache).await?));
        }
        let found = self.api_servers.as_ref();
        Ok(found.map(|(_, found)| found.clone()).unwrap_or_default())
    }

    /// Who else says addresses of Services.
    pub async fn mentions(
        &mut self,
        context: &Context,
        cache: &Cache,
        pace: Pace,
    ) -> Result<Vec<Mention>, WriteError> {
        if is_old(self.mentions.as_ref(), pace) {
            self.mentions = Some((Instant::now(), mentions::read(context, cache).await?));
        }
        let found = self.mentions.as_ref();
        Ok(found.map(|(_, found)| found.clone()).unwrap_or_default())
    }
}
