//! The Services of one pass: those in turn are observed, the others are known from the watches.

mod listed;
mod spares;
mod warnings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::migration::ServiceCidrStatus;
use engine::decision::Decision;
use kube::ResourceExt;
use service_cidr::assignment::sort;
use service_cidr::decide::{LIGHT_AT_ONCE, ServiceView};
use service_cidr::entry::Entry;
use service_cidr::exchange::{self, Own, Role};
use service_cidr::queue::{QueuedService, to_observe};

pub(super) use self::listed::is_late;
use self::listed::{Listed, hash, is_elsewhere, views};
use self::spares::Spares;
use super::super::answers::Answers;
use super::super::knowledge::{Asking, Knowledge, Known, RulesOf};
use super::super::observed::{Observed, Seen, Subject};
use super::super::pass::Pass;
use super::super::read_cache::ReadCache;
use super::super::service_index::name_of;
use super::super::services_at_once;
use super::service::{Around, observe};
use crate::memory::Memory;
use crate::read_error::ReadError;

/// Most Services that are observed in one pass.
const MOST_OBSERVED: usize = 512;
/// Bytes from which a Service with its helpers is large.
const LARGE: usize = 32 << 10;
/// Bytes of large Services that are read in one pass. The largest that the API accepts, with five helpers, has some 10 MiB.
const MOST_READ: usize = 16 << 20;

/// The Services that change, in this pass.
#[derive(Default)]
pub(in super::super) struct Services {
    /// Each of them, in the order of the exchange.
    pub(in super::super) views: Vec<ServiceView>,
    /// The observed ones.
    pub(in super::super) seen: BTreeMap<String, (Subject, Seen)>,
    /// The question to agents.
    pub(in super::super) asking: Asking,
}

impl Pass<'_> {
    /// Observes the Services in turn. `left_is_used`: whether a client may use source addresses.
    pub(super) async fn services(
        &self,
        memory: &mut Memory,
        known: &ServiceCidrStatus,
        answers: &Answers<'_>,
        left_is_used: bool,
    ) -> Result<Services, ReadError> {
        let ground = self.ground(known);
        let reads = memory.kinds.of::<ReadCache>();
        let mut listed = self.listed(reads, known, left_is_used, &ground);
        sort(&mut listed, &self.kind.order, |(place, _)| {
            (place.turn, place.name.clone())
        });
        let (mut line, mut listed): (Vec<QueuedService>, Vec<Listed<'_>>) = listed.into_iter().unzip();
        let knowledge = Knowledge::new(answers, &reads.confirmed, reads.expected.question());
        let mut spares = Spares::default();
        let mut seen = BTreeMap::new();
        let mut at_once = services_at_once(self.kind);
        let mut left = MOST_OBSERVED;
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
            reads
                .whole
                .read(&self.context.client, &self.cache.of_kind(), self.index, names)
                .await?;
            let observed = Observed {
                index: self.index,
                whole: &reads.whole,
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
                let is_restless = reads.waits.is_restless(&place.name, self.now);
                let subject = listed.subject(spares.next(self, known), is_restless);
                let Some(found) = observe(&observed, &subject, &around) else {
                    listed.is_gone = true;
                    continue;
                };
                let decision = exchange::decide(&found.view);
                steps += usize::from(matches!(decision, Decision::Run(_)));
                reads.decided.keep(&place.name, listed.fingerprint, &decision);
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
        reads.confirmed = confirmed;
        reads.keep_only(self.index, &self.assigned.book, seen.keys());
        let views = views(line, listed, &mut reads.waits, self.now);
        let told = self.told(known, &views, &reads.waits);
        memory.warnings.of_kind(&self.migration.name_any(), told);
        Ok(Services { views, seen, asking })
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
}

/// Indexes of the large Services that are not read in this pass; `sizes`: names and bytes. Large ones take turns, in another
/// order at each `moment`: tenants decide the size and the number of their Services.
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

#[cfg(test)]
mod tests;
