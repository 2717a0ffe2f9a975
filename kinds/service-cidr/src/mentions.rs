//! Objects that contain addresses of Services in their configuration: the kubelets' `clusterDNS`, kubeadm's configuration,
//! policies, fixed addresses in manifests. replumb changes none of these: it states the needed value, and checks whether the
//! user set it.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::facts::Mention;
use super::ranges::joined;
use super::side::{Side, Sides};
use engine::owner::Owner;
use engine::words::{LISTED, names_of};

/// A change that the user has to make in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The object and its field.
    pub object: String,
    /// The owner of the object.
    pub owner: Owner,
    /// The value found.
    pub found: String,
    /// The value needed.
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

/// The changes needed before the source ranges are released: objects that still contain an address of them.
pub fn follow_up(mentions: &[Mention], source: &[IpNet], target: &[IpNet]) -> Vec<Change> {
    let is_source = |said: &IpNet| source.iter().any(|range| range.contains(said));
    mentions
        .iter()
        .filter(|mention| mention.addresses.iter().any(is_source))
        .map(|mention| {
            let needed = joined(target);
            let said: Vec<String> = mention.addresses.iter().map(text).collect();
            Change {
                object: mention.object.clone(),
                owner: mention.owner.clone(),
                found: names_of(&said, said.len() + mention.more),
                fix: mention.fix.replace("{new}", &needed),
                needed: format!("none of {}", joined(source)),
            }
        })
        .collect()
}

/// Objects that contain source addresses, one line each, by the stage that waits for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressUses {
    /// Objects of the cluster: no pod is restarted before their change.
    pub follow_up: Vec<String>,
    /// Objects of tenants: the addresses are released after their change. A rollback does not wait for tenants.
    pub release: Vec<String>,
    /// Warnings for tenants, issued at once: the namespace and the message.
    pub warnings: Vec<(String, String)>,
}

impl AddressUses {
    /// Finds the objects that contain source addresses, for the target side `goal`.
    pub fn of(mentions: &[Mention], changed: &Sides<Vec<IpNet>>, goal: Side) -> Self {
        let mut said = Self::default();
        for change in follow_up(mentions, changed.of(goal.other()), changed.of(goal)) {
            match &change.owner {
                Owner::Cluster => said.follow_up.push(change.line()),
                Owner::Tenant(namespace) => said.add_tenant_change(namespace, change.line(), goal),
            }
        }
        said
    }

    /// Adds a change that a tenant has to make.
    pub fn add_tenant_change(&mut self, namespace: &str, line: String, goal: Side) {
        self.warn(namespace, &line, goal);
        if goal == Side::New {
            self.release.push(line);
        }
    }

    /// Adds a warning for a tenant, with the consequence.
    pub fn warn(&mut self, namespace: &str, line: &str, goal: Side) {
        let cost = match goal {
            Side::New => {
                "pods of other tenants do not wait for this change; old addresses are released once it is made"
            }
            Side::Old => {
                "the migration does not wait for this change; at the end such an address no longer answers"
            }
        };
        self.warnings
            .push((namespace.to_owned(), format!("{line}; {cost}")));
    }
}

/// The first few of these addresses in each of these ranges, sorted, and the number of further ones: others are irrelevant. A
/// tenant may write 100,000 addresses into one object.
pub fn few(said: impl IntoIterator<Item = IpNet>, ranges: &[IpNet]) -> (Vec<IpNet>, usize) {
    let within = |said: &IpNet| ranges.iter().any(|range| range.contains(said));
    let said: BTreeSet<IpNet> = said.into_iter().filter(within).collect();
    let first: BTreeSet<IpNet> = ranges
        .iter()
        .flat_map(|range| said.iter().filter(|said| range.contains(*said)).take(LISTED))
        .copied()
        .collect();
    let more = said.len() - first.len();
    (first.into_iter().collect(), more)
}

/// All ranges and addresses in a text, with any text around them.
pub fn addresses_in(text: &str) -> Vec<IpNet> {
    let is_of_one = |letter: char| letter.is_ascii_hexdigit() || ['.', ':', '/'].contains(&letter);
    let mut found: Vec<IpNet> = text
        .split(|letter| !is_of_one(letter))
        .flat_map(|word| {
            // `serviceSubnet:10.96.0.0/12`, `10.96.0.10:53`, and a sentence that ends with one.
            let bare = word
                .trim_start_matches([':', '/', '.'])
                .trim_end_matches([':', '/', '.']);
            let before_a_port = bare.rsplit_once(':').map_or(bare, |(address, _)| address);
            [word, bare, before_a_port]
        })
        .filter_map(parse)
        .collect();
    found.sort();
    found.dedup();
    found
}

