//! Two ranges of addresses: how they lie to each other, and reading one as a person writes it.

use ipnet::IpNet;

/// How the new range lies to the old one. Two ranges are apart, or one is within the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// They share no address.
    Apart,
    /// They are the same.
    Same,
    /// The new one is within the old one, as kops had it before 1.7.
    NewWithinOld,
    /// The old one is within the new one.
    OldWithinNew,
    /// They are of different families.
    OtherFamily,
}

/// How `to` lies to `from`.
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

/// Whether they share an address.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Reads a range; the words say what is wrong with it. A range whose address has bits behind its prefix is refused, since
/// nobody knows which part of it is the slip.
pub fn read(text: &str) -> Result<IpNet, String> {
    let range: IpNet = text
        .parse()
        .map_err(|_| format!("found {text:?}, needed a range such as 10.200.0.0/16"))?;
    if range == range.trunc() {
        Ok(range)
    } else {
        Err(format!(
            "found {text:?}, which has bits behind its prefix; needed {} or another range",
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
    fn how_two_ranges_lie(#[case] from: &str, #[case] to: &str, #[case] expected: Relation) {
        let (from, to) = (read(from).unwrap(), read(to).unwrap());
        assert_eq!(relation(&from, &to), expected);
        let shares = !matches!(expected, Relation::Apart | Relation::OtherFamily);
        assert_eq!(overlap(&from, &to), shares);
    }

    #[rstest]
    #[case("10.200.0.0", "needed a range")]
    #[case("10.200.0/16", "needed a range")]
    #[case("", "needed a range")]
    #[case("10.200.1.0/16", "needed 10.200.0.0/16")]
    fn what_is_no_range_is_refused_with_what_is_needed(#[case] text: &str, #[case] words: &str) {
        let error = read(text).unwrap_err();
        assert!(
            error.contains(words) && error.contains(&format!("{text:?}")),
            "{error}"
        );
    }
}
