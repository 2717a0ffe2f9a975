//! State of this kind that is kept between passes, and lost at a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use engine::decision::{Decision, WaitReason};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use service_cidr::assignment::AssignedAddresses;
use service_cidr::exchange;
use service_cidr::facts::{ApiServer, Mention};

use super::dry_run::Trials;
use super::kept_decisions::Decided;
use super::knowledge::Confirmed;
use super::lagging::Lagging;
use super::question::Expected;
use super::service_index::{Index, name_of};
use super::whole_objects::Whole;
use super::{api_servers, mentions};
use crate::cache::Cache;
use crate::context::Context;
use crate::kind_memory::KindMemory;
use crate::read_cache::{CachedRead, Pace, refresh};
use crate::read_error::ReadError;
use crate::since::Since;

/// The last reads with their times, and what follows from them.
#[derive(Default)]
pub struct ReadCache {
    api_servers: Option<CachedRead<BTreeMap<IpAddr, ApiServer>>>,
    mentions: Option<CachedRead<Arc<[Mention]>>>,
    /// Helpers that all nodes are known to know.
    pub confirmed: Confirmed,
    /// Dry runs of the writes.
    pub trials: Trials,
    /// Nodes without a report about their kube-proxy.
    pub silent: Since<String>,
    /// Nodes whose kube-proxy has no rule for a port.
    pub lagging: Lagging,
    /// Services in their exchange.
    pub waits: ExchangeTimes,
    /// Time at which the last late Service was seen in its exchange, by namespace.
    arrived: BTreeMap<String, Timestamp>,
    /// Decisions about Services that still hold.
    pub decided: Decided,
    /// The whole objects of the Services in the pass.
    pub whole: Whole,
    /// The ports that agents check at the moment.
    pub expected: Expected,
}

impl KindMemory for ReadCache {}

/// Duration of each Service's exchange, and the edits of its owner.
#[derive(Default)]
pub struct ExchangeTimes(BTreeMap<String, Way>);

#[derive(Default)]
struct Way {
    /// Time of its first wait.
    waits_since: Option<Timestamp>,
    /// How often a helper was updated after an edit of the Service or its endpoints, without a long pause.
    refreshes: usize,
    /// Time of the last such update.
    refreshed: Option<Timestamp>,
}

/// A Service that has waited for this time gives its place to another.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);
/// After this number of updates a Service counts as restless and gives its place to another. One edit causes at most five
/// updates.
const REFRESHES: usize = 12;
/// Time for which helpers of a restless Service are not updated: enough for an exchange on a large cluster.
const UNFOLLOWED: SignedDuration = SignedDuration::from_mins(5);

impl Way {
    fn is_quiet(&self, now: Timestamp) -> bool {
        self.refreshed
            .is_none_or(|refreshed| now.duration_since(refreshed) >= UNFOLLOWED)
    }

    fn is_restless(&self, now: Timestamp) -> bool {
        self.refreshes >= REFRESHES && !self.is_quiet(now)
    }
}

/// Whether a Service waits until a user changes something.
fn needs_a_user(reason: WaitReason) -> bool {
    matches!(
        reason,
        WaitReason::RequestRefused | WaitReason::ConfigurationFollowUp
    )
}

impl ExchangeTimes {
    /// Whether another Service may take the place of this one: after a long wait, or at once when a user has to act.
    pub fn is_slow<Step>(
        &mut self,
        service: &str,
        decision: Option<&Decision<Step>>,
        now: Timestamp,
    ) -> bool {
        match decision {
            Some(Decision::Wait(wait)) => {
                let way = self.0.entry(service.to_owned()).or_default();
                let since = *way.waits_since.get_or_insert(now);
                way.is_restless(now) || needs_a_user(wait.reason) || now.duration_since(since) >= PATIENCE
            }
            // A Service that continues after a long wait has no place yet.
            Some(Decision::Run(_)) => self.0.get(service).is_some_and(|way| {
                let has_waited = |since| now.duration_since(since) >= PATIENCE;
                way.is_restless(now) || way.waits_since.is_some_and(has_waited)
            }),
            Some(Decision::Settled | Decision::Halt(_)) => {
                self.0.remove(service);
                false
            }
            None => false,
        }
    }

