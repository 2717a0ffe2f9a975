//! The ranges that Services have their addresses of: `ServiceCIDR`s as they are, and what becomes of one that is deleted.
//!
//! Kubernetes lets a `ServiceCIDR` that is being deleted go once no address needs it any more. It counts every other one that holds
//! the address, also those that are being deleted: two of them that hold each other's addresses both go, and nobody holds the
//! addresses then (`canDeleteCIDR`, v1.36). So never two that overlap are deleted at the same time.

use std::net::IpAddr;

use ipnet::IpNet;

use super::covers::{Kept, holds};
use super::settings::is_cover;
use engine::ranges::overlap;

/// Name of the `ServiceCIDR` that API servers make of their own flag, and make again when it is gone.
pub const DEFAULT: &str = "kubernetes";

/// A `ServiceCIDR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// Its name.
    pub name: String,
    /// Its ranges, at most one of each family.
    pub ranges: Vec<IpNet>,
    /// Condition Ready is True.
    pub ready: bool,
    /// It is being deleted: it gives out nothing, and holds what it has.
    pub terminating: bool,
}

impl ServiceCidr {
    /// Whether an address of it can be asked for.
    fn gives(&self) -> bool {
        self.ready && !self.terminating
    }

    /// Whether it gives out addresses of these ranges that are left, or will once it is Ready. A cover of load balancers that keep these
    /// addresses is none of them.
    pub fn is_open(&self, left: &[IpNet], kept: &Kept) -> bool {
        let is_left = |own: &IpNet| {
            left.contains(own)
                || (is_cover(&self.name)
                    && left.iter().any(|range| range.contains(own))
                    && !kept.covers().contains(own))
        };
        !self.terminating && self.ranges.iter().any(is_left)
    }

    /// The same without the covers of single addresses: those give them to Services that came late, and to no other.
    pub fn is_open_to_all(&self, left: &[IpNet], kept: &Kept) -> bool {
        self.is_open(left, kept) && !is_cover(&self.name)
    }

    fn holds(&self, address: &IpAddr) -> bool {
        self.ranges.iter().any(|range| holds(range, address))
    }
}

/// Whether a Service can ask for this address.
pub fn can_be_asked_for(address: &IpAddr, all: &[ServiceCidr]) -> bool {
    all.iter().any(|cidr| cidr.gives() && cidr.holds(address))
}

/// What becomes of a `ServiceCIDR` once it is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes within seconds.
    Goes,
    /// It stays, gives out nothing, and holds these addresses.
    Holds(Vec<IpAddr>),
}

/// What becomes of this one once it is deleted while Services have these addresses.
pub fn fate(deleted: &ServiceCidr, all: &[ServiceCidr], addresses: &[IpAddr]) -> Fate {
    let others = || all.iter().filter(|cidr| cidr.name != deleted.name);
    let is_within =
        |range: &IpNet| others().any(|other| other.ranges.iter().any(|around| around.contains(range)));
    if deleted.ranges.iter().all(is_within) {
        return Fate::Goes;
    }
    let needs_it = |address: &&IpAddr| deleted.holds(address) && !others().any(|other| other.holds(address));
    let held: Vec<IpAddr> = addresses.iter().filter(needs_it).copied().collect();
    if held.is_empty() {
        Fate::Goes
    } else {
        Fate::Holds(held)
    }
}

/// Another `ServiceCIDR` that is being deleted, overlaps this one and would go together with it: then none would hold the addresses that
/// Services have. The API server removes the other one within seconds.
pub fn goes_with<'all>(
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
    let goes = |range: &ServiceCidr| fate(range, all, addresses) == Fate::Goes;
    all.iter()
        .filter(|other| other.name != deleted.name && other.terminating && overlaps(other))
        .find(|other| goes(other) && goes(deleted))
}

/// The ranges as the API servers' flag has them.
pub fn listed(ranges: &[IpNet]) -> String {
    let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    texts.join(",")
}

