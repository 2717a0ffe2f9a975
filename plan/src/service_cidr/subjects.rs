//! Which Services exchange their addresses, for which, and in which order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use super::addresses::assign_some;
use super::class::{Class, addresses};
use super::decide::Turn;
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

/// Services that are nobody's helper.
pub fn of_migration(services: &[Value]) -> impl Iterator<Item = &Value> {
    services.iter().filter(|service| !is_helper(service))
}

/// The book with every Service that has an address of a range that is left, and without those that are gone. `taken` are addresses
/// that somebody has. What was written into it once stays: somebody may be half way there. Whoever comes when there is no room is
/// named, and takes no other's place.
pub fn book(
    before: &Book,
    services: &[Value],
    taken: &BTreeSet<IpAddr>,
    goal: Side,
    settings: &Settings,
) -> Booked {
    let mut book = before.clone();
    let names: BTreeSet<String> = services.iter().map(key).collect();
    book.retain(|name, _| names.contains(name));
    let changed = settings.changed();
    let (left, target) = (changed.of(goal.other()), changed.of(goal));
    let mut found: Vec<(String, Vec<IpAddr>)> = Vec::new();
    for service in of_migration(services) {
        let name = key(service);
        if book.contains_key(&name) {
            continue;
        }
        if let Class::Moves(addresses) = Class::of(&service["spec"], left) {
            found.push((name, addresses));
        }
    }
    let written: BTreeSet<IpAddr> = book.values().flat_map(|both| both.of(goal)).copied().collect();
    let taken: BTreeSet<IpAddr> = taken.union(&written).copied().collect();
    let mut assigned: BTreeMap<IpAddr, IpAddr> = BTreeMap::new();
    for (from, to) in left.iter().zip(target) {
        let of_family: BTreeSet<IpAddr> = found
            .iter()
            .flat_map(|(_, addresses)| addresses)
            .filter(|address| from.contains(*address))
            .copied()
            .collect();
        assigned.extend(assign_some(&of_family, from, to, &taken).given);
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

/// When this Service goes.
pub fn turn(name: &str, service: &Value) -> Turn {
    let is_name_service = service["metadata"]["namespace"] == "kube-system"
        && service["metadata"]["labels"]["k8s-app"] == "kube-dns";
    if name == "default/kubernetes" {
        Turn::Kubernetes
    } else if is_name_service {
        Turn::NameServer
    } else {
        Turn::Other
    }
}

/// In which order Services go: by their turn, then as somebody wrote, then by name.
pub fn sort<T>(services: &mut [T], order: &[String], of: impl Fn(&T) -> (Turn, String)) {
    services.sort_by_cached_key(|service| {
        let (turn, name) = of(service);
        let place = order
            .iter()
            .position(|wanted| *wanted == name)
            .unwrap_or(order.len());
        (turn, place, name)
    });
}

/// How many Services have an address of either side's ranges: those of the old one, and those of the new one.
pub fn counts(services: &[Value], settings: &Settings) -> Sides<usize> {
    let changed = settings.changed();
    Sides::each(|side| {
        of_migration(services)
            .filter(|service| {
                let mut said = addresses(&service["spec"]).into_iter();
                said.any(|address| changed.of(side).iter().any(|range| range.contains(&address)))
            })
            .count()
    })
}

/// Addresses at the end of the ranges that Services come to, which nobody has and nobody is to have: for helpers that are only to
/// have any address. Each is one of each family that changes.
pub fn spare(
    count: usize,
    goal: Side,
    book: &Book,
    taken: &BTreeSet<IpAddr>,
    settings: &Settings,
) -> Vec<Vec<IpAddr>> {
    let written: BTreeSet<&IpAddr> = book.values().flat_map(|both| both.of(goal)).collect();
    let changed = settings.changed();
    let of_families: Vec<Vec<IpAddr>> = changed
        .of(goal)
        .iter()
        .map(|range| {
            super::addresses::from_the_end(range)
                .filter(|address| !taken.contains(address) && !written.contains(address))
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
