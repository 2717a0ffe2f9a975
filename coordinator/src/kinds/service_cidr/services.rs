//! The Services of one pass: those in turn are observed, the others are known from the watches.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use api::migration::ServiceCidrStatus;
use engine::decision::{Decision, Wait, WaitReason};
use ipnet::IpNet;
use jiff::Timestamp;
use kube::ResourceExt;
use service_cidr::assignment::{sort, spare};
use service_cidr::class::Class;
use service_cidr::decide::{LIGHT_AT_ONCE, ServiceView};
use service_cidr::entry::Entry;
use service_cidr::exchange::{self, Own, Part, Parts, Role};
use service_cidr::objects::{BridgeFacts, Spare};
use service_cidr::queue::{QueuedService, Standing, to_observe};
use service_cidr::ranges::is_assignable;
use service_cidr::side::{Side, Sides};

use super::drive::Pass;
use super::exchange::{Seen, Subject};
use super::index::{Name, name_of};
use super::knowledge::{Answers, Asking, Knowledge, Known, RulesOf};
use super::observe::{Around, look};
use super::observed::Observed;
use super::read_cache::{ExchangeTimes, ReadCache};
use super::services_at_once;
use super::whole_objects::names;
use crate::memory::Memory;
use crate::obstacles::refusal;
use crate::write::WriteError;

/// Most Services that are observed in one pass.
const MOST_LOOKS: usize = 512;
/// Most bytes of slices of one Service that are copied: some 3 000 endpoints. The owner decides how many there are.
const MOST_COPIED: usize = 1 << 20;
/// Bytes from which a Service with its helpers is large.
const LARGE: usize = 32 << 10;
/// Bytes of large Services that are read in one pass. The largest that the API accepts, with five helpers, has some 10 MiB.
const MOST_READ: usize = 16 << 20;
/// Number of late Services in one namespace from which a warning says why the migration takes longer.
const CROWD: usize = 100;

/// The Services that change, in this pass.
#[derive(Default)]
pub(super) struct Services {
    /// Each of them, in the order of the exchange.
    pub(super) views: Vec<ServiceView>,
    /// The observed ones.
    pub(super) seen: BTreeMap<String, (Subject, Seen)>,
    /// The question to agents.
    pub(super) asking: Asking,
}

impl Services {
    /// Number of Services that have their target address.
    pub(super) fn migrated(&self) -> usize {
        self.views.iter().filter(|view| view.has_target_address).count()
    }
}

/// One Service that changes, besides its place in the line.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Listed<'pass> {
    name: Name,
    addresses: &'pass Sides<Vec<IpAddr>>,
    goal: Side,
    left_is_used: bool,
    left_is_given: bool,
    /// Whether it was created after the exchange had started.
    is_late: bool,
    /// A hash of the inputs of its decision.
    fingerprint: u64,
    /// Bytes of the Service and its helpers.
    size: usize,
    decision: Option<Decision<exchange::Step>>,
    /// Whether it was deleted.
    is_gone: bool,
}

impl Listed<'_> {
    /// Addresses that need a range before the Service can continue.
    fn uncovered(&self) -> Vec<IpAddr> {
        match &self.decision {
            Some(decision) if self.is_late && exchange::waits_for_source(decision) => {
                self.addresses.of(self.goal.other()).clone()
            }
            Some(_) | None => Vec::new(),
        }
    }
}

