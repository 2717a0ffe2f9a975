//! Who else says the pods' range: each place as an object with what it says, and whether that is enough while pods of both
//! ranges live, and at the end. The tool changes none of them; it says what to write, and looks whether it was.

use std::collections::BTreeSet;

use ipnet::IpNet;

use engine::owner::Owner;
use engine::ranges::overlap;
use engine::words::{LISTED, names_of};

/// When a place has to know which range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Both, as long as pods of both live: a policy that names the one alone keeps the others out.
    Both,
    /// Both, as long as pods of both live, and at the end the old one no more.
    BothThenNew,
    /// At the end the old one no more.
    New,
}

/// A place that says ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// The object and its field: `DaemonSet kube-system/calico-node: CALICO_IPV4POOL_CIDR`.
    pub object: String,
    /// Whose it is.
    pub owner: Owner,
    /// Ranges that it says: of an object of a tenant's the few that decide ([`few`]).
    pub ranges: Vec<IpNet>,
    /// How many more of them it says.
    pub more: usize,
    /// When it has to know which.
    pub needs: Needs,
    /// What a person does about it; `{ranges}` stands for what has to be written.
    pub fix: String,
}

/// What a person writes in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The object and its field.
    pub object: String,
    /// Whose it is.
    pub owner: Owner,
    /// The ranges that it says.
    pub found: String,
    /// What it has to say.
    pub needed: String,
    /// How.
    pub fix: String,
}

impl Change {
    /// One line that names object, value and fix.
    pub fn line(&self) -> String {
        format!(
            "{}: found {}, needed {}. Fix: {}",
            self.object, self.found, self.needed, self.fix
        )
    }
}

impl Mention {
    /// Whether it knows the old range and not the new one.
    fn is_too_narrow(&self, from: &IpNet, to: &IpNet) -> bool {
        let clings = self.clings_to(from);
        // A range around both says nothing of either once there is another beside it that is the old one's alone: "everybody but
        // pods" is 0.0.0.0/0 but the old range, and lets pods of the new one in.
        let knows_new = |said: &IpNet| overlap(said, to) && !(clings && said.contains(from));
        self.ranges.iter().any(|said| overlap(said, from)) && !self.ranges.iter().any(knows_new)
    }

