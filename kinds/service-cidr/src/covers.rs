//! Covers: the smallest ranges for a `ServiceCIDR` so that given addresses are in range.
//!
//! For Kubernetes a range contains neither its first address nor, for IPv4, its last one (`PrefixContainsIP`, v1.36), so a
//! range of one or two addresses contains none. The smallest range for an IPv4 address is a /30 with the address in the middle.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

/// Addresses that load balancers keep, and their covers. The covers are computed once, because tenants can create many load
/// balancers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    addresses: Vec<IpAddr>,
    covers: BTreeSet<IpNet>,
}

impl Kept {
    /// Computes the covers of these addresses.
    pub fn of(addresses: Vec<IpAddr>) -> Self {
        Self {
            covers: covers(&addresses).into_iter().collect(),
            addresses,
        }
    }

    /// The addresses, in the given order.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The smallest ranges for all of them, none within another.
    pub fn covers(&self) -> &BTreeSet<IpNet> {
        &self.covers
    }
}

/// Whether a `ServiceCIDR` of this range contains the address.
pub fn contains(range: &IpNet, address: &IpAddr) -> bool {
    let is_last = range.addr().is_ipv4() && range.broadcast() == *address;
    range.contains(address) && range.network() != *address && !is_last
}

/// The smallest range for the address; `None` for the very first and the very last address, which no range contains.
fn smallest(address: IpAddr) -> Option<IpNet> {
    let mut range = IpNet::from(address);
    while !contains(&range, &address) {
        range = range.supernet()?;
    }
    Some(range)
}

/// The smallest ranges for all of these addresses, none within another: if two overlapping ones are deleted, both may be
/// removed, and then no range contains the addresses.
pub fn covers(addresses: &[IpAddr]) -> Vec<IpNet> {
    let mut ranges: Vec<IpNet> = addresses
        .iter()
        .filter_map(|address| smallest(*address))
        .collect();
    // A wider range comes before those within it.
    ranges.sort_by_key(|range| (range.network(), range.prefix_len()));
    let mut covers: Vec<IpNet> = Vec::new();
    for range in ranges {
        // Two ranges are nested or do not overlap, so in this order only the last one can contain this one.
        if covers.last().is_none_or(|cover| !cover.contains(&range)) {
            covers.push(range);
        }
    }
    covers
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::first_of_a_range("10.96.0.1", "10.96.0.0/30")]
    #[case::last_of_four("10.96.0.3", "10.96.0.0/29")]
    #[case::first_of_four("10.96.0.4", "10.96.0.0/29")]
    #[case::dns("10.96.0.10", "10.96.0.8/30")]
    #[case::last_of_eight("10.96.0.7", "10.96.0.0/28")]
    #[case::end_of_a_long_range("10.95.255.255", "10.64.0.0/10")]
    #[case::odd_of_ipv6("fd00::1", "fd00::/127")]
    #[case::even_of_ipv6("fd00::2", "fd00::/126")]
    fn the_cover_of_an_address_is_the_smallest_range(#[case] address: &str, #[case] range: &str) {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(covers(&[address]), [range.parse::<IpNet>().unwrap()]);
    }

    #[rstest]
    #[case("10.96.0.1/32")]
    #[case("10.96.0.0/31")]
    #[case("10.96.0.1/31")]
    fn a_range_of_one_or_two_addresses_contains_none(#[case] range: &str) {
        let range: IpNet = range.parse().unwrap();
        assert!(range.hosts().all(|address| !contains(&range, &address)));
    }

    #[test]
    fn a_cover_within_another_is_omitted() {
        let addresses =
            ["10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.9.9"].map(|text| text.parse().unwrap());
        let ranges = ["10.96.0.0/29", "10.96.9.8/30"].map(|text| text.parse().unwrap());
        assert_eq!(covers(&addresses), ranges);
    }

    proptest! {
        #[test]
        fn every_address_has_exactly_one_smallest_cover(
            numbers in prop::collection::vec(any::<u16>(), 1..40),
            is_ipv4: bool,
        ) {
            let base: IpNet = if is_ipv4 { "10.96.0.0/16" } else { "fd00::/112" }.parse().unwrap();
            // Neither end of the whole range is an address of a Service.
            let numbers = numbers.into_iter().filter(|number| ![0, u16::MAX].contains(number));
            let addresses: Vec<IpAddr> = numbers
                .filter_map(|number| base.addr().is_ipv4()
                    .then(|| IpAddr::from((u32::from_be_bytes([10, 96, 0, 0]) | u32::from(number)).to_be_bytes()))
                    .or_else(|| Some(IpAddr::from(((0xfd00_u128 << 112) | u128::from(number)).to_be_bytes()))))
                .collect();
            let covers = covers(&addresses);
            for address in &addresses {
                prop_assert_eq!(covers.iter().filter(|cover| contains(cover, address)).count(), 1);
            }
            for (place, cover) in covers.iter().enumerate() {
                prop_assert!(base.contains(cover));
                prop_assert!(covers.iter().skip(place + 1).all(|other| !engine::ranges::overlap(cover, other)));
                let halves: Vec<IpNet> = cover.subnets(cover.prefix_len() + 1).unwrap().collect();
                let needs_it = |address: &IpAddr| contains(cover, address) && halves.iter().all(|half| !contains(half, address));
                prop_assert!(addresses.iter().any(needs_it), "{} is wider than needed", cover);
            }
        }
    }
}
