//! Converts rules of policies and profiles.

mod v2;
mod v3;

pub use v2::Rule as OldRule;
pub use v3::{Entity, Icmp, Rule};

use super::go_values::equal_fold;
use super::network::Network;
use super::note::Note;
use super::selector;
use v2::{Listed, Side};

/// Actions in v3.
pub const ACTIONS: [&str; 4] = ["Allow", "Deny", "Log", "Pass"];

/// Converts a list of rules, with notes. `field` is the name of the list in v2.
pub fn converted(rules: &[OldRule], field: &str, note: &mut impl FnMut(RuleNote)) -> Vec<Rule> {
    rules
        .iter()
        .enumerate()
        .map(|(place, rule)| converted_rule(rule, &format!("{field}[{place}]"), note))
        .collect()
}

/// A note on a rule: the field in v2 and its value.
pub enum RuleNote {
    /// The old label is also replaced inside another word.
    Selector(String, String),
    /// The log prefix is lost.
    LogPrefix(String, String),
}

impl RuleNote {
    /// The note on a rule of this policy or profile.
    pub fn of(self, key: &super::key::V2Key) -> Note {
        let key = key.clone();
        match self {
            Self::Selector(field, selector) => Note::Selector { key, field, selector },
            Self::LogPrefix(field, found) => Note::LogPrefix { key, field, found },
        }
    }
}

fn converted_rule(rule: &OldRule, field: &str, note: &mut impl FnMut(RuleNote)) -> Rule {
    if !rule.log_prefix.is_empty() {
        note(RuleNote::LogPrefix(
            format!("{field}.log_prefix"),
            rule.log_prefix.clone(),
        ));
    }
    for (name, side) in [
        ("src", &rule.source),
        ("dst", &rule.destination),
        ("!src", &rule.not_source),
        ("!dst", &rule.not_destination),
    ] {
        if selector::is_rewritten_inside_words(&side.selector) {
            note(RuleNote::Selector(
                format!("{field}.{name}_selector"),
                side.selector.clone(),
            ));
        }
    }
    let icmp = |kind: Option<i64>, code: Option<i64>| {
        (kind.is_some() || code.is_some()).then_some(Icmp { kind, code })
    };
    Rule {
        action: action(&rule.action),
        ip_version: rule.ip_version,
        protocol: rule.protocol.as_ref().map(super::protocol::Protocol::in_v3),
        icmp: icmp(rule.icmp_type, rule.icmp_code),
        not_protocol: rule.not_protocol.as_ref().map(super::protocol::Protocol::in_v3),
        not_icmp: icmp(rule.not_icmp_type, rule.not_icmp_code),
        source: entity(&rule.source, &rule.not_source),
        destination: entity(&rule.destination, &rule.not_destination),
    }
}

/// The action in v3. An empty action is `Allow`; an unknown one stays, and validation refuses it.
fn action(action: &str) -> String {
    match action {
        "" => "Allow".to_owned(),
        "next-tier" => "Pass".to_owned(),
        other => ACTIONS
            .into_iter()
            .find(|known| equal_fold(known, other))
            .unwrap_or(other)
            .to_owned(),
    }
}

fn entity(side: &Side, not: &Side) -> Entity {
    let selector = |side: &Side| selector::with_tag(&selector::rewritten(&side.selector), &side.tag);
    Entity {
        nets: networks(side),
        selector: selector(side),
        ports: side.ports.clone(),
        not_nets: networks(not),
        not_selector: selector(not),
        not_ports: not.ports.clone(),
    }
}

/// The networks of the list, then the single one, all without host bits.
fn networks(side: &Side) -> Vec<String> {
    let listed = side.nets.iter().map(|Listed(network)| network);
    listed
        .chain(&side.net)
        .filter_map(Network::masked)
        .map(|network| network.to_string())
        .collect()
}

#[cfg(test)]
mod tests;
