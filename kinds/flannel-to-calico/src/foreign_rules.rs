//! Rules of other programs that name the links of flannel. Calico's links have other names: without a twin for them, such a rule
//! no longer applies to a pod once its node is migrated. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plugin::BRIDGE;

/// Starts of the names of flannel's tunnels.
const TUNNELS: [&str; 2] = ["flannel.", "flannel-v6."];
/// Most rules that are named.
const NAMED: usize = 16;
/// Most characters of a rule that are kept.
const LONGEST: usize = 512;

/// `ForeignRules` are rules of other programs than flannel, Calico, kube-proxy and replumb that name the links of flannel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForeignRules {
    /// `rules` is the list of rules without a twin for the links of Calico. At most 16 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<ForeignRule>,
    /// `more` is the number of further such rules.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
    /// `twins` is the number of rules that have a twin.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub twins: u32,
    /// `written` is the number of twins that the agent has written (`firewallTwins: Write`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub written: u32,
    /// `problem` is why the rules could not be read. Unset if they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `ForeignRule` is a rule that names a link of flannel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForeignRule {
    /// `chain` is the backend, the table and the chain, such as `nft inet firewalld filter_FORWARD`.
    pub chain: String,
    /// `rule` is the rule as its program prints it.
    pub rule: String,
    /// `twin` is the same rule for the links of Calico, which is needed in the same chain.
    pub twin: String,
    /// `refused` is why the agent cannot write the twin, tried without a change. Unset if the program of the rules accepts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The rules of one chain that concern the links of flannel, by their index in the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainTwins {
    /// Rules without a twin: the index, and the twin with the mark of the agent.
    pub missing: Vec<(usize, MissingTwin)>,
    /// Twins that the agent has written.
    pub written: Vec<usize>,
    /// Number of rules with a twin.
    pub present: usize,
}

/// A rule without a twin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingTwin {
    /// The rule, without its counts.
    pub rule: String,
    /// Its twin.
    pub twin: String,
    /// The twin with the mark of the agent.
    pub marked: String,
}

/// The comment by which an agent recognizes the twins that it has written.
const MARK: &str = "replumb-twin";

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// How a program writes the name of a link in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// `iifname "cni0"`; every link whose name starts so: `"cali*"`.
    Nft,
    /// `-i cni0`; every link whose name starts so: `cali+`.
    Iptables,
}

impl ChainTwins {
    /// Finds them among all rules of a chain, in its order.
    pub fn of(rules: &[String], notation: Notation) -> Self {
        let known: Vec<(String, bool)> = rules
            .iter()
            .map(|rule| without_mark(&without_counters(rule), notation))
            .collect();
        let mut found = Self::default();
        for (index, (rule, is_marked)) in known.iter().enumerate() {
            if *is_marked {
                found.written.push(index);
            }
            let Some(twin) = twin(rule, notation) else {
                continue;
            };
            if known.iter().any(|(known, _)| *known == twin) {
                found.present += 1;
            } else {
                let marked = with_mark(&twin, notation);
                let rule = rule.clone();
                found.missing.push((index, MissingTwin { rule, twin, marked }));
            }
        }
        found
    }
}

impl ForeignRules {
    /// Adds the rules of one chain.
    pub fn add(&mut self, chain: &str, found: &ChainTwins) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        self.twins = self.twins.saturating_add(count(found.present));
        self.written = self.written.saturating_add(count(found.written.len()));
        for (_, missing) in &found.missing {
            if self.rules.len() < NAMED {
                self.rules.push(ForeignRule {
                    chain: chain.to_owned(),
                    rule: cut(&missing.rule),
                    twin: cut(&missing.twin),
                    refused: None,
                });
            } else {
                self.more = self.more.saturating_add(1);
            }
        }
    }
}

/// The rule with the mark of the agent. nftables has one comment a rule, iptables any number.
fn with_mark(rule: &str, notation: Notation) -> String {
    match notation {
        Notation::Iptables => format!("{rule} -m comment --comment {MARK}"),
        Notation::Nft => match rule.rsplit_once(" comment \"") {
            Some((rule, comment)) => format!("{rule} comment \"{MARK} {comment}"),
            None => format!("{rule} comment \"{MARK}\""),
        },
    }
}

