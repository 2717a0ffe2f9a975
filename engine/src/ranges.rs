//! Address ranges: the relation of two ranges, and parsing of a range that the user writes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Ranges that no host routes, each with its purpose. Calico's API refuses link-local ranges; a write that bypasses Calico's API
/// refuses none.
const RESERVED: [(IpNet, &str); 8] = [
    (v4([0, 0, 0, 0], 8), "this network"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    (v4([169, 254, 0, 0], 16), "link-local addresses"),
    (v4([224, 0, 0, 0], 4), "groups"),
    (v6(0, 128), "no address"),
    (v6(1, 128), "loopback"),
    (v6(0xfe80 << 112, 10), "link-local addresses"),
    (v6(0xff00 << 112, 8), "groups"),
];

const fn v4(address: [u8; 4], length: u8) -> IpNet {
    let [one, two, three, four] = address;
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(one, two, three, four)), length)
}

const fn v6(address: u128, length: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::from_bits(address)), length)
}

/// The reserved part of this range, with its purpose; `None` when pods can use the whole range.
pub fn reserved(range: &IpNet) -> Option<(IpNet, &'static str)> {
    RESERVED
        .into_iter()
        .find(|(reserved, _)| overlap(reserved, range))
}

/// The relation of the new range to the old range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The ranges share no address.
    Apart,
    /// The ranges are the same.
    Same,
    /// The new range is within the old range, as in kops before 1.7.
    NewWithinOld,
    /// The old range is within the new range.
    OldWithinNew,
    /// The ranges have different address families.
    OtherFamily,
}

/// The relation of `to` to `from`.
pub fn relation(from: &IpNet, to: &IpNet) -> Relation {
    if from.addr().is_ipv4() != to.addr().is_ipv4() {
        Relation::OtherFamily
    } else if from == to {
        Relation::Same
    } else if from.contains(to) {
        Relation::NewWithinOld
    } else if to.contains(from) {
        Relation::OldWithinNew
    } else {
        Relation::Apart
    }
}

/// Whether the ranges share an address.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Reads a range; the error message names the value found and the value needed. A range with host bits set is refused, since
/// either its address or its prefix length may be the mistake.
///
/// # Errors
///
/// The text is not a range, or the range has host bits set.
pub fn read(text: &str) -> Result<IpNet, String> {
    let range: IpNet = text
        .parse()
        .map_err(|_| format!("found {text:?}, needed a range such as 10.200.0.0/16"))?;
    if range == range.trunc() {
        Ok(range)
    } else {
        Err(format!(
            "found {text:?}, which has host bits set; needed {} or another range",
            range.trunc()
        ))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("100.64.0.0/10", "100.96.0.0/11", Relation::NewWithinOld)]
    #[case("100.96.0.0/11", "100.64.0.0/10", Relation::OldWithinNew)]
    #[case("100.96.0.0/11", "100.96.0.0/11", Relation::Same)]
    #[case("100.96.0.0/11", "172.16.0.0/13", Relation::Apart)]
    #[case("100.96.0.0/11", "fd00::/64", Relation::OtherFamily)]
    fn two_ranges_have_one_relation(#[case] from: &str, #[case] to: &str, #[case] expected: Relation) {
        let (from, to) = (read(from).unwrap(), read(to).unwrap());
        assert_eq!(relation(&from, &to), expected);
        let shares = !matches!(expected, Relation::Apart | Relation::OtherFamily);
        assert_eq!(overlap(&from, &to), shares);
    }

    #[rstest]
    #[case("10.200.0.0/16", None)]
    #[case("240.0.0.0/8", None)]
    #[case("fd00::/48", None)]
    #[case("169.254.0.0/16", Some("link-local addresses"))]
    #[case("0.0.0.0/0", Some("this network"))]
    #[case("126.0.0.0/7", Some("loopback"))]
    #[case("225.0.0.0/8", Some("groups"))]
    #[case("fe80::/64", Some("link-local addresses"))]
    #[case("::/0", Some("no address"))]
    #[case("ff00::/16", Some("groups"))]
    fn reserved_parts_of_a_range_are_named(#[case] range: &str, #[case] expected: Option<&str>) {
        assert_eq!(reserved(&read(range).unwrap()).map(|(_, what)| what), expected);
    }

    #[rstest]
    #[case("10.200.0.0", "needed a range")]
    #[case("10.200.0/16", "needed a range")]
    #[case("", "needed a range")]
    #[case("10.200.1.0/16", "needed 10.200.0.0/16")]
    fn an_invalid_range_is_refused_with_the_needed_value(#[case] text: &str, #[case] words: &str) {
        let error = read(text).unwrap_err();
        assert!(
            error.contains(words) && error.contains(&format!("{text:?}")),
            "{error}"
        );
    }
}
