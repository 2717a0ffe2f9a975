//! The address of a Service in the target range: at the same place as in the source range, if possible.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use engine::words;
use ipnet::IpNet;

use super::covers::contains;

/// Places in a range that are reserved for one Service each: the first for `default/kubernetes`, the tenth by convention for
/// the cluster DNS.
const RESERVED: [u128; 2] = [1, 10];

/// The offset of an address in its range.
fn place(range: &IpNet, address: &IpAddr) -> Option<u128> {
    number(address).checked_sub(number(&range.network()))
}

/// The address at this offset, if the range contains it.
fn at(range: &IpNet, place: u128) -> Option<IpAddr> {
    let number = number(&range.network()).checked_add(place)?;
    let address = match range {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).ok()?)),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(number)),
    };
    contains(range, &address).then_some(address)
}

fn number(address: &IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address of `default/kubernetes` if this range is the flag of the API servers.
pub fn first(range: &IpNet) -> Option<IpAddr> {
    at(range, 1)
}

/// The number of addresses for Services in a range.
pub fn room(range: &IpNet) -> u128 {
    let bits = u32::from(range.max_prefix_len() - range.prefix_len());
    // The whole of IPv6 has one address more than `u128` can count.
    let all = 1_u128.checked_shl(bits).unwrap_or(u128::MAX);
    all.saturating_sub(if range.addr().is_ipv4() { 2 } else { 1 })
}

/// The addresses of a range for Services, the last one first.
pub fn from_the_end(range: &IpNet) -> impl Iterator<Item = IpAddr> {
    let range = *range;
    let last = room(&range);
    // The first and the tenth are reserved.
    (1..=last)
        .rev()
        .filter(|place| !RESERVED.contains(place))
        .filter_map(move |place| at(&range, place))
}

/// The assignment of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Source address → target address.
    pub given: BTreeMap<IpAddr, IpAddr>,
    /// Source addresses without a target address, because the target range is full.
    pub without: BTreeSet<IpAddr>,
}

/// Assigns an address of `to` to each of these addresses of `from`; an error if `to` has too few.
///
/// # Errors
///
/// `to` has fewer free addresses than are needed.
pub fn assign(
    addresses: &BTreeSet<IpAddr>,
    from: &IpNet,
    to: &IpNet,
    taken: &BTreeSet<IpAddr>,
) -> Result<BTreeMap<IpAddr, IpAddr>, NoRoom> {
    let assigned = assign_some(addresses, from, to, |address, _| taken.contains(address));
    if assigned.without.is_empty() {
        return Ok(assigned.given);
    }
    Err(NoRoom {
        range: *to,
        needed: taken.len() + addresses.len(),
    })
}

/// Assigns an address of `to` to each of these addresses of `from`, while `to` has free ones: at the same place if that is
/// free, otherwise at the first free place that no other address needs. `is_taken` returns whether an address of `to` is in use
/// by another Service than the one with this address of `from`.
///
/// The result is deterministic. In a later call, addresses that have moved already are reported by `is_taken`.
pub fn assign_some(
    addresses: &BTreeSet<IpAddr>,
    from: &IpNet,
    to: &IpNet,
    is_taken: impl Fn(&IpAddr, Option<&IpAddr>) -> bool,
) -> Assigned {
    let mut assigned = Assigned::default();
    let mut used: BTreeSet<IpAddr> = BTreeSet::new();
    for address in addresses {
        let same = place(from, address).and_then(|place| at(to, place));
        if let Some(same) = same.filter(|same| !is_taken(same, Some(address))) {
            assigned.given.insert(*address, same);
            used.insert(same);
        }
    }
    let mut free = (1..)
        .take_while(|place| at(to, *place).is_some())
        .filter(|place| !RESERVED.contains(place))
        .filter_map(|place| at(to, place))
        .filter(|found| !used.contains(found) && !is_taken(found, None));
    for address in addresses {
        if assigned.given.contains_key(address) {
            continue;
        }
        match free.next() {
            Some(found) => {
                assigned.given.insert(*address, found);
            }
            None => {
                assigned.without.insert(*address);
            }
        }
    }
    assigned
}

