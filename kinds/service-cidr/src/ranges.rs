//! The ranges of Services: `ServiceCIDR`s, and the effect of a deletion.
//!
//! Kubernetes completes the deletion of a `ServiceCIDR` once no address needs it. For that, it counts every other `ServiceCIDR`
//! with the address, also those that are being deleted: two of them with the same addresses are both removed, and then no range
//! contains the addresses (`canDeleteCIDR`, v1.36). So two overlapping ones are never deleted at the same time.

use std::net::IpAddr;

use ipnet::IpNet;

use super::covers::{Kept, contains};
use super::range_name::is_cover;
use engine::ranges::overlap;

/// Name of the `ServiceCIDR` that API servers create from their flag, and create again when it is deleted.
pub const DEFAULT: &str = "kubernetes";

/// A `ServiceCIDR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Its name.
    pub name: String,
    /// Its ranges, at most one of each family.
    pub ranges: Vec<IpNet>,
    /// Whether its condition Ready is True.
    pub ready: bool,
    /// Whether it is being deleted: then it assigns no addresses, and stays while addresses of it are in use.
    pub terminating: bool,
}

impl ServiceCidr {
    /// Whether it assigns addresses.
    fn gives(&self) -> bool {
        self.ready && !self.terminating
    }

    /// Whether it assigns addresses of these source ranges, or will once it is Ready. A cover of the addresses that load
    /// balancers keep does not count.
    pub fn is_open(&self, source: &[IpNet], kept: &Kept) -> bool {
        let is_source = |own: &IpNet| {
            source.contains(own)
                || (is_cover(&self.name)
                    && source.iter().any(|range| range.contains(own))
                    && !kept.covers().contains(own))
        };
        !self.terminating && self.ranges.iter().any(is_source)
    }

    /// The same without the covers of single addresses, which are for late Services only.
    pub fn is_open_to_all(&self, source: &[IpNet], kept: &Kept) -> bool {
        self.is_open(source, kept) && !is_cover(&self.name)
    }

    fn holds(&self, address: &IpAddr) -> bool {
        self.ranges.iter().any(|range| contains(range, address))
    }
}

/// Whether this address can be assigned to a Service.
pub fn is_assignable(address: &IpAddr, all: &[ServiceCidr]) -> bool {
    all.iter().any(|cidr| cidr.gives() && cidr.holds(address))
}

/// The effect of the deletion of a `ServiceCIDR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionEffect {
    /// Its deletion completes within seconds.
    Goes,
    /// It stays because of these addresses, and assigns no new ones.
    Holds(Vec<IpAddr>),
}

/// The effect of the deletion of this `ServiceCIDR` while Services have these addresses.
pub fn fate(deleted: &ServiceCidr, all: &[ServiceCidr], addresses: &[IpAddr]) -> DeletionEffect {
    let others = || all.iter().filter(|cidr| cidr.name != deleted.name);
    let is_within =
        |range: &IpNet| others().any(|other| other.ranges.iter().any(|around| around.contains(range)));
    if deleted.ranges.iter().all(is_within) {
        return DeletionEffect::Goes;
    }
    let needs_it = |address: &&IpAddr| deleted.holds(address) && !others().any(|other| other.holds(address));
    let held: Vec<IpAddr> = addresses.iter().filter(needs_it).copied().collect();
    if held.is_empty() {
        DeletionEffect::Goes
    } else {
        DeletionEffect::Holds(held)
    }
}

/// Another `ServiceCIDR` that is being deleted, overlaps this one and would be removed together with it: then no range would
/// contain the addresses of Services. The API server removes the other one within seconds.
pub fn deleted_together_with<'all>(
    deleted: &ServiceCidr,
    all: &'all [ServiceCidr],
    addresses: &[IpAddr],
) -> Option<&'all ServiceCidr> {
    let overlaps = |other: &ServiceCidr| {
        let ranges = deleted.ranges.iter();
        ranges
            .clone()
            .any(|range| other.ranges.iter().any(|one| overlap(one, range)))
    };
    let goes = |range: &ServiceCidr| fate(range, all, addresses) == DeletionEffect::Goes;
    all.iter()
        .filter(|other| other.name != deleted.name && other.terminating && overlaps(other))
        .find(|other| goes(other) && goes(deleted))
}

/// The ranges as written in the API servers' flag.
pub fn joined(ranges: &[IpNet]) -> String {
    let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    texts.join(",")
}