    /// Whether it says a range that is the old one's alone.
    fn clings_to(&self, range: &IpNet) -> bool {
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

/// What has to be changed before a pod gets an address of the new range: places that have to know both, and do not.
pub fn before(mentions: &[Mention], from: &IpNet, to: &IpNet) -> Vec<Change> {
    mentions
        .iter()
        .filter(|mention| match mention.needs {
            Needs::Both | Needs::BothThenNew => true,
            Needs::New => false,
        })
        .filter(|mention| mention.is_too_narrow(from, to))
        .map(|mention| mention.change(&format!("{from} and {to}, or one range that holds both")))
        .collect()
}

/// What has to be changed before the old pool goes: places that say the old range still.
pub fn after(mentions: &[Mention], from: &IpNet, to: &IpNet) -> Vec<Change> {
    mentions
        .iter()
        .filter(|mention| match mention.needs {
            Needs::BothThenNew | Needs::New => true,
            Needs::Both => false,
        })
        .filter(|mention| mention.clings_to(from))
        .map(|mention| mention.change(&to.to_string()))
        .collect()
}

/// [`before`], each on a line: of the cluster's objects alone, since no tenant decides when pods of others move.
pub fn widen(mentions: &[Mention], from: &IpNet, to: &IpNet) -> Vec<String> {
    of_the_cluster(&before(mentions, from, to))
}

/// [`after`], each on a line: of the cluster's objects alone.
pub fn follow_up(mentions: &[Mention], from: &IpNet, to: &IpNet) -> Vec<String> {
    of_the_cluster(&after(mentions, from, to))
}

fn of_the_cluster(changes: &[Change]) -> Vec<String> {
    let held_for = changes.iter().filter(|change| change.owner == Owner::Cluster);
    held_for.map(Change::line).collect()
}

/// What tenants have to change as long as pods of both ranges live: the namespace, and the words. Nothing waits for it.
pub fn of_tenants(mentions: &[Mention], from: &IpNet, to: &IpNet) -> Vec<(String, String)> {
    let changes = before(mentions, from, to).into_iter();
    changes
        .filter_map(|change| {
            let words = format!("{}; {}", change.line(), unwaited(to));
            Some((change.owner.tenant()?.to_owned(), words))
        })
        .collect()
}

/// What it costs that nothing waits for a tenant's object.
pub fn unwaited(to: &IpNet) -> String {
    format!(
        "nothing waits for that, and until then what it says leaves out pods that have an address of {to}"
    )
}

/// Every range that stands in a text, whatever is around it.
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

/// Of these ranges those by which it is decided whether they know `from` and `to`, sorted, and how many others know either. A tenant may write
/// a hundred thousand of them into one object.
pub fn few(said: impl IntoIterator<Item = IpNet>, from: &IpNet, to: &IpNet) -> (Vec<IpNet>, usize) {
    let knows = |said: &IpNet| overlap(said, from) || overlap(said, to);
    let said: BTreeSet<IpNet> = said.into_iter().filter(knows).collect();
    // There is one of each length of a prefix at most.
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

/// The value of a key of a text in YAML that is written once, on a line of its own: `clusterCIDR: "10.244.0.0/16"`.
pub fn value_of<'text>(text: &'text str, key: &str) -> Option<&'text str> {
    text.lines().find_map(|line| {
        let (found, value) = line.trim().split_once(':')?;
        (found.trim_matches(['"', '\'']) == key)
            .then(|| value.trim().trim_matches(['"', '\'', ',']))
            .filter(|value| !value.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn range(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn mention(needs: Needs, said: &[&str]) -> Mention {
        Mention {
            object: "NetworkPolicy shop/web".to_owned(),
            owner: Owner::Cluster,
            ranges: said.iter().map(|text| range(text)).collect(),
            more: 0,
            needs,
            fix: "write {ranges}".to_owned(),
        }
    }

    proptest! {
        /// Of a thousand ranges around, within and beside both, the few decide as all do, there and back.
        #[test]
        fn the_few_decide_as_all_do(
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
            let (kept, more) = few(all.iter().copied(), &from, &to);
            prop_assert!(kept.len() <= 2 * (LISTED + 33), "{}", kept.len());
            prop_assert!(kept.len() + more <= all.len());
            let of = |ranges: Vec<IpNet>| Mention { ranges, ..mention(Needs::Both, &[]) };
            let (all, kept) = (of(all), of(kept));
            for (left, target) in [(&from, &to), (&to, &from)] {
                prop_assert_eq!(all.is_too_narrow(left, target), kept.is_too_narrow(left, target));
                prop_assert_eq!(all.clings_to(left), kept.clings_to(left));
            }
        }
    }

    #[test]
    fn of_a_hundred_thousand_ranges_a_few_are_kept() {
        let many = (0..100_000_u32).map(|number| {
            IpNet::from(std::net::IpAddr::from(std::net::Ipv4Addr::from(
                0x0af4_0000 + number,
            )))
        });
        let (kept, more) = few(
            many.chain([range("10.200.7.0/24"), range("192.0.2.0/24")]),
            &range("10.244.0.0/15"),
            &range("10.200.0.0/16"),
        );
        assert_eq!((kept.len(), more), (LISTED + 1, 100_000 - LISTED));
        assert!(kept.contains(&range("10.200.7.0/24")));
        let mention = Mention {
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
    #[case::old_alone(Needs::Both, &["10.244.0.0/16"], true, false)]
    #[case::a_part_of_it(Needs::Both, &["10.244.7.0/24"], true, false)]
    #[case::both(Needs::Both, &["10.244.0.0/16", "10.200.0.0/16"], false, false)]
    #[case::around_both(Needs::BothThenNew, &["10.0.0.0/8"], false, false)]
    #[case::around_the_old_one(Needs::BothThenNew, &["10.240.0.0/12"], true, false)]
    #[case::everybody_but_the_old_one(Needs::Both, &["0.0.0.0/0", "10.244.0.0/16"], true, false)]
    #[case::everybody_but_both(Needs::Both, &["0.0.0.0/0", "10.200.0.0/16", "10.244.0.0/16"], false, false)]
    #[case::everybody(Needs::Both, &["0.0.0.0/0", "192.168.0.0/16"], false, false)]
    #[case::proxy(Needs::BothThenNew, &["10.244.0.0/16"], true, true)]
    #[case::environment(Needs::New, &["10.244.0.0/16"], false, true)]
    #[case::new_alone(Needs::New, &["10.200.0.0/16"], false, false)]
    #[case::neither(Needs::BothThenNew, &["192.168.0.0/16"], false, false)]
    fn who_has_to_be_changed_when(
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
    fn the_words_say_what_to_write() {
        let mentions = [mention(Needs::New, &["10.244.0.0/16"])];
        let words = follow_up(&mentions, &range("10.244.0.0/16"), &range("10.200.0.0/16"));
        assert_eq!(
            words,
            ["NetworkPolicy shop/web: found 10.244.0.0/16, needed 10.200.0.0/16. Fix: write 10.200.0.0/16"]
        );
    }

    /// There and back: the range that it lacks is named, and nothing waits for it.
    #[rstest]
    #[case::there("10.244.0.0/16", "10.200.0.0/16")]
    #[case::back("10.200.0.0/16", "10.244.0.0/16")]
    fn what_a_tenant_says_is_told_and_holds_nothing(#[case] from: &str, #[case] to: &str) {
        let tenants = [Needs::Both, Needs::BothThenNew, Needs::New].map(|needs| Mention {
            owner: Owner::Tenant("shop".to_owned()),
            ..mention(needs, &[from])
        });
        let (left, target) = (range(from), range(to));
        assert_eq!(widen(&tenants, &left, &target), [""; 0]);
        assert_eq!(follow_up(&tenants, &left, &target), [""; 0]);
        let told = of_tenants(&tenants[..1], &left, &target);
        let words = format!(
            "NetworkPolicy shop/web: found {from}, needed {from} and {to}, or one range that holds both. Fix: write {from} and {to}, or one \
             range that holds both; nothing waits for that, and until then what it says leaves out pods that have an address of {to}"
        );
        assert_eq!(told, [("shop".to_owned(), words)]);
        let both = mention(Needs::Both, &[from, to]);
        assert_eq!(of_tenants(&[both], &left, &target), []);
    }

    #[rstest]
    #[case("podSubnet: 10.244.0.0/16,fd00:10::/56", &["10.244.0.0/16", "fd00:10::/56"])]
    #[case("- --cluster-cidr=10.244.0.0/16", &["10.244.0.0/16"])]
    #[case("\"cidr\":\"10.244.1.0/16\"", &["10.244.0.0/16"])]
    #[case("see https://example.org/16 at 10.0.0.1", &[])]
    #[case("the range 10.244.0.0/16.", &["10.244.0.0/16"])]
    #[case("::/0", &["::/0"])]
    fn ranges_of_a_text(#[case] text: &str, #[case] expected: &[&str]) {
        let expected: Vec<IpNet> = expected.iter().map(|text| range(text)).collect();
        assert_eq!(ranges_in(text), expected);
    }

    #[rstest]
    #[case("clusterCIDR: \"10.244.0.0/16\"", Some("10.244.0.0/16"))]
    #[case("a: b\n  clusterCIDR: 10.244.0.0/16\n", Some("10.244.0.0/16"))]
    #[case("{\n  \"clusterCIDR\": \"10.244.0.0/16\",\n}", Some("10.244.0.0/16"))]
    #[case("clusterCIDR: \"\"", None)]
    #[case("clusterCIDRs: x", None)]
    fn values_of_a_text(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(value_of(text, "clusterCIDR"), expected);
    }
}
