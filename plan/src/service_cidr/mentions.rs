//! Who else says addresses of Services: the kubelets' `clusterDNS`, kubeadm's configuration, policies, pins in manifests. The tool
//! changes none of them; it says what to write, and looks whether it was.

use ipnet::IpNet;

use super::facts::Mention;
use super::ranges::listed;
use crate::check::names;

/// What a person writes in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The object and its field.
    pub object: String,
    /// What it says.
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

/// What has to be changed before addresses of these ranges are given up: each place that says one of them still.
pub fn follow_up(mentions: &[Mention], left: &[IpNet], target: &[IpNet]) -> Vec<Change> {
    let clings = |said: &IpNet| left.iter().any(|left| left.contains(said));
    mentions
        .iter()
        .filter(|mention| mention.says.iter().any(clings))
        .map(|mention| {
            let needed = listed(target);
            let said: Vec<String> = mention.says.iter().map(said).collect();
            Change {
                object: mention.object.clone(),
                found: names(&said),
                fix: mention.fix.replace("{new}", &needed),
                needed: format!("none of {}", listed(left)),
            }
        })
        .collect()
}

/// Every range and every address that stands in a text, whatever is around it.
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
        .filter_map(one)
        .collect();
    found.sort();
    found.dedup();
    found
}

fn one(word: &str) -> Option<IpNet> {
    let address = || word.parse::<std::net::IpAddr>().ok().map(IpNet::from);
    let is_long_enough = word.contains('.') || word.matches(':').count() > 1;
    word.parse::<IpNet>()
        .map(|range| range.trunc())
        .ok()
        .or_else(address)
        // "::" stands for nobody.
        .filter(|found| {
            is_long_enough && !(found.addr().is_unspecified() && found.prefix_len() == found.max_prefix_len())
        })
}

/// A single address without its length, as people write it.
fn said(range: &IpNet) -> String {
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
    fn addresses_are_found_whatever_is_around_them() {
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
    fn who_says_the_old_range_is_told_what_to_write() {
        let range = |text: &str| -> IpNet { text.parse().unwrap() };
        let mention = |says: &str| Mention {
            object: "ConfigMap kube-system/kubelet-config: clusterDNS".to_owned(),
            says: vec![range(says)],
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
            "ConfigMap kube-system/kubelet-config: clusterDNS: found 10.96.0.10, needed none of 10.96.0.0/12. Fix: write an address of \
             172.30.0.0/16"
        );
    }
}