/// The rule without the mark, and whether it had it.
fn without_mark(rule: &str, notation: Notation) -> (String, bool) {
    let plain = match notation {
        // iptables prints the parts of a rule in its own order.
        Notation::Iptables => rule.replacen(&format!(" -m comment --comment {MARK}"), "", 1),
        Notation::Nft => rule.replacen(&format!(" comment \"{MARK}\""), "", 1).replacen(
            &format!(" comment \"{MARK} "),
            " comment \"",
            1,
        ),
    };
    let is_marked = plain != rule;
    (plain, is_marked)
}

/// The rule for the links of Calico; `None` for a rule that names no link of flannel.
fn twin(rule: &str, notation: Notation) -> Option<String> {
    let quote = |name: &str| match notation {
        Notation::Nft => format!("\"{name}\""),
        Notation::Iptables => name.to_owned(),
    };
    let pods = match notation {
        Notation::Nft => "cali*",
        Notation::Iptables => "cali+",
    };
    let mut is_comment = false;
    let mut changed = false;
    let words: Vec<String> = words(rule)
        .map(|word| {
            let follows_comment = std::mem::replace(&mut is_comment, word.ends_with("comment"));
            let comma = if word.ends_with(',') { "," } else { "" };
            let bare = word.trim_end_matches(',');
            let name = match notation {
                Notation::Nft => bare.strip_prefix('"').and_then(|name| name.strip_suffix('"')),
                Notation::Iptables => Some(bare),
            };
            let link = match name {
                Some(BRIDGE) => pods,
                Some(name) if is_tunnel(name) && name.contains("v6") => "vxlan-v6.calico",
                Some(name) if is_tunnel(name) => "vxlan.calico",
                Some(_) | None => return word.to_owned(),
            };
            if follows_comment {
                return word.to_owned();
            }
            changed = true;
            format!("{}{comma}", quote(link))
        })
        .collect();
    changed.then(|| words.join(" "))
}

/// The words of a rule. A text in quotes is one word.
fn words(rule: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    rule.split(move |letter| {
        quoted ^= letter == '"';
        letter == ' ' && !quoted
    })
}

/// Whether it is the name of a tunnel of flannel, or a pattern for such names.
fn is_tunnel(name: &str) -> bool {
    let number = TUNNELS.iter().find_map(|start| name.strip_prefix(start));
    number.is_some_and(|number| {
        let is_of_pattern = |letter: char| letter.is_ascii_digit() || ['*', '+'].contains(&letter);
        !number.is_empty() && number.chars().all(is_of_pattern)
    })
}