impl Pass<'_> {
    /// Observes the Services in turn. `left_is_used`: whether a client may use source addresses.
    pub(super) async fn services(
        &self,
        memory: &mut Memory,
        known: &ServiceCidrStatus,
        answers: &Answers<'_>,
        left_is_used: bool,
    ) -> Result<Services, WriteError> {
        let ground = self.ground(known);
        let looks = memory.kinds.of::<ReadCache>();
        let mut listed = self.listed(looks, known, left_is_used, &ground);
        sort(&mut listed, &self.kind.order, |(place, _)| {
            (place.turn, place.name.clone())
        });
        let (mut line, mut listed): (Vec<QueuedService>, Vec<Listed<'_>>) = listed.into_iter().unzip();
        let knowledge = Knowledge::new(answers, &looks.confirmed, looks.expected.question());
        let mut spares = Spares::default();
        let mut seen = BTreeMap::new();
        let mut at_once = services_at_once(self.kind);
        let mut left = MOST_LOOKS;
        let sizes = line.iter().zip(&listed).map(|(place, listed)| {
            let size = if place.is_away { 0 } else { listed.size };
            (place.name.as_str(), size)
        });
        let waiting = out_of_turn(sizes, self.now.as_second());
        loop {
            let is_seen = |index: usize| {
                listed[index].decision.is_some() || listed[index].is_gone || waiting.contains(&index)
            };
            let mut window = to_observe(&line, is_seen, at_once);
            window.truncate(left);
            left -= window.len();
            let mut steps = 0;
            let names = window.iter().map(|index| listed[*index].name.clone());
            looks
                .whole
                .read(&self.context.client, &self.cache.services, self.index, names)
                .await?;
            let observed = Observed {
                index: self.index,
                whole: &looks.whole,
            };
            let around = Around {
                domain: &known.settings.domain.value,
                ground: &ground,
                unknown: &|role, helper| match role {
                    Role::Address(_) => knowledge.missing_rules(helper, RulesOf::Address),
                    Role::Bridge(_) => knowledge.missing_rules(helper, RulesOf::Balancer),
                },
            };
            for index in &window {
                let (place, listed) = (&mut line[*index], &mut listed[*index]);
                let subject = Subject {
                    namespace: listed.name.0.clone(),
                    name: listed.name.1.clone(),
                    addresses: listed.addresses.clone(),
                    spare: spares.next(self, known),
                    goal: listed.goal,
                    source_is_used: listed.left_is_used,
                    source_is_allocated: listed.left_is_given,
                    is_restless: looks.waits.is_restless(&place.name, self.now),
                };
                let Some(found) = look(&observed, &subject, &around) else {
                    listed.is_gone = true;
                    continue;
                };
                let decision = exchange::decide(&found.view);
                steps += usize::from(matches!(decision, Decision::Run(_)));
                looks.decided.keep(&place.name, listed.fingerprint, &decision);
                place.is_there = match found.view.own {
                    Own::At(side) => side == self.goal && listed.goal == self.goal,
                    Own::Elsewhere(_) => true,
                    Own::Away(_) => false,
                };
                place.is_away = matches!(found.view.own, Own::Away(_));
                place.is_served = found.view.is_served;
                if !place.is_begun && place.is_served && !matches!(decision, Decision::Halt(_)) {
                    at_once = at_once.saturating_sub(1);
                }
                listed.decision = Some(decision);
                seen.insert(place.name.clone(), (subject, found));
            }
            if window.is_empty() || left == 0 || steps >= LIGHT_AT_ONCE {
                break;
            }
        }
        let Known { confirmed, asking } = knowledge.finish();
        looks.confirmed = confirmed;
        looks.keep_only(self.index, &self.assigned.book, seen.keys());
        let views = views(line, listed, &mut looks.waits, self.now);
        let told = self.told(known, &views, &looks.waits);
        memory.warnings.of_kind(&self.migration.name_any(), told);
        Ok(Services { views, seen, asking })
    }

    /// Every existing Service of the book, with its decision if that still holds.
    fn listed(
        &self,
        looks: &ReadCache,
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
            // A Service that is rolled back has had the other address, and may get it again. No client uses an address that it never had.
            let is_known = goal == Side::New || !self.untouched.contains(key);
            let left_is_used = (left_is_used || is_held_back) && is_known;
            let mut versions = DefaultHasher::new();
            (surroundings, left_is_used, left_is_given, goal).hash(&mut versions);
            (&addresses.old, &addresses.new).hash(&mut versions);
            // Restarting pods change endpoints all the time. Once the Service has its address, the endpoints of kube-controller-manager
            // do not matter for the decision.
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
                let decision = looks.decided.of(key, fingerprint);
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

    /// Namespaces with a late Service that does not have its target address yet.
    pub(super) fn namespaces_with_late_services_to_move(&self, known: &ServiceCidrStatus) -> BTreeSet<&str> {
        let changed = known.settings.changed();
        let leaves = changed.of(self.goal.other());
        let is_on_its_way = |(entry, addresses): &(&Entry, &[IpAddr])| {
            !entry.is_at(addresses) && !is_elsewhere(entry, addresses, leaves)
        };
        let late = self.latecomers(known).filter(is_on_its_way);
        late.map(|(entry, _)| entry.namespace.as_str()).collect()
    }

    /// Namespaces with Services that were created after the exchange had started.
    pub(super) fn namespaces_with_late_services(&self, known: &ServiceCidrStatus) -> BTreeSet<&str> {
        let late = self.latecomers(known);
        late.map(|(entry, _)| entry.namespace.as_str()).collect()
    }

    /// Services that were created after the exchange had started, each with its target addresses.
    fn latecomers(&self, known: &ServiceCidrStatus) -> impl Iterator<Item = (&Entry, &[IpAddr])> {
        let book = self.assigned.book.iter();
        let there = book.filter_map(|(key, addresses)| {
            let entry = self.index.service(&name_of(key)?)?;
            Some((entry, addresses.of(self.goal).as_slice()))
        });
        there.filter(|(entry, _)| is_late(entry, known))
    }

    /// Warnings about Services that take long, or that their owners have changed: the object, and the text.
    fn told(
        &self,
        known: &ServiceCidrStatus,
        views: &[ServiceView],
        waits: &ExchangeTimes,
    ) -> Vec<(String, String)> {
        let started = self
            .migration
            .status
            .as_ref()
            .and_then(|status| status.started_at);
        let changed = known.settings.changed();
        let (mut crowds, mut told) = (BTreeMap::<&str, usize>::new(), Vec::new());
        for view in views {
            let entry = name_of(&view.name).and_then(|name| self.index.service(&name));
            let Some(entry) = entry else { continue };
            let namespace = entry.namespace.as_str();
            let about = || format!("namespace {namespace}");
            let is_late = entry
                .created
                .is_some_and(|at| started.is_some_and(|started| at > started));
            if is_late && !view.has_target_address {
                *crowds.entry(namespace).or_default() += 1;
            }
            let both = self.assigned.book.get(&view.name);
            let is_at_either =
                both.is_some_and(|both| Side::ALL.iter().any(|side| entry.is_at(both.of(*side))));
            let moves = matches!(entry.class(changed.of(self.goal.other())), Class::Moves(_));
            if !is_at_either && !moves && !entry.is_away() {
                told.push((
                    about(),
                    format!(
                        "Service {}: its owner changed it after the start, and it has no address to exchange: replumb does not \
                         touch it",
                        view.name
                    ),
                ));
            } else if view.is_slow {
                let why = match &view.decision {
                    _ if waits.is_restless(&view.name, self.now) => "its owner edits it all the time",
                    Some(Decision::Wait(wait)) => wait.message.as_str(),
                    Some(Decision::Run(_) | Decision::Settled | Decision::Halt(_)) | None => continue,
                };
                told.push((
                    about(),
                    format!(
                        "Service {}: its exchange takes long, and other Services continue: {why}",
                        view.name
                    ),
                ));
            }
        }
        let crowds = crowds.into_iter().filter(|(_, count)| *count >= CROWD);
        told.extend(crowds.map(|(namespace, count)| {
            (
                format!("namespace {namespace}"),
                format!(
                    "namespace {namespace}: {count} Services created after the start have an address to exchange; Services of \
                     other namespaces do not wait for them"
                ),
            )
        }));
        told
    }
}

/// The existing Services, for their common decision.
fn views(
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

/// Indexes of the large Services that are not read in this pass; `sizes`: names and bytes. Large ones take turns, in another order at each
/// `moment`: tenants decide the size and the number of their Services.
fn out_of_turn<'name>(sizes: impl Iterator<Item = (&'name str, usize)>, moment: i64) -> BTreeSet<usize> {
    let mut large: Vec<(u64, usize, usize)> = sizes
        .enumerate()
        .filter(|(_, (_, size))| *size > LARGE)
        .map(|(index, (name, size))| (hash(&(name, moment)), index, size))
        .collect();
    large.sort_unstable();
    let mut room = MOST_READ;
    large
        .into_iter()
        .filter(|(_, _, size)| {
            let has_room = *size <= room;
            room = room.saturating_sub(*size);
            !has_room
        })
        .map(|(_, index, _)| index)
        .collect()
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// Addresses for helpers that need one: each is used once in a pass.
#[derive(Default)]
struct Spares(Option<std::vec::IntoIter<Vec<IpAddr>>>);

/// Number of addresses that a pass may need.
const MOST_SPARES: usize = MOST_LOOKS * (1 + Part::ALL.len());

impl Spares {
    fn next(&mut self, pass: &Pass<'_>, known: &ServiceCidrStatus) -> Spare {
        let spares = self.0.get_or_insert_with(|| {
            let is_taken = |address: &IpAddr| pass.index.holder(address).is_some();
            spare(
                MOST_SPARES,
                pass.goal,
                &pass.assigned.book,
                is_taken,
                &known.settings,
            )
            .into_iter()
        });
        let mut next = || spares.next().unwrap_or_default();
        Spare {
            helper: next(),
            bridge: Parts::each(|_| next()),
        }
    }
}

/// Whether the owner of a Service has changed it so that it has nothing to exchange. `goal`: its target addresses, `leaves`: the source
/// ranges.
fn is_elsewhere(entry: &Entry, goal: &[IpAddr], leaves: &[IpNet]) -> bool {
    !entry.is_away() && !entry.is_at(goal) && !matches!(entry.class(leaves), Class::Moves(_))
}

/// Whether a Service was created after the exchange had started.
pub(super) fn is_late(entry: &Entry, known: &ServiceCidrStatus) -> bool {
    let began = known.exchange_started_at;
    entry
        .created
        .is_some_and(|at| began.is_some_and(|began| at > began))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_services_take_turns_and_small_ones_are_always_read() {
        let names: Vec<String> = (0..1000).map(|number| format!("tenant/large-{number}")).collect();
        let sizes = || {
            let large = names.iter().map(|name| (name.as_str(), 200 << 10));
            large.chain([("shop/web", 2000), ("shop/media", 100 << 10)])
        };
        let (web, media) = (1000, 1001);
        let (mut read, mut media_read) = (BTreeSet::new(), 0);
        for moment in 0..400 {
            let waiting = out_of_turn(sizes(), moment);
            let now: Vec<usize> = (0..1002).filter(|index| !waiting.contains(index)).collect();
            let bytes: usize = now.iter().map(|index| sizes().nth(*index).unwrap().1).sum();
            assert!(bytes <= MOST_READ + 2000 && now.contains(&web), "{bytes}");
            media_read += usize::from(now.contains(&media));
            read.extend(now);
        }
        assert_eq!(read.len(), 1002, "every Service is read in its turn");
        assert!(media_read > 10, "{media_read}");
        assert!(out_of_turn([("one", MOST_READ)].into_iter(), 0).is_empty());
    }
}