/// The ranges of the cluster after the migration: those of the default `ServiceCIDR`, with the ranges of `to` for their families.
pub fn afterwards(default: &[IpNet], to: &[IpNet]) -> Vec<IpNet> {
    default
        .iter()
        .map(|range| {
            let of_family = to
                .iter()
                .find(|other| other.max_prefix_len() == range.max_prefix_len());
            *of_family.unwrap_or(range)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn cidr(name: &str, ranges: &[&str], terminating: bool) -> ServiceCidr {
        ServiceCidr {
            name: name.to_owned(),
            ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            ready: !terminating,
            terminating,
        }
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[rstest]
    #[case::unused(&[], DeletionEffect::Goes)]
    #[case::in_use(&["10.96.0.1", "10.96.0.9"], DeletionEffect::Holds(addresses(&["10.96.0.1", "10.96.0.9"])))]
    #[case::another_range(&["172.30.0.1"], DeletionEffect::Goes)]
    #[case::one_uncovered(&["10.96.3.9", "10.96.0.1"], DeletionEffect::Holds(addresses(&["10.96.0.1"])))]
    #[case::all_covered(&["10.96.3.9"], DeletionEffect::Goes)]
    // A cover of two addresses contains neither.
    #[case::cover_too_small(&["10.96.4.1"], DeletionEffect::Holds(addresses(&["10.96.4.1"])))]
    fn a_deleted_default_range_stays_while_addresses_need_it(
        #[case] taken: &[&str],
        #[case] expected: DeletionEffect,
    ) {
        let all = [
            cidr(DEFAULT, &["10.96.0.0/16"], false),
            cidr("new", &["172.30.0.0/16"], false),
            cidr("cover-1", &["10.96.3.8/30"], false),
            cidr("cover-2", &["10.96.4.0/31"], false),
        ];
        assert_eq!(fate(&all[0], &all, &addresses(taken)), expected);
    }

    #[test]
    fn a_range_within_another_is_deleted_whatever_it_contains() {
        let all = [
            cidr(DEFAULT, &["172.30.0.0/16", "fd00:96::/112"], false),
            cidr("new", &["172.30.0.0/16", "fd00:96::/112"], false),
        ];
        assert_eq!(
            fate(&all[1], &all, &addresses(&["172.30.0.1"])),
            DeletionEffect::Goes
        );
        // Only one family is within it, which is not enough.
        let all = [
            all[0].clone(),
            cidr("new", &["172.30.0.0/16", "fd00:30::/112"], false),
        ];
        let held = addresses(&["fd00:30::1"]);
        assert_eq!(fate(&all[1], &all, &held), DeletionEffect::Holds(held));
    }

    #[test]
    fn overlapping_ranges_are_not_deleted_together() {
        let all = [
            cidr(DEFAULT, &["10.96.0.0/16"], true),
            cidr("cover", &["10.96.3.8/30"], false),
            cidr("far", &["10.97.3.8/30"], false),
        ];
        assert_eq!(
            deleted_together_with(&all[1], &all, &addresses(&["10.96.3.9"])).map(|other| other.name.as_str()),
            Some(DEFAULT)
        );
        assert_eq!(deleted_together_with(&all[2], &all, &[]), None);
        assert_eq!(deleted_together_with(&all[0], &all, &[]), None);
        // A range that stays because of an address also contains the addresses of the other one.
        let held = addresses(&["10.96.3.9", "10.96.0.1"]);
        assert_eq!(deleted_together_with(&all[1], &all, &held), None);
    }

    #[test]
    fn only_a_ready_range_assigns_addresses() {
        let [one, other]: [IpAddr; 2] = ["10.96.0.1", "10.96.0.0"].map(|text| text.parse().unwrap());
        let ready = [cidr(DEFAULT, &["10.96.0.0/16"], false)];
        assert!(is_assignable(&one, &ready) && !is_assignable(&other, &ready));
        assert!(!is_assignable(&one, &[cidr(DEFAULT, &["10.96.0.0/16"], true)]));
        let mut unready = ready.clone();
        unready[0].ready = false;
        assert!(!is_assignable(&one, &unready));
    }

    #[rstest]
    #[case(&["10.96.0.0/16"], &["172.30.0.0/16"], &["172.30.0.0/16"])]
    #[case(&["10.96.0.0/16", "fd00:96::/112"], &["fd00:30::/112"], &["10.96.0.0/16", "fd00:30::/112"])]
    #[case(&["fd00:96::/112", "10.96.0.0/16"], &["172.30.0.0/16", "fd00:30::/112"], &["fd00:30::/112", "172.30.0.0/16"])]
    fn afterwards_keeps_the_order_of_families(
        #[case] default: &[&str],
        #[case] to: &[&str],
        #[case] expected: &[&str],
    ) {
        let ranges =
            |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        assert_eq!(afterwards(&ranges(default), &ranges(to)), ranges(expected));
    }
}
