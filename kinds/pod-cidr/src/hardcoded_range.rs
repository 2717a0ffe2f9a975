//! Objects that contain the pod range in their configuration: the ranges of each, and whether these are sufficient while pods
//! of both ranges exist, and at the end. replumb changes none of these objects: it states the needed value, and checks whether
//! the user set it.

use std::collections::BTreeSet;

use ipnet::IpNet;

use engine::owner::Owner;
use engine::ranges::overlap;
use engine::words::{LISTED, names_of};

/// Which ranges an object needs, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Both ranges while pods of both exist: a policy with only one range excludes the pods of the other.
    Both,
    /// Both ranges while pods of both exist, and at the end only the new one.
    BothThenNew,
    /// At the end only the new range.
    New,
}

/// An object whose configuration contains ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeUse {
    /// The object and its field: `DaemonSet kube-system/calico-node: CALICO_IPV4POOL_CIDR`.
    pub object: String,
    /// The owner of the object.
    pub owner: Owner,
    /// Ranges that it contains: for an object of a tenant, only the relevant ones ([`relevant`]).
    pub ranges: Vec<IpNet>,
    /// Number of further relevant ranges that it contains.
    pub more: usize,
    /// The ranges that it needs, and when.
    pub needs: Needs,
    /// The fix; `{ranges}` is a placeholder for the needed ranges.
    pub fix: String,
    /// Whether kube-proxy is told these ranges: its rules in the kernel have the same ones once it has restarted.
    pub is_of_kube_proxy: bool,
}

/// A change that the user has to make in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The object and its field.
    pub object: String,
    /// The owner of the object.
    pub owner: Owner,
    /// The ranges found.
    pub found: String,
    /// The ranges needed.
    pub needed: String,
    /// The fix.
    pub fix: String,
}

impl Change {
    /// One line with the object, the value found, the value needed and the fix.
    pub fn line(&self) -> String {
        format!(
            "{}: found {}, needed {}. Fix: {}",
            self.object, self.found, self.needed, self.fix
        )
    }
}

impl RangeUse {
    /// Whether the object covers the old range and not the new one.
    pub(crate) fn is_too_narrow(&self, from: &IpNet, to: &IpNet) -> bool {
        let has_old_part = self.contains_part_of(from);
        // A range that contains both does not count if the object also has a part of the old range, because that may be an
        // exception: 0.0.0.0/0 except the old range means "all but pods", and includes pods of the new range.
        let knows_new = |said: &IpNet| overlap(said, to) && !(has_old_part && said.contains(from));
        self.ranges.iter().any(|said| overlap(said, from)) && !self.ranges.iter().any(knows_new)
    }

    /// Whether the object contains a range within `range`.
    pub(crate) fn contains_part_of(&self, range: &IpNet) -> bool {
        self.ranges.iter().any(|said| range.contains(said))
    }

    fn change(&self, needed: &str) -> Change {
        let said: Vec<String> = self.ranges.iter().map(ToString::to_string).collect();
        Change {
            object: self.object.clone(),
            owner: self.owner.clone(),
            found: names_of(&said, said.len() + self.more),
            needed: needed.to_owned(),
            fix: self.fix.replace("{ranges}", needed),
        }
    }
}

/// The changes needed before a pod gets an address of the new range: objects that need both ranges and have only the old one.
pub fn before(mentions: &[RangeUse], from: &IpNet, to: &IpNet) -> Vec<Change> {
    mentions
        .iter()
        .filter(|mention| match mention.needs {
            Needs::Both | Needs::BothThenNew => true,
            Needs::New => false,
        })
        .filter(|mention| mention.is_too_narrow(from, to))
        .map(|mention| mention.change(&format!("{from} and {to}, or one range that contains both")))
        .collect()
}

/// The changes needed before the old pool is deleted: objects that still contain the old range.
pub fn after(mentions: &[RangeUse], from: &IpNet, to: &IpNet) -> Vec<Change> {
    mentions
        .iter()
        .filter(|mention| match mention.needs {
            Needs::BothThenNew | Needs::New => true,
            Needs::Both => false,
        })
        .filter(|mention| mention.contains_part_of(from))
        .map(|mention| mention.change(&to.to_string()))
        .collect()
}

/// [`before`], one line each, for objects of the cluster only: tenants must not delay the move of other pods.
pub fn widen(mentions: &[RangeUse], from: &IpNet, to: &IpNet) -> Vec<String> {
    of_the_cluster(&before(mentions, from, to))
}

/// [`after`], one line each, for objects of the cluster only.
pub fn follow_up(mentions: &[RangeUse], from: &IpNet, to: &IpNet) -> Vec<String> {
    of_the_cluster(&after(mentions, from, to))
}

fn of_the_cluster(changes: &[Change]) -> Vec<String> {
    let of_cluster = changes.iter().filter(|change| change.owner == Owner::Cluster);
    of_cluster.map(Change::line).collect()
}

