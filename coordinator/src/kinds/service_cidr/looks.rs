//! What outlives a pass of this kind, and is lost at a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use engine::decision::{Decision, WaitReason};
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use service_cidr::facts::{ApiServer, Mention};
use service_cidr::subjects::Book;
use service_cidr::swap;

use super::decided::Decided;
use super::expected::Expected;
use super::index::{Index, name_of};
use super::knowledge::Confirmed;
use super::lagging::Lagging;
use super::trial::Trials;
use super::whole::Whole;
use super::{api_servers, mentions};
use crate::cache::Cache;
use crate::context::Context;
use crate::looks::{Look, Pace, look};
use crate::since::Since;
use crate::write::WriteError;

/// What was read last, and when.
#[derive(Default)]
pub struct Looks {
    api_servers: Option<Look<BTreeMap<IpAddr, ApiServer>>>,
    mentions: Option<Look<Arc<[Mention]>>>,
    /// Helpers that every node is known to know.
    pub confirmed: Confirmed,
    /// Which writes the API server would take.
    pub trials: Trials,
    /// Nodes that do not tell what their kube-proxy knows.
    pub silent: Since<String>,
    /// Nodes whose kube-proxies have no rule for a port.
    pub lagging: Lagging,
    /// Services that are on their way.
    pub waits: Waits,
    /// When the last Service that came late was seen on its way, by namespace.
    arrived: BTreeMap<String, Timestamp>,
    /// What was decided of Services and stands.
    pub decided: Decided,
    /// The whole objects of Services that are worked on.
    pub whole: Whole,
    /// What agents look for at the moment.
    pub expected: Expected,
}

/// How long Services have been on their way, and how often their owners edited them.
#[derive(Default)]
pub struct Waits(BTreeMap<String, Way>);

#[derive(Default)]
struct Way {
    /// When it had to wait first.
    waits_since: Option<Timestamp>,
    /// How often a helper got what its Service says, or copies of its endpoints, without a long pause.
    refreshes: usize,
    /// When a helper got it last.
    refreshed: Option<Timestamp>,
}

/// A Service that has waited for so long leaves its place to another.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);
/// So does one whose helpers got so often what it says. One edit concerns five helpers at most.
const REFRESHES: usize = 12;
/// For so long helpers do not follow it then: time enough for an exchange on a large cluster.
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

/// Whether a Service waits until a person changes something.
fn is_for_a_person(reason: WaitReason) -> bool {
    matches!(
        reason,
        WaitReason::RequestRefused | WaitReason::ConfigurationFollowUp
    )
}

impl Waits {
    /// Whether this Service is on its way for so long that another one may take its place. One that a person has to see to is.
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
                way.is_restless(now) || is_for_a_person(wait.reason) || now.duration_since(since) >= PATIENCE
            }
            // One that goes on after a long wait still has no place.
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

    /// Takes in that this step is made.
    pub fn goes_on(&mut self, service: &str, step: swap::Step, now: Timestamp) {
        if matches!(step, swap::Step::Refresh(_) | swap::Step::Copy(_)) {
            let way = self.0.entry(service.to_owned()).or_default();
            if way.is_quiet(now) {
                way.refreshes = 0;
            }
            way.refreshes += 1;
            way.refreshed = Some(now);
        }
    }

    /// Whether the owner edits this Service, or its endpoints, without pause: its helpers do not follow it for a while.
    pub fn is_restless(&self, service: &str, now: Timestamp) -> bool {
        self.0.get(service).is_some_and(|way| way.is_restless(now))
    }
}

impl Looks {
    /// Lets go what is known of all but the Services of the book; of objects, of all but those that were looked at now.
    pub fn keep_only<'name>(
        &mut self,
        index: &Index,
        book: &Book,
        seen: impl Iterator<Item = &'name String>,
    ) {
        self.decided.keep_only(book);
        self.waits.0.retain(|name, _| book.contains_key(name));
        self.whole
            .keep_only(index, &seen.filter_map(|name| name_of(name)).collect());
    }

    /// Since when every Service is where it is to be, of each namespace that `had` latecomers; `late` are those that still have. After a
    /// restart of ours the time counts again: a pod whose own manifest says an address is evicted once more then.
    pub fn arrived(
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
    pub async fn api_servers(
        &mut self,
        context: &Context,
        cache: &Cache,
        pace: Pace,
    ) -> Result<BTreeMap<IpAddr, ApiServer>, WriteError> {
        let reading = api_servers::read(context, cache);
        look(&mut self.api_servers, pace, reading).await.cloned()
    }

    /// Takes these for all API servers, as if they had just been asked.
    #[cfg(test)]
    pub async fn has_asked(&mut self, api_servers: BTreeMap<IpAddr, ApiServer>) {
        let reading = async { Ok::<_, WriteError>(api_servers) };
        self.api_servers = Look::of(reading).await.ok();
    }

    /// Who else says addresses of these ranges.
    pub async fn mentions(
        &mut self,
        context: &Context,
        pace: Pace,
        ranges: &[IpNet],
    ) -> Result<Arc<[Mention]>, WriteError> {
        let reading = async { mentions::read(context, ranges).await.map(Arc::from) };
        look(&mut self.mentions, pace, reading).await.cloned()
    }
}

#[cfg(test)]
mod tests {
    use service_cidr::side::Side;
    use service_cidr::swap::{Role, Step};

    use super::*;

    #[test]
    fn helpers_follow_an_owner_again_after_a_pause() {
        let mut waits = Waits::default();
        let start = Timestamp::UNIX_EPOCH;
        let edit = |waits: &mut Waits, seconds: i64| {
            let now = start + SignedDuration::from_secs(seconds);
            let step = match seconds % 3 {
                0 => Step::Refresh(Role::Address(Side::Old)),
                1 => Step::Copy(Role::Address(Side::Old)),
                _ => Step::Swap,
            };
            waits.goes_on("a/b", step, now);
            waits.is_restless("a/b", now)
        };
        // Two of three steps are edits; those that are far apart do not add up.
        assert!((0..16).all(|second| !edit(&mut waits, second)));
        assert!((16..300).all(|second| edit(&mut waits, second)));
        assert!(!waits.is_restless("a/b", start + SignedDuration::from_secs(600)));
        assert!((600..616).all(|second| !edit(&mut waits, second)));
        assert!(!waits.is_restless("c/d", start));
    }
}
