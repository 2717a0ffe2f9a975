//! Every Service that changes, as known from the watches, with its decision if that still holds.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use api::migration::ServiceCidrStatus;
use engine::decision::{Decision, Wait, WaitReason};
use ipnet::IpNet;
use jiff::Timestamp;
use service_cidr::class::Class;
use service_cidr::decide::ServiceView;
use service_cidr::entry::Entry;
use service_cidr::exchange;
use service_cidr::objects::{BridgeFacts, Spare};
use service_cidr::queue::{QueuedService, Standing};
use service_cidr::ranges::is_assignable;
use service_cidr::side::{Side, Sides};

use super::super::super::observed::Subject;
use super::super::super::pass::Pass;
use super::super::super::read_cache::{ExchangeTimes, ReadCache};
use super::super::super::service_index::{Name, name_of};
use super::super::super::whole_objects::names;
use crate::obstacles::refusal;

/// Most bytes of slices of one Service that are copied: some 3 000 endpoints. The owner decides how many there are.
const MOST_COPIED: usize = 1 << 20;

/// One Service that changes, besides its place in the line.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Listed<'pass> {
    pub(super) name: Name,
    pub(super) addresses: &'pass Sides<Vec<IpAddr>>,
    pub(super) goal: Side,
    pub(super) left_is_used: bool,
    pub(super) left_is_given: bool,
    /// Whether it was created after the exchange had started.
    pub(super) is_late: bool,
    /// A hash of the inputs of its decision.
    pub(super) fingerprint: u64,
    /// Bytes of the Service and its helpers.
    pub(super) size: usize,
    pub(super) decision: Option<Decision<exchange::Step>>,
    /// Whether it was deleted.
    pub(super) is_gone: bool,
}

impl Listed<'_> {
    /// The Service as the subject of its exchange.
    pub(super) fn subject(&self, spare: Spare, is_restless: bool) -> Subject {
        Subject {
            namespace: self.name.0.clone(),
            name: self.name.1.clone(),
            addresses: self.addresses.clone(),
            spare,
            goal: self.goal,
            source_is_used: self.left_is_used,
            source_is_allocated: self.left_is_given,
            is_restless,
        }
    }

    /// Addresses that need a range before the Service can continue.
    pub(super) fn uncovered(&self) -> Vec<IpAddr> {
        match &self.decision {
            Some(decision) if self.is_late && exchange::waits_for_source(decision) => {
                self.addresses.of(self.goal.other()).clone()
            }
            Some(_) | None => Vec::new(),
        }
    }
}

