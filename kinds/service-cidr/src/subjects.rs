//! Which Services exchange their addresses, for which, and in which order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::Value;

use super::addresses::assign_some;
use super::class::Class;
use super::decide::Turn;
use super::entry::{self, Entry};
use super::objects::is_helper;
use super::settings::Settings;
use super::side::{Side, Sides};

/// The addresses of every Service that changes, as they were before and in the new range, by `namespace/name`.
pub type Book = BTreeMap<String, Sides<Vec<IpAddr>>>;

/// The book as it is to be, and who has no place in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Booked {
    /// The book.
    pub book: Book,
    /// Services that change their addresses, and for which the ranges that they come to have no room.
    pub without_room: Vec<String>,
}

/// `namespace/name` of an object.
pub fn key(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

/// Services that are no helpers.
pub fn of_migration(services: &[Value]) -> impl Iterator<Item = &Value> {
    services.iter().filter(|service| !is_helper(service))
}

/// What a book is made on.
pub struct Ground<'ground> {
    /// The addresses that Services are led to.
    pub goal: Side,
    /// What the migration works with.
    pub settings: &'ground Settings,
    /// When the migration began; `None` before that. A Service that came later may be led to any address.
    pub since: Option<Timestamp>,
    /// Which Service has this address.
    pub holder: &'ground dyn Fn(&IpAddr) -> Option<&'ground Entry>,
}

/// The book with every Service that has an address of a range that is left, and without those that are gone. What was written of a
/// Service stays, since its exchange may have begun, with two exceptions: the owner has given it another address of a range that is left;
/// or another Service has taken the address that was meant for it, and no client knows that one yet. A Service that comes when there is
/// no room is named, and takes no other's place.
pub fn book<'entry>(
    before: &Book,
    services: impl IntoIterator<Item = &'entry Entry>,
    ground: &Ground<'_>,
) -> Booked {
    let goal = ground.goal;
    let changed = ground.settings.changed();
    let (left, target) = (changed.of(goal.other()), changed.of(goal));
    let mut book = Book::new();
    let mut found: Vec<(String, Vec<IpAddr>)> = Vec::new();
    for service in entry::of_migration(services) {
        let name = service.key();
        let written = before.get(&name);
        if let Some(both) = written
            && !is_to_be_booked_anew(service, both, left, ground)
        {
            book.insert(name, both.clone());
        } else if let Class::Moves(addresses) = service.class(left) {
            found.push((name, addresses));
        }
    }
    let booked: BTreeSet<IpAddr> = book.values().flat_map(|both| both.of(goal)).copied().collect();
    let by_address: BTreeMap<IpAddr, &str> = found
        .iter()
        .flat_map(|(name, addresses)| addresses.iter().map(|address| (*address, name.as_str())))
        .collect();
    let is_taken = |address: &IpAddr, by: Option<&IpAddr>| {
        let service = by.and_then(|by| by_address.get(by).copied());
        // A helper keeps the address for its Service.
        let is_kept = |holder: &Entry| {
            let of = holder.helper_of.as_ref();
            of.is_some_and(|of| service == Some(format!("{}/{of}", holder.namespace).as_str()))
        };
        (ground.holder)(address).is_some_and(|holder| !is_kept(holder)) || booked.contains(address)
    };
    let mut assigned: BTreeMap<IpAddr, IpAddr> = BTreeMap::new();
    for (from, to) in left.iter().zip(target) {
        let of_family: BTreeSet<IpAddr> = found
            .iter()
            .flat_map(|(_, addresses)| addresses)
            .filter(|address| from.contains(*address))
            .copied()
            .collect();
        if !of_family.is_empty() {
            assigned.extend(assign_some(&of_family, from, to, is_taken).given);
        }
    }
    let mut without_room = Vec::new();
    for (name, here) in found {
        let there: Option<Vec<IpAddr>> = here
            .iter()
            .map(|address| assigned.get(address).copied())
            .collect();
        let Some(there) = there else {
            without_room.push(name);
            continue;
        };
        let mut both = Sides::default();
        *both.of_mut(goal.other()) = here;
        *both.of_mut(goal) = there;
        book.insert(name, both);
    }
    Booked { book, without_room }
}