fn parse(word: &str) -> Option<IpNet> {
    let address = || word.parse::<std::net::IpAddr>().ok().map(IpNet::from);
    let is_long_enough = word.contains('.') || word.matches(':').count() > 1;
    word.parse::<IpNet>()
        .map(|range| range.trunc())
        .ok()
        .or_else(address)
        // The unspecified address "::" does not count.
        .filter(|found| {
            is_long_enough && !(found.addr().is_unspecified() && found.prefix_len() == found.max_prefix_len())
        })
}

/// A range as text; a single address without its prefix length.
fn text(range: &IpNet) -> String {
    if range.prefix_len() == range.max_prefix_len() {
        range.addr().to_string()
    } else {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_any_text() {
        let found = |text: &str| -> Vec<String> { addresses_in(text).iter().map(IpNet::to_string).collect() };
        assert_eq!(found("clusterDNS:\n- 10.96.0.10\n"), ["10.96.0.10/32"]);
        assert_eq!(
            found("serviceSubnet: 10.96.0.0/12,fd00::/112"),
            ["10.96.0.0/12", "fd00::/112"]
        );
        assert_eq!(found("http://10.96.0.1:443/a"), ["10.96.0.1/32"]);
        assert_eq!(found("[fd00:96::a]:53."), ["fd00:96::a/128"]);
        assert_eq!(found("v1.36.3 at 12:30, 1.2.3, ::"), Vec::<String>::new());
    }

    #[test]
    fn a_list_of_100000_addresses_is_reduced() {
        let range = |text: &str| -> IpNet { text.parse().unwrap() };
        let (old, new) = (range("10.96.0.0/12"), range("172.30.0.0/16"));
        let many = (0..100_000_u32).map(|number| {
            let host = std::net::Ipv4Addr::from(0x0a60_0000 + number);
            IpNet::from(std::net::IpAddr::from(host))
        });
        let others = [
            range("172.30.0.9/32"),
            range("192.0.2.0/24"),
            range("0.0.0.0/0"),
            range("172.30.0.9/32"),
        ];
        let (kept, more) = few(many.chain(others), &[old, new]);
        assert_eq!((kept.len(), more), (LISTED + 1, 100_000 - LISTED));
        assert_eq!(kept.last(), Some(&range("172.30.0.9/32")));
        let mention = Mention {
            object: "Deployment shop/web: its pod template".to_owned(),
            owner: Owner::Tenant("shop".to_owned()),
            addresses: kept,
            more,
            fix: String::new(),
        };
        for (left, target) in [(old, new), (new, old)] {
            let [change] =
                <[Change; 1]>::try_from(follow_up(std::slice::from_ref(&mention), &[left], &[target]))
                    .unwrap();
            assert!(change.found.ends_with("and 99991 more"), "{}", change.found);
        }
    }

    #[test]
    fn a_follow_up_states_the_needed_value() {
        let range = |text: &str| -> IpNet { text.parse().unwrap() };
        let mention = |says: &str| Mention {
            object: "ConfigMap kube-system/kubelet-config: clusterDNS".to_owned(),
            owner: Owner::Cluster,
            addresses: vec![range(says)],
            more: 0,
            fix: "write an address of {new}".to_owned(),
        };
        let mentions = [
            mention("10.96.0.10/32"),
            mention("172.30.0.10/32"),
            mention("0.0.0.0/0"),
        ];
        let found = follow_up(&mentions, &[range("10.96.0.0/12")], &[range("172.30.0.0/16")]);
        let [change] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(
            change.line(),
            "ConfigMap kube-system/kubelet-config: clusterDNS: found 10.96.0.10, needed none of 10.96.0.0/12. Fix: write an \
             address of 172.30.0.0/16"
        );
    }

    /// Forward, the migration waits for tenants at the end; in a rollback it never does.
    #[test]
    fn an_object_of_a_tenant_is_a_warning_and_delays_no_pod() {
        let range = |text: &str| -> Vec<IpNet> { vec![text.parse().unwrap()] };
        let changed = Sides {
            old: range("10.96.0.0/12"),
            new: range("172.30.0.0/16"),
        };
        let mention = |owner: Owner, says: &str| Mention {
            object: "Deployment shop/web: its pod template".to_owned(),
            owner,
            addresses: range(says),
            more: 0,
            fix: "write an address of {new}".to_owned(),
        };
        for (goal, left) in [(Side::New, "10.96.0.1/32"), (Side::Old, "172.30.0.1/32")] {
            let mentions = [
                mention(Owner::Tenant("shop".to_owned()), left),
                mention(Owner::Cluster, left),
                mention(Owner::Tenant("shop".to_owned()), "192.0.2.1/32"),
            ];
            let found = AddressUses::of(&mentions, &changed, goal);
            assert_eq!((found.follow_up.len(), found.warnings.len()), (1, 1));
            assert_eq!(found.release.len(), usize::from(goal == Side::New));
            let (namespace, words) = &found.warnings[0];
            assert!(
                namespace == "shop" && words.starts_with(&found.follow_up[0]),
                "{found:?}"
            );
        }
    }
}