    /// Records that this step runs.
    pub fn record_step(&mut self, service: &str, step: exchange::Step, now: Timestamp) {
        if matches!(step, exchange::Step::Refresh(_) | exchange::Step::Copy(_)) {
            let way = self.0.entry(service.to_owned()).or_default();
            if way.is_quiet(now) {
                way.refreshes = 0;
            }
            way.refreshes += 1;
            way.refreshed = Some(now);
        }
    }

    /// Whether the owner edits this Service, or its endpoints, without pause: its helpers are not updated for a while.
    pub fn is_restless(&self, service: &str, now: Timestamp) -> bool {
        self.0.get(service).is_some_and(|way| way.is_restless(now))
    }
}

impl ReadCache {
    /// Drops all state except that of the Services in the book, and all objects except those of the Services in this pass.
    pub fn keep_only<'name>(
        &mut self,
        index: &Index,
        book: &AssignedAddresses,
        seen: impl Iterator<Item = &'name String>,
    ) {
        self.decided.keep_only(book);
        self.waits.0.retain(|name, _| book.contains_key(name));
        self.whole
            .keep_only(index, &seen.filter_map(|name| name_of(name)).collect());
    }

    /// For each namespace that `had` late Services: the time since which all its Services have their target addresses. `late`:
    /// namespaces that have late Services now. The time starts again after a restart of the coordinator: a pod whose own manifest
    /// contains an address is evicted once more then.
    pub fn migrated_since(
        &mut self,
        had: BTreeSet<&str>,
        late: &BTreeSet<&str>,
        now: Timestamp,
    ) -> &BTreeMap<String, Timestamp> {
        self.arrived
            .retain(|namespace, _| had.contains(namespace.as_str()));
        for namespace in had {
            if late.contains(namespace) || !self.arrived.contains_key(namespace) {
                self.arrived.insert(namespace.to_owned(), now);
            }
        }
        &self.arrived
    }

    /// Every API server.
    ///
    /// # Errors
    ///
    /// The API server refuses the read, does not answer, or sends an answer that cannot be read.
    pub async fn api_servers(
        &mut self,
        context: &Context,
        cache: &Cache,
        pace: Pace,
    ) -> Result<BTreeMap<IpAddr, ApiServer>, ReadError> {
        let reading = api_servers::read(context, cache);
        refresh(&mut self.api_servers, pace, reading).await.cloned()
    }

    /// Takes these for all API servers, as if they had just answered.
    #[cfg(test)]
    pub async fn set_api_servers(&mut self, api_servers: BTreeMap<IpAddr, ApiServer>) {
        let reading = async { Ok::<_, ReadError>(api_servers) };
        self.api_servers = CachedRead::of(reading).await.ok();
    }

    /// Objects that contain addresses of these ranges.
    ///
    /// # Errors
    ///
    /// The API server refuses the read, does not answer, or sends an answer that cannot be read.
    pub async fn mentions(
        &mut self,
        context: &Context,
        pace: Pace,
        ranges: &[IpNet],
    ) -> Result<Arc<[Mention]>, ReadError> {
        let reading = async { mentions::read(context, ranges).await.map(Arc::from) };
        refresh(&mut self.mentions, pace, reading).await.cloned()
    }
}

#[cfg(test)]
mod tests {
    use service_cidr::exchange::{Role, Step};
    use service_cidr::side::Side;

    use super::*;

    #[test]
    fn a_restless_service_is_followed_again_after_a_pause() {
        let mut waits = ExchangeTimes::default();
        let start = Timestamp::UNIX_EPOCH;
        let edit = |waits: &mut ExchangeTimes, seconds: i64| {
            let now = start + SignedDuration::from_secs(seconds);
            let step = match seconds % 3 {
                0 => Step::Refresh(Role::Address(Side::Old)),
                1 => Step::Copy(Role::Address(Side::Old)),
                _ => Step::Swap,
            };
            waits.record_step("a/b", step, now);
            waits.is_restless("a/b", now)
        };
        // Two of three steps are edits; edits that are far apart do not add up.
        assert!((0..16).all(|second| !edit(&mut waits, second)));
        assert!((16..300).all(|second| edit(&mut waits, second)));
        assert!(!waits.is_restless("a/b", start + SignedDuration::from_secs(600)));
        assert!((600..616).all(|second| !edit(&mut waits, second)));
        assert!(!waits.is_restless("c/d", start));
    }
}