/// The changes that tenants have to make while pods of both ranges exist: the namespace and the message. The migration does not
/// wait for them.
pub fn tenant_warnings(mentions: &[RangeUse], from: &IpNet, to: &IpNet) -> Vec<(String, String)> {
    let changes = before(mentions, from, to).into_iter();
    changes
        .filter_map(|change| {
            let words = format!("{}; {}", change.line(), tenant_consequence(to));
            Some((change.owner.tenant()?.to_owned(), words))
        })
        .collect()
}

/// The consequence of a tenant's object that is not changed.
pub fn tenant_consequence(to: &IpNet) -> String {
    format!(
        "the migration does not wait for this change, and until then the object does not cover pods with an address of {to}"
    )
}

/// All ranges in a text, with any text around them.
pub fn ranges_in(text: &str) -> Vec<IpNet> {
    let is_of_a_range = |letter: char| letter.is_ascii_hexdigit() || ['.', ':', '/'].contains(&letter);
    let mut ranges: Vec<IpNet> = text
        .split(|letter| !is_of_a_range(letter))
        // `podSubnet:10.244.0.0/16` and `…/16.`
        .map(|word| {
            word.trim_start_matches([':', '/', '.'])
                .trim_end_matches([':', '/', '.'])
        })
        .chain(text.split(|letter| !is_of_a_range(letter)))
        .filter(|word| word.contains('/'))
        .filter_map(|word| word.parse::<IpNet>().ok())
        .map(|range| range.trunc())
        .collect();
    ranges.sort();
    ranges.dedup();
    ranges
}

