//! What outlives a pass of this kind, and is lost at a restart.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use plan::decision::{Decision, WaitReason};
use plan::service_cidr::facts::{ApiServer, Mention};

use super::knowledge::Confirmed;
use super::trial::Trials;
use super::{api_servers, mentions};
use crate::cache::Cache;
use crate::context::Context;
use crate::looks::{Pace, is_old};
use crate::write::WriteError;

/// What was read last, and when.
#[derive(Default)]
pub struct Looks {
    api_servers: Option<(Instant, BTreeMap<IpAddr, ApiServer>)>,
    mentions: Option<(Instant, Vec<Mention>)>,
    /// Helpers that every node is known to know.
    pub confirmed: Confirmed,
    /// Which writes the API server would take.
    pub trials: Trials,
    /// Services that wait in the middle of their exchange.
    pub waits: Waits,
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