/// The ranges that the cluster has afterwards: those of the default one, each family's replaced where there is another for it.
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
    #[case::nobody_has_any(&[], Fate::Goes)]
    #[case::somebody_has(&["10.96.0.1", "10.96.0.9"], Fate::Holds(addresses(&["10.96.0.1", "10.96.0.9"])))]
    #[case::of_another_range(&["172.30.0.1"], Fate::Goes)]
    #[case::covered_but_one(&["10.96.3.9", "10.96.0.1"], Fate::Holds(addresses(&["10.96.0.1"])))]
    #[case::all_covered(&["10.96.3.9"], Fate::Goes)]
    // A cover of two addresses holds neither.
    #[case::covered_in_vain(&["10.96.4.1"], Fate::Holds(addresses(&["10.96.4.1"])))]
    fn what_becomes_of_the_old_default(#[case] taken: &[&str], #[case] expected: Fate) {
        let all = [
            cidr(DEFAULT, &["10.96.0.0/16"], false),
            cidr("new", &["172.30.0.0/16"], false),
            cidr("cover-1", &["10.96.3.8/30"], false),
            cidr("cover-2", &["10.96.4.0/31"], false),
        ];
        assert_eq!(fate(&all[0], &all, &addresses(taken)), expected);
    }

    #[test]
    fn what_is_within_another_goes_whatever_it_holds() {
        let all = [
            cidr(DEFAULT, &["172.30.0.0/16", "fd00:96::/112"], false),
            cidr("new", &["172.30.0.0/16", "fd00:96::/112"], false),
        ];
        assert_eq!(fate(&all[1], &all, &addresses(&["172.30.0.1"])), Fate::Goes);
        // One family alone is within it: that is not enough.
        let all = [
            all[0].clone(),
            cidr("new", &["172.30.0.0/16", "fd00:30::/112"], false),
        ];
        let held = addresses(&["fd00:30::1"]);
        assert_eq!(fate(&all[1], &all, &held), Fate::Holds(held));
    }

    #[test]
    fn two_that_overlap_are_not_deleted_together() {
        let all = [
            cidr(DEFAULT, &["10.96.0.0/16"], true),
            cidr("cover", &["10.96.3.8/30"], false),
            cidr("far", &["10.97.3.8/30"], false),
        ];
        assert_eq!(
            goes_with(&all[1], &all, &addresses(&["10.96.3.9"])).map(|other| other.name.as_str()),
            Some(DEFAULT)
        );
        assert_eq!(goes_with(&all[2], &all, &[]), None);
        assert_eq!(goes_with(&all[0], &all, &[]), None);
        // A range that holds an address alone stays, and holds those of the other one then.
        let held = addresses(&["10.96.3.9", "10.96.0.1"]);
        assert_eq!(goes_with(&all[1], &all, &held), None);
    }

    #[test]
    fn only_what_is_ready_gives_an_address() {
        let [one, other]: [IpAddr; 2] = ["10.96.0.1", "10.96.0.0"].map(|text| text.parse().unwrap());
        let ready = [cidr(DEFAULT, &["10.96.0.0/16"], false)];
        assert!(can_be_asked_for(&one, &ready) && !can_be_asked_for(&other, &ready));
        assert!(!can_be_asked_for(&one, &[cidr(DEFAULT, &["10.96.0.0/16"], true)]));
        let mut unready = ready.clone();
        unready[0].ready = false;
        assert!(!can_be_asked_for(&one, &unready));
    }

    #[rstest]
    #[case(&["10.96.0.0/16"], &["172.30.0.0/16"], &["172.30.0.0/16"])]
    #[case(&["10.96.0.0/16", "fd00:96::/112"], &["fd00:30::/112"], &["10.96.0.0/16", "fd00:30::/112"])]
    #[case(&["fd00:96::/112", "10.96.0.0/16"], &["172.30.0.0/16", "fd00:30::/112"], &["fd00:30::/112", "172.30.0.0/16"])]
    fn the_order_of_families_stays(#[case] default: &[&str], #[case] to: &[&str], #[case] expected: &[&str]) {
        let ranges =
            |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        assert_eq!(afterwards(&ranges(default), &ranges(to)), ranges(expected));
    }
}
