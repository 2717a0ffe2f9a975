//! The Services that change their addresses, their target addresses, and their order.

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

/// The old and the new addresses of every Service that changes, by `namespace/name`.
pub type AssignedAddresses = BTreeMap<String, Sides<Vec<IpAddr>>>;

/// The assigned addresses, and the Services without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The assigned addresses.
    pub book: AssignedAddresses,
    /// Services that should change their addresses, and for which the target ranges have no free one.
    pub without_room: Vec<String>,
}

/// `namespace/name` of an object.
pub fn key(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

/// The Services that are not helpers.
pub fn of_migration(services: &[Value]) -> impl Iterator<Item = &Value> {
    services.iter().filter(|service| !is_helper(service))
}

/// The inputs of the assignment of addresses.
pub struct AssignmentInputs<'ground> {
    /// The side of the target addresses.
    pub goal: Side,
    /// The settings of the migration.
    pub settings: &'ground Settings,
    /// When the migration started; `None` before that. A Service that was created later may get any address.
    pub since: Option<Timestamp>,
    /// The Service that has an address.
    pub holder: &'ground dyn Fn(&IpAddr) -> Option<&'ground Entry>,
}

/// Assigns addresses to every Service with an address of a source range. Deleted Services are dropped. Earlier assignments
/// stay, because the exchange may have started, with two exceptions: the owner has given the Service another source address; or
/// another Service has taken the assigned address, and no client knows it yet. A Service for which no address is free is
/// listed, and displaces no other.
pub fn assign_addresses<'entry>(
    before: &AssignedAddresses,
    services: impl IntoIterator<Item = &'entry Entry>,
    ground: &AssignmentInputs<'_>,
) -> Assignment {
    let goal = ground.goal;
    let changed = ground.settings.changed();
    let (source, target) = (changed.of(goal.other()), changed.of(goal));
    let mut book = AssignedAddresses::new();
    let mut found: Vec<(String, Vec<IpAddr>)> = Vec::new();
    for service in entry::of_migration(services) {
        let name = service.key();
        let written = before.get(&name);
        if let Some(both) = written
            && !is_outdated(service, both, source, ground)
        {
            book.insert(name, both.clone());
        } else if let Class::Moves(addresses) = service.class(source) {
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
        // A helper reserves the address for its Service.
        let is_kept = |holder: &Entry| {
            let of = holder.helper_of.as_ref();
            of.is_some_and(|of| service == Some(format!("{}/{of}", holder.namespace).as_str()))
        };
        (ground.holder)(address).is_some_and(|holder| !is_kept(holder)) || booked.contains(address)
    };
    let mut assigned: BTreeMap<IpAddr, IpAddr> = BTreeMap::new();
    for (from, to) in source.iter().zip(target) {
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
    Assignment { book, without_room }
}

/// Whether the earlier assignment of this Service is unusable, and no exchange has started with it.
fn is_outdated(
    service: &Entry,
    both: &Sides<Vec<IpAddr>>,
    source: &[IpNet],
    ground: &AssignmentInputs<'_>,
) -> bool {
    let Class::Moves(own) = service.class(source) else {
        return false;
    };
    if service.is_at(both.of(ground.goal)) {
        return false;
    }
    if own != *both.of(ground.goal.other()) {
        return true;
    }
    // Clients of a Service from before the migration know its old address, and `default/kubernetes` has the first address of
    // the range.
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

/// Sorts Services into rollout order: by turn, then by the list `order`, then the first of each namespace, the second of each,
/// and so on, so that a tenant with thousands of Services does not delay other tenants.
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

/// The number of Services with an address of the old ranges, and with an address of the new ranges.
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

/// Spare addresses for helpers: at the end of the target ranges, not in use and not assigned. Each item has one of each family
/// that changes.
pub fn spare(
    count: usize,
    goal: Side,
    book: &AssignedAddresses,
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
mod tests;