/// Whether what was written of this Service is of no use any more, and nothing has begun that depends on it.
fn is_to_be_booked_anew(
    service: &Entry,
    both: &Sides<Vec<IpAddr>>,
    left: &[IpNet],
    ground: &Ground<'_>,
) -> bool {
    let Class::Moves(own) = service.class(left) else {
        return false;
    };
    if service.is_at(both.of(ground.goal)) {
        return false;
    }
    if own != *both.of(ground.goal.other()) {
        return true;
    }
    // Clients of a Service from before know its old address, and the API servers' Service has the first one of its range.
    let may_have_any = ground.goal == Side::New
        || service
            .created
            .is_some_and(|at| ground.since.is_some_and(|since| at > since));
    let is_of_another = |holder: &Entry| {
        holder.namespace != service.namespace
            || (holder.name != service.name && holder.helper_of.as_ref() != Some(&service.name))
    };
    let mut wanted = both.of(ground.goal).iter();
    may_have_any
        && service.turn() != Turn::Kubernetes
        && wanted.any(|address| (ground.holder)(address).is_some_and(is_of_another))
}

/// In which order Services go: by their turn, then as the user wrote, then the first of each namespace, the second of each, and so on.
/// A tenant with thousands of Services keeps no other tenant waiting.
pub fn sort<T>(services: &mut [T], order: &[String], of: impl Fn(&T) -> (Turn, String)) {
    services.sort_by_cached_key(&of);
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    let places: BTreeMap<&str, usize> = order
        .iter()
        .enumerate()
        .map(|(place, name)| (name.as_str(), place))
        .collect();
    let ranks: BTreeMap<String, (usize, usize)> = services
        .iter()
        .map(|service| {
            let (_, name) = of(service);
            let namespace = name.split('/').next().unwrap_or_default().to_owned();
            let place = places.get(name.as_str()).copied().unwrap_or(order.len());
            let rank = count.entry(namespace).or_default();
            *rank += 1;
            (name, (place, *rank))
        })
        .collect();
    services.sort_by_cached_key(|service| {
        let (turn, name) = of(service);
        (turn, ranks.get(&name).copied(), name)
    });
}

/// How many Services have an address of either side's ranges: those of the old one, and those of the new one.
pub fn counts<'entry>(
    services: impl IntoIterator<Item = &'entry Entry>,
    settings: &Settings,
) -> Sides<usize> {
    let changed = settings.changed();
    let mut counts = Sides::default();
    for service in entry::of_migration(services) {
        for side in Side::ALL {
            let is_of = |address: &IpAddr| changed.of(side).iter().any(|range| range.contains(address));
            *counts.of_mut(side) += usize::from(service.addresses.iter().any(is_of));
        }
    }
    counts
}

/// Addresses at the end of the ranges that Services come to, which nobody has and nobody is to have: for helpers that are only to
/// have any address. Each is one of each family that changes.
pub fn spare(
    count: usize,
    goal: Side,
    book: &Book,
    is_taken: impl Fn(&IpAddr) -> bool,
    settings: &Settings,
) -> Vec<Vec<IpAddr>> {
    let written: BTreeSet<&IpAddr> = book.values().flat_map(|both| both.of(goal)).collect();
    let changed = settings.changed();
    let of_families: Vec<Vec<IpAddr>> = changed
        .of(goal)
        .iter()
        .map(|range| {
            super::addresses::from_the_end(range)
                .filter(|address| !is_taken(address) && !written.contains(address))
                .take(count)
                .collect()
        })
        .collect();
    (0..count)
        .map_while(|place| {
            of_families
                .iter()
                .map(|family| family.get(place).copied())
                .collect()
        })
        .collect()
}

#[cfg(test)]
#[path = "subjects_tests.rs"]
mod tests;
