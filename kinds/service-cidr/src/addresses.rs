//! Which address a Service gets in the new range: the same place in it, where there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::covers::holds;

/// Places in a range that are meant for one Service each: the first is that of `default/kubernetes`, the tenth by custom that of
/// the name server.
const RESERVED: [u128; 2] = [1, 10];

/// How far behind the first address of its range an address is.
fn place(range: &IpNet, address: &IpAddr) -> Option<u128> {
    number(address).checked_sub(number(&range.network()))
}

/// The address at this place, if the range holds it.
fn at(range: &IpNet, place: u128) -> Option<IpAddr> {
    let number = number(&range.network()).checked_add(place)?;
    let address = match range {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).ok()?)),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(number)),
    };
    holds(range, &address).then_some(address)
}

fn number(address: &IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address that `default/kubernetes` has where this range is the API servers'.
pub fn first(range: &IpNet) -> Option<IpAddr> {
    at(range, 1)
}

/// How many Services a range has addresses for.
pub fn room(range: &IpNet) -> u128 {
    let bits = u32::from(range.max_prefix_len() - range.prefix_len());
    // All of IPv6 is one more than there are numbers; nobody needs the last.
    let all = 1_u128.checked_shl(bits).unwrap_or(u128::MAX);
    all.saturating_sub(if range.addr().is_ipv4() { 2 } else { 1 })
}

/// The addresses of a range that Services can have, the last one first.
pub fn from_the_end(range: &IpNet) -> impl Iterator<Item = IpAddr> {
    let range = *range;
    let last = room(&range);
    // The first and the tenth have their owners.
    (1..=last)
        .rev()
        .filter(|place| !RESERVED.contains(place))
        .filter_map(move |place| at(&range, place))
}

/// Which address each one gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Address of the one range → address of the other.
    pub given: BTreeMap<IpAddr, IpAddr>,
    /// Addresses for which the other range has no room.
    pub without: BTreeSet<IpAddr>,
}

/// Gives each of these addresses of `from` one of `to`; an error where there is not room for all.
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

/// Gives each of these addresses of `from` one of `to`, as long as there is room: at the same place where that is free, and else at
/// the first free place that none of the others has. `is_taken` says of an address of `to` whether
/// another Service has it than the one with this address of `from`.
///
/// The same addresses get the same answer; a later question, when some have moved, says so by `is_taken`.
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

/// The new range has fewer addresses than there are Services.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{range} has {} addresses for Services, its first and its tenth for default/kubernetes and the name server alone; {needed} are needed",
    room(range)
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
    #[case::behind_the_end(
        "10.96.0.0/12", "172.30.0.0/24", &["10.96.0.1", "10.97.0.5"], &[],
        &[("10.96.0.1", "172.30.0.1"), ("10.97.0.5", "172.30.0.2")]
    )]
    #[case::the_last_of_ipv4_is_nobodys(
        "10.96.0.0/12", "172.30.0.0/24", &["10.96.0.255"], &[], &[("10.96.0.255", "172.30.0.2")]
    )]
    #[case::taken(
        "10.96.0.0/16", "172.30.0.0/16", &["10.96.0.5"], &["172.30.0.5", "172.30.0.2"], &[("10.96.0.5", "172.30.0.3")]
    )]
    #[case::whoever_has_the_place_keeps_it(
        "10.96.0.0/12", "172.30.0.0/24", &["10.96.0.2", "10.97.0.5"], &[],
        &[("10.96.0.2", "172.30.0.2"), ("10.97.0.5", "172.30.0.3")]
    )]
    #[case::ipv6("fd00:96::/112", "fd00:30::/108", &["fd00:96::a"], &[], &[("fd00:96::a", "fd00:30::a")])]
    fn which_address_each_gets(
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
    fn places_that_are_meant_for_one_are_given_to_nobody_else() {
        let (from, to) = (range("10.96.0.0/12"), range("172.30.0.0/28"));
        let addresses: BTreeSet<IpAddr> = (0..12).map(|last| IpAddr::from([10, 97, 0, last])).collect();
        let assigned = assign(&addresses, &from, &to, &BTreeSet::new()).unwrap();
        let given: BTreeSet<IpAddr> = assigned.into_values().collect();
        assert_eq!(given.len(), 12);
        assert!(given.is_disjoint(&set(&["172.30.0.1", "172.30.0.10"])));
        // All that is left are those two.
        let one_more = addresses.into_iter().chain(set(&["10.97.0.99"])).collect();
        let error = assign(&one_more, &from, &to, &BTreeSet::new()).unwrap_err();
        assert!(
            error.to_string().starts_with("172.30.0.0/28 has 14 addresses")
                && error.to_string().ends_with("13 are needed"),
            "{error}"
        );
    }

    #[rstest]
    #[case("10.96.0.0/12", 1_048_574, "10.96.0.1")]
    #[case("10.96.0.0/30", 2, "10.96.0.1")]
    #[case("fd00::/112", 65_535, "fd00::1")]
    fn room_and_first_address(#[case] text: &str, #[case] expected: u128, #[case] first_address: &str) {
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
        fn no_two_get_the_same_and_all_are_in_the_range(
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
            prop_assert!(given.iter().all(|address| holds(&to, address) && !taken.contains(address)));
            // Who has moved is in `taken` afterwards, and nobody else's place is another one then.
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