/// The ranges that decide whether an object covers `from` and `to`, sorted, and the number of further ranges that overlap
/// either. A tenant may write 100,000 ranges into one object.
pub fn relevant(said: impl IntoIterator<Item = IpNet>, from: &IpNet, to: &IpNet) -> (Vec<IpNet>, usize) {
    let is_relevant = |said: &IpNet| overlap(said, from) || overlap(said, to);
    let said: BTreeSet<IpNet> = said.into_iter().filter(is_relevant).collect();
    // At most one per prefix length.
    let around = said
        .iter()
        .filter(|said| said.contains(from) || said.contains(to));
    let within = |one: &IpNet, other: &IpNet| -> Vec<&IpNet> {
        let within = said
            .iter()
            .filter(|said| one.contains(*said) && !said.contains(other));
        within.take(LISTED).collect()
    };
    let within = [within(from, to), within(to, from)].concat();
    let kept: BTreeSet<IpNet> = around.chain(within).copied().collect();
    let more = said.len() - kept.len();
    (kept.into_iter().collect(), more)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn range(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn mention(needs: Needs, said: &[&str]) -> RangeUse {
        RangeUse {
            object: "NetworkPolicy shop/web".to_owned(),
            owner: Owner::Cluster,
            ranges: said.iter().map(|text| range(text)).collect(),
            more: 0,
            needs,
            fix: "write {ranges}".to_owned(),
            is_of_kube_proxy: false,
        }
    }

    proptest! {
        /// For any ranges around, within and beside both, the reduced list gives the same decision, in both directions.
        #[test]
        fn a_reduced_list_gives_the_same_decision(
            said in prop::collection::vec((0_u32..16, 8_u8..=32, 0_u32..=0xffff), 0..200),
            pair in prop::sample::select(vec![
                ("10.1.0.0/16", "10.2.0.0/16"), ("10.0.0.0/12", "10.1.0.0/16"), ("10.1.0.0/16", "10.0.0.0/12"), ("10.0.0.0/15", "10.0.0.0/14"),
            ]),
        ) {
            let (from, to) = (range(pair.0), range(pair.1));
            let all: Vec<IpNet> = said
                .iter()
                .map(|(second, length, rest)| {
                    let address = std::net::Ipv4Addr::from(0x0a00_0000 | second << 16 | rest);
                    IpNet::new(address.into(), *length).unwrap().trunc()
                })
                .collect();
            let (kept, more) = relevant(all.iter().copied(), &from, &to);
            prop_assert!(kept.len() <= 2 * (LISTED + 33), "{}", kept.len());
            prop_assert!(kept.len() + more <= all.len());
            let of = |ranges: Vec<IpNet>| RangeUse { ranges, ..mention(Needs::Both, &[]) };
            let (all, kept) = (of(all), of(kept));
            for (source, target) in [(&from, &to), (&to, &from)] {
                prop_assert_eq!(all.is_too_narrow(source, target), kept.is_too_narrow(source, target));
                prop_assert_eq!(all.contains_part_of(source), kept.contains_part_of(source));
            }
        }
    }

    #[test]
    fn a_list_of_100000_ranges_is_reduced() {
        let many = (0..100_000_u32).map(|number| {
            IpNet::from(std::net::IpAddr::from(std::net::Ipv4Addr::from(
                0x0af4_0000 + number,
            )))
        });
        let (kept, more) = relevant(
            many.chain([range("10.200.7.0/24"), range("192.0.2.0/24")]),
            &range("10.244.0.0/15"),
            &range("10.200.0.0/16"),
        );
        assert_eq!((kept.len(), more), (LISTED + 1, 100_000 - LISTED));
        assert!(kept.contains(&range("10.200.7.0/24")));
        let mention = RangeUse {
            ranges: kept,
            more,
            ..mention(Needs::New, &[])
        };
        let [change] = <[Change; 1]>::try_from(after(
            &[mention],
            &range("10.244.0.0/15"),
            &range("10.200.0.0/16"),
        ))
        .unwrap();
        assert!(change.found.ends_with("and 99991 more"), "{}", change.found);
    }

    #[rstest]
    #[case::old_only(Needs::Both, &["10.244.0.0/16"], true, false)]
    #[case::part_of_the_old_one(Needs::Both, &["10.244.7.0/24"], true, false)]
    #[case::both(Needs::Both, &["10.244.0.0/16", "10.200.0.0/16"], false, false)]
    #[case::around_both(Needs::BothThenNew, &["10.0.0.0/8"], false, false)]
    #[case::around_the_old_one(Needs::BothThenNew, &["10.240.0.0/12"], true, false)]
    #[case::all_except_the_old_one(Needs::Both, &["0.0.0.0/0", "10.244.0.0/16"], true, false)]
    #[case::all_except_both(Needs::Both, &["0.0.0.0/0", "10.200.0.0/16", "10.244.0.0/16"], false, false)]
    #[case::all_except_another(Needs::Both, &["0.0.0.0/0", "192.168.0.0/16"], false, false)]
    #[case::proxy(Needs::BothThenNew, &["10.244.0.0/16"], true, true)]
    #[case::environment(Needs::New, &["10.244.0.0/16"], false, true)]
    #[case::new_only(Needs::New, &["10.200.0.0/16"], false, false)]
    #[case::neither(Needs::BothThenNew, &["192.168.0.0/16"], false, false)]
    fn an_object_is_changed_before_or_after_the_move(
        #[case] needs: Needs,
        #[case] said: &[&str],
        #[case] before: bool,
        #[case] after: bool,
    ) {
        let mentions = [mention(needs, said)];
        let (from, to) = (range("10.244.0.0/16"), range("10.200.0.0/16"));
        assert_eq!(widen(&mentions, &from, &to).len(), usize::from(before));
        assert_eq!(follow_up(&mentions, &from, &to).len(), usize::from(after));
    }

    #[test]
    fn a_follow_up_states_the_needed_range() {
        let mentions = [mention(Needs::New, &["10.244.0.0/16"])];
        let words = follow_up(&mentions, &range("10.244.0.0/16"), &range("10.200.0.0/16"));
        assert_eq!(
            words,
            ["NetworkPolicy shop/web: found 10.244.0.0/16, needed 10.200.0.0/16. Fix: write 10.200.0.0/16"]
        );
    }

    /// In both directions the missing range is named, and the migration does not wait.
    #[rstest]
    #[case::forward("10.244.0.0/16", "10.200.0.0/16")]
    #[case::rollback("10.200.0.0/16", "10.244.0.0/16")]
    fn an_object_of_a_tenant_is_reported_and_not_waited_for(#[case] from: &str, #[case] to: &str) {
        let tenants = [Needs::Both, Needs::BothThenNew, Needs::New].map(|needs| RangeUse {
            owner: Owner::Tenant("shop".to_owned()),
            ..mention(needs, &[from])
        });
        let (source, target) = (range(from), range(to));
        assert_eq!(widen(&tenants, &source, &target), [""; 0]);
        assert_eq!(follow_up(&tenants, &source, &target), [""; 0]);
        let told = tenant_warnings(&tenants[..1], &source, &target);
        let words = format!(
            "NetworkPolicy shop/web: found {from}, needed {from} and {to}, or one range that contains both. Fix: write {from} \
             and {to}, or one range that contains both; the migration does not wait for this change, and until then the object \
             does not cover pods with an address of {to}"
        );
        assert_eq!(told, [("shop".to_owned(), words)]);
        let both = mention(Needs::Both, &[from, to]);
        assert_eq!(tenant_warnings(&[both], &source, &target), []);
    }

    #[rstest]
    #[case("podSubnet: 10.244.0.0/16,fd00:10::/56", &["10.244.0.0/16", "fd00:10::/56"])]
    #[case("- --cluster-cidr=10.244.0.0/16", &["10.244.0.0/16"])]
    #[case("\"cidr\":\"10.244.1.0/16\"", &["10.244.0.0/16"])]
    #[case("see https://example.org/16 at 10.0.0.1", &[])]
    #[case("the range 10.244.0.0/16.", &["10.244.0.0/16"])]
    #[case("::/0", &["::/0"])]
    fn ranges_are_found_in_a_text(#[case] text: &str, #[case] expected: &[&str]) {
        let expected: Vec<IpNet> = expected.iter().map(|text| range(text)).collect();
        assert_eq!(ranges_in(text), expected);
    }
}