/// The rule without its counts, which differ between a rule and its twin.
fn without_counters(rule: &str) -> String {
    let mut words = rule.split_whitespace().peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let is_number = |word: Option<&&str>| word.is_some_and(|word| word.parse::<u64>().is_ok());
        if ["packets", "bytes"].contains(&word) && is_number(words.peek()) {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// The start of a long text, marked as such.
fn cut(text: &str) -> String {
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    let mut start: String = text.chars().take(LONGEST).collect();
    start.push('…');
    start
}

/// Whether a chain belongs to a program whose rules follow the links by themselves, or do not name links: kube-proxy, flannel,
/// Calico, the CNI plugins, replumb.
pub fn is_known(family: &str, table: &str, chain: &str) -> bool {
    let tables = ["flannel-ipv4", "flannel-ipv6", "kube-proxy"];
    let chains = ["KUBE-", "FLANNEL-", "CNI-", "cali"];
    tables.contains(&table)
        || ["replumb", "cali"].iter().any(|start| table.starts_with(start))
        || family == "netdev"
        || chains.iter().any(|start| chain.starts_with(start))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(r#"iifname "cni0" accept"#, Notation::Nft, Some(r#"iifname "cali*" accept"#))]
    #[case(
        r#"iifname { "cni0", "docker0" } accept"#,
        Notation::Nft,
        Some(r#"iifname { "cali*", "docker0" } accept"#)
    )]
    #[case(
        r#"oifname "flannel.1" counter accept"#,
        Notation::Nft,
        Some(r#"oifname "vxlan.calico" counter accept"#)
    )]
    #[case(
        r#"oifname "flannel-v6.1" accept"#,
        Notation::Nft,
        Some(r#"oifname "vxlan-v6.calico" accept"#)
    )]
    #[case(
        "-A FORWARD -i cni0 -j ACCEPT",
        Notation::Iptables,
        Some("-A FORWARD -i cali+ -j ACCEPT")
    )]
    #[case("-A FORWARD -i cni01 -j ACCEPT", Notation::Iptables, None)]
    #[case(r#"iifname "eth0" accept"#, Notation::Nft, None)]
    #[case(r#"ip saddr 10.244.0.0/16 accept comment "of flannel.""#, Notation::Nft, None)]
    #[case(r#"iifname "eth0" accept comment "cni0""#, Notation::Nft, None)]
    #[case(
        r#"iifname "cni0" accept comment "cni0""#,
        Notation::Nft,
        Some(r#"iifname "cali*" accept comment "cni0""#)
    )]
    #[case(
        "-A INPUT -i eth0 -m comment --comment cni0 -j DROP",
        Notation::Iptables,
        None
    )]
    #[case(
        r#"-A INPUT -i eth0 -m comment --comment "no cni0 here" -j DROP"#,
        Notation::Iptables,
        None
    )]
    #[case(
        "-A FORWARD -o flannel.+ -j ACCEPT",
        Notation::Iptables,
        Some("-A FORWARD -o vxlan.calico -j ACCEPT")
    )]
    fn the_twin_of_a_rule(#[case] rule: &str, #[case] notation: Notation, #[case] expected: Option<&str>) {
        assert_eq!(twin(rule, notation).as_deref(), expected);
    }

    #[test]
    fn a_rule_with_its_twin_is_no_finding_whatever_the_counters_say() {
        let mut found = ForeignRules::default();
        let rules = [
            r#"iifname "cni0" counter packets 7 bytes 420 accept"#,
            r#"iifname "cali*" counter packets 0 bytes 0 accept"#,
            r#"oifname "flannel.1" accept"#,
        ]
        .map(str::to_owned);
        found.add("nft inet host FORWARD", &ChainTwins::of(&rules, Notation::Nft));
        assert_eq!((found.twins, found.rules.len()), (1, 1));
        assert_eq!(found.rules[0].twin, r#"oifname "vxlan.calico" accept"#);
    }

    #[test]
    fn many_rules_are_counted() {
        let rules: Vec<String> = (0..20)
            .map(|number| format!("-A INPUT -i cni0 --dport {number} -j ACCEPT"))
            .collect();
        let mut found = ForeignRules::default();
        found.add(
            "iptables filter INPUT",
            &ChainTwins::of(&rules, Notation::Iptables),
        );
        assert_eq!((found.rules.len(), found.more), (16, 4));
    }

    #[test]
    fn chains_of_the_cluster_are_known() {
        assert!(is_known("ip", "nat", "KUBE-SERVICES") && is_known("ip", "flannel-ipv4", "postrtg"));
        assert!(is_known("inet", "replumb_frames", "x") && is_known("ip", "filter", "cali-FORWARD"));
        assert!(!is_known("ip", "filter", "FORWARD") && !is_known("inet", "firewalld", "filter_FORWARD"));
    }

    #[rstest]
    #[case(r#"iifname "cni0" counter accept"#, Notation::Nft)]
    #[case(
        r#"iifname "cni0" counter accept comment "pods of the cluster""#,
        Notation::Nft
    )]
    #[case("-A FORWARD -i cni0 -j ACCEPT", Notation::Iptables)]
    #[case(
        r#"-A FORWARD -i cni0 -m comment --comment "of pods" -j ACCEPT"#,
        Notation::Iptables
    )]
    fn a_written_twin_is_recognized_by_its_mark(#[case] rule: &str, #[case] notation: Notation) {
        let found = ChainTwins::of(&[rule.to_owned()], notation);
        let [(0, missing)] = found.missing.as_slice() else {
            panic!("{found:?}");
        };
        assert!(missing.marked.contains(MARK) && !missing.twin.contains(MARK));
        let both = [rule.to_owned(), missing.marked.clone()];
        let found = ChainTwins::of(&both, notation);
        assert_eq!((found.missing.as_slice(), found.present), ([].as_slice(), 1));
        assert_eq!(found.written, [1]);
        // The twin of a person has no mark, and is not the agent's to remove.
        let both = [rule.to_owned(), missing.twin.clone()];
        let found = ChainTwins::of(&both, notation);
        assert_eq!((found.present, found.written.as_slice()), (1, [].as_slice()));
    }

    /// iptables prints a comment before the target, wherever it was written.
    #[test]
    fn a_mark_is_found_where_iptables_prints_it() {
        let rules = [
            "-A FORWARD -i cni0 -j ACCEPT",
            "-A FORWARD -i cali+ -m comment --comment replumb-twin -j ACCEPT",
        ]
        .map(str::to_owned);
        let found = ChainTwins::of(&rules, Notation::Iptables);
        assert_eq!((found.present, found.written.as_slice()), (1, [1].as_slice()));
    }
}