/// The target range has fewer addresses than needed for all Services.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{range} has {} for Services, with the first and the tenth reserved for default/kubernetes and the cluster DNS; \
     needed {needed}",
    words::number(room(range), "address", "addresses")
)]
pub struct NoRoom {
    range: IpNet,
    needed: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn range(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn set(texts: &[&str]) -> BTreeSet<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<IpAddr, IpAddr> {
        pairs
            .iter()
            .map(|(old, new)| (old.parse().unwrap(), new.parse().unwrap()))
            .collect()
    }

    #[rstest]
    #[case::same_place(
        "10.96.0.0/12", "172.30.0.0/16", &["10.96.0.1", "10.96.0.10", "10.96.200.7"], &[],
        &[("10.96.0.1", "172.30.0.1"), ("10.96.0.10", "172.30.0.10"), ("10.96.200.7", "172.30.200.7")]
    )]
    #[case::beyond_the_end(
        "10.96.0.0/12", "172.30.0.0/24", &["10.96.0.1", "10.97.0.5"], &[],
        &[("10.96.0.1", "172.30.0.1"), ("10.97.0.5", "172.30.0.2")]
    )]
    #[case::last_address_of_ipv4(
        "10.96.0.0/12", "172.30.0.0/24", &["10.96.0.255"], &[], &[("10.96.0.255", "172.30.0.2")]
    )]
    #[case::in_use(
        "10.96.0.0/16", "172.30.0.0/16", &["10.96.0.5"], &["172.30.0.5", "172.30.0.2"], &[("10.96.0.5", "172.30.0.3")]
    )]
    #[case::same_place_comes_first(
        "10.96.0.0/12", "172.30.0.0/24", &["10.96.0.2", "10.97.0.5"], &[],
        &[("10.96.0.2", "172.30.0.2"), ("10.97.0.5", "172.30.0.3")]
    )]
    #[case::ipv6("fd00:96::/112", "fd00:30::/108", &["fd00:96::a"], &[], &[("fd00:96::a", "fd00:30::a")])]
    fn addresses_keep_their_place_if_it_is_free(
        #[case] from: &str,
        #[case] to: &str,
        #[case] addresses: &[&str],
        #[case] taken: &[&str],
        #[case] expected: &[(&str, &str)],
    ) {
        let assigned = assign(&set(addresses), &range(from), &range(to), &set(taken)).unwrap();
        assert_eq!(assigned, pairs(expected));
    }

    #[test]
    fn reserved_places_are_not_assigned_to_other_services() {
        let (from, to) = (range("10.96.0.0/12"), range("172.30.0.0/28"));
        let addresses: BTreeSet<IpAddr> = (0..12).map(|last| IpAddr::from([10, 97, 0, last])).collect();
        let assigned = assign(&addresses, &from, &to, &BTreeSet::new()).unwrap();
        let given: BTreeSet<IpAddr> = assigned.into_values().collect();
        assert_eq!(given.len(), 12);
        assert!(given.is_disjoint(&set(&["172.30.0.1", "172.30.0.10"])));
        // Only those two remain.
        let one_more = addresses.into_iter().chain(set(&["10.97.0.99"])).collect();
        let error = assign(&one_more, &from, &to, &BTreeSet::new()).unwrap_err();
        assert!(
            error.to_string().starts_with("172.30.0.0/28 has 14 addresses")
                && error.to_string().ends_with("needed 13"),
            "{error}"
        );
    }

    #[rstest]
    #[case("10.96.0.0/12", 1_048_574, "10.96.0.1")]
    #[case("10.96.0.0/30", 2, "10.96.0.1")]
    #[case("fd00::/112", 65_535, "fd00::1")]
    fn room_and_first_address_of_a_range(
        #[case] text: &str,
        #[case] expected: u128,
        #[case] first_address: &str,
    ) {
        assert_eq!(room(&range(text)), expected);
        assert_eq!(first(&range(text)), Some(first_address.parse().unwrap()));
    }

    #[test]
    fn a_range_of_one_address_has_none_for_a_service() {
        assert_eq!(room(&range("10.96.0.1/32")), 0);
        assert_eq!(first(&range("10.96.0.1/32")), None);
        assert_eq!(first(&range("10.96.0.0/31")), None);
    }

    proptest! {
        #[test]
        fn assigned_addresses_are_unique_and_in_the_range(
            places in prop::collection::btree_set(1_u16..5000, 1..120),
            taken in prop::collection::btree_set(1_u8..255, 0..60),
        ) {
            let (from, to) = (range("10.96.0.0/16"), range("172.30.0.0/24"));
            let address = |place: u16| IpAddr::V4(Ipv4Addr::from_bits(0x0a60_0000 + u32::from(place)));
            let addresses: BTreeSet<IpAddr> = places.iter().map(|place| address(*place)).collect();
            let taken: BTreeSet<IpAddr> = taken.iter().map(|last| IpAddr::from([172, 30, 0, *last])).collect();
            let assigned = assign(&addresses, &from, &to, &taken).unwrap();
            let given: BTreeSet<IpAddr> = assigned.values().copied().collect();
            prop_assert_eq!(given.len(), addresses.len());
            prop_assert!(given.iter().all(|address| contains(&to, address) && !taken.contains(address)));
            // Moved addresses are in `taken` afterwards, and the other ones keep their places.
            let (moved, rest): (Vec<_>, Vec<_>) = assigned.iter().enumerate().partition(|(count, _)| count % 2 == 0);
            let later = assign(
                &rest.iter().map(|(_, (old, _))| **old).collect(),
                &from,
                &to,
                &taken.iter().copied().chain(moved.iter().map(|(_, (_, new))| **new)).collect(),
            ).unwrap();
            for (_, (old, new)) in rest {
                if place(&from, old) == place(&to, new) {
                    prop_assert_eq!(later[old], *new);
                }
            }
        }
    }
}