impl Pass<'_> {
    /// Every existing Service of the book, with its decision if that still holds.
    pub(super) fn listed(
        &self,
        reads: &ReadCache,
        known: &ServiceCidrStatus,
        left_is_used: bool,
        ground: &BridgeFacts,
    ) -> Vec<(QueuedService, Listed<'_>)> {
        let held = self.services_rolled_back_alone(known);
        let changed = known.settings.changed();
        let surroundings = hash(&(ground.policy.as_str(), &ground.node_addresses));
        let book = self.assigned.book.iter();
        book.filter_map(|(key, addresses)| {
            let name = name_of(key)?;
            let entry = self.index.service(&name)?;
            let is_held_back = held.contains(key);
            let goal = if is_held_back {
                self.goal.other()
            } else {
                self.goal
            };
            let is_late = !is_held_back && is_late(entry, known);
            let left = addresses.of(goal.other());
            let left_is_given = !is_late || left.iter().all(|left| is_assignable(left, self.ranges));
            // A Service that is rolled back has had the other address, and may get it again. No client uses an address that it
            // never had.
            let is_known = goal == Side::New || !self.untouched.contains(key);
            let left_is_used = (left_is_used || is_held_back) && is_known;
            let mut versions = DefaultHasher::new();
            (surroundings, left_is_used, left_is_given, goal).hash(&mut versions);
            (&addresses.old, &addresses.new).hash(&mut versions);
            // Restarting pods change endpoints all the time. Once the Service has its address, the endpoints of
            // kube-controller-manager do not matter for the decision.
            let is_there = !is_held_back && entry.is_at(addresses.of(goal));
            let depends_on_endpoints = !(is_there && entry.is_selected);
            let mut of = |entry: &Entry| {
                entry.version.hash(&mut versions);
                let name = (entry.namespace.clone(), entry.name.clone());
                for (_, slice) in self.index.slices(&name).filter(|_| depends_on_endpoints) {
                    slice.version.hash(&mut versions);
                }
            };
            of(entry);
            let (mut is_begun, mut size) = (entry.is_marked, entry.size);
            for helper in self.index.helpers(&name) {
                is_begun = true;
                size += helper.size;
                of(helper);
            }
            let fingerprint = versions.finish();
            let refused = self
                .context
                .obstacles
                .reason_to_wait(&format!("Service {key}"), self.now);
            let is_elsewhere = is_elsewhere(entry, addresses.of(goal), changed.of(goal.other()));
            let is_arrived = is_elsewhere || (entry.is_at(addresses.of(goal)) && !left_is_used);
            // No helper or mark remains, and nothing is missing.
            let is_done = is_arrived && !is_begun;
            let too_large = || self.too_large(entry, &name).filter(|_| !is_done);
            let (decision, stands) = if let Some(wait) = refused.map(refusal).or_else(too_large) {
                (Some(Decision::Wait(wait)), Some(Standing::Stuck))
            } else if is_done {
                (Some(Decision::Settled), Some(Standing::Settled))
            } else {
                let decision = reads.decided.of(key, fingerprint);
                let stands = decision.as_ref().and_then(Standing::of);
                (decision, stands)
            };
            let place = QueuedService {
                name: key.clone(),
                turn: entry.turn(),
                is_there: !is_held_back && (is_elsewhere || entry.is_at(addresses.of(goal))),
                is_away: entry.is_away(),
                is_held_back,
                is_begun,
                is_served: self.index.is_served(&name),
                stands,
            };
            let listed = Listed {
                name,
                addresses,
                goal,
                left_is_used,
                left_is_given,
                is_late,
                fingerprint,
                size,
                decision,
                is_gone: false,
            };
            Some((place, listed))
        })
        .collect()
    }

    /// The wait for a Service whose endpoints cannot be copied for helpers: its owner writes them, in any number.
    fn too_large(&self, entry: &Entry, name: &Name) -> Option<Wait> {
        if entry.is_selected {
            return None;
        }
        let sizes = names(&name.0, &name.1).flat_map(|name| {
            let slices = self.index.slices(&name).map(|(_, slice)| slice.size);
            slices.collect::<Vec<_>>()
        });
        let size: usize = sizes.sum();
        (size > MOST_COPIED).then(|| Wait {
            reason: WaitReason::ConfigurationFollowUp,
            message: format!(
                "Service {}: found {} KiB of EndpointSlices and no selector, needed at most {} KiB, because they are copied for \
                 the helpers. Fix: add a selector to the Service, or delete some of its EndpointSlices",
                entry.key(),
                size / 1024,
                MOST_COPIED / 1024
            ),
            until: None,
        })
    }
}

/// The existing Services, for their common decision.
pub(super) fn views(
    line: Vec<QueuedService>,
    listed: Vec<Listed<'_>>,
    waits: &mut ExchangeTimes,
    now: Timestamp,
) -> Vec<ServiceView> {
    let there = line.into_iter().zip(listed).filter(|(_, listed)| !listed.is_gone);
    there
        .map(|(place, listed)| ServiceView {
            uncovered: listed.uncovered(),
            is_late: listed.is_late,
            turn: place.turn,
            is_slow: waits.is_slow(&place.name, listed.decision.as_ref(), now),
            has_target_address: place.is_there,
            is_rolled_back: place.is_held_back,
            has_no_address: place.is_away,
            is_served: place.is_served,
            decision: listed.decision,
            name: place.name,
        })
        .collect()
}

/// Whether the owner of a Service has changed it so that it has nothing to exchange. `goal`: its target addresses, `leaves`: the
/// source ranges.
pub(super) fn is_elsewhere(entry: &Entry, goal: &[IpAddr], leaves: &[IpNet]) -> bool {
    !entry.is_away() && !entry.is_at(goal) && !matches!(entry.class(leaves), Class::Moves(_))
}

/// Whether a Service was created after the exchange had started.
pub(in super::super::super) fn is_late(entry: &Entry, known: &ServiceCidrStatus) -> bool {
    let began = known.exchange_started_at;
    entry
        .created
        .is_some_and(|at| began.is_some_and(|began| at > began))
}

/// A hash of the inputs of a decision.
pub(super) fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
