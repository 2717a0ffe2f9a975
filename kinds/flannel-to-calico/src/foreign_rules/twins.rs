//! The twins of one rule: the same rule for other links, and the mark of those that an agent has written. Pure.

use super::{Notation, TwinOf};
use crate::plugin::BRIDGE;

/// Starts of the names of flannel's tunnels.
const TUNNELS: [&str; 2] = ["flannel.", "flannel-v6."];

/// The rule with the mark of the agent. nftables has one comment a rule, iptables any number.
pub(super) fn with_mark(rule: &str, of: TwinOf, notation: Notation) -> String {
    let mark = of.mark();
    match notation {
        Notation::Iptables => format!("{rule} -m comment --comment {mark}"),
        Notation::Nft => match rule.rsplit_once(" comment \"") {
            Some((rule, comment)) => format!("{rule} comment \"{mark} {comment}"),
            None => format!("{rule} comment \"{mark}\""),
        },
    }
}

/// The rule without the mark, and the mark that it had.
pub(super) fn without_mark(rule: &str, notation: Notation) -> (String, Option<TwinOf>) {
    for of in TwinOf::ALL {
        let mark = of.mark();
        let plain = match notation {
            // iptables prints the parts of a rule in its own order.
            Notation::Iptables => rule.replacen(&format!(" -m comment --comment {mark}"), "", 1),
            Notation::Nft => rule.replacen(&format!(" comment \"{mark}\""), "", 1).replacen(
                &format!(" comment \"{mark} "),
                " comment \"",
                1,
            ),
        };
        if plain != rule {
            return (plain, Some(of));
        }
    }
    (rule.to_owned(), None)
}

/// The twins of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Twins {
    /// The rule applies to all links but some: what it needs, in words.
    Excluded(String),
    /// One for each combination of links; none for a rule that names no link of flannel.
    Of(Vec<String>),
}

/// The twins of a rule for these links. A rule with two links needs one for each combination: while a node changes, pods of both
/// networks run on it.
pub(super) fn twins(rule: &str, of: TwinOf, notation: Notation) -> Twins {
    let words: Vec<&str> = words(rule).collect();
    let links: Vec<(usize, Link)> = (0..words.len())
        .filter_map(|index| Some((index, Link::at(&words, index, notation)?)))
        .collect();
    let names_pods = links.iter().any(|(_, link)| *link == Link::Bridge);
    if links.is_empty() || (of == TwinOf::Passage && !names_pods) {
        return Twins::Of(Vec::new());
    }
    let of_calico = |link: &Link| match link {
        Link::Bridge => of.pods(notation),
        Link::Tunnel(name) => name,
    };
    if links
        .iter()
        .any(|(index, _)| is_excluded(&words, *index, notation))
    {
        let names: Vec<&str> = links.iter().map(|(_, link)| of_calico(link)).collect();
        let has = |name: &&str| words.iter().any(|word| bare(word, notation) == Some(*name));
        return if names.iter().all(has) {
            Twins::Of(Vec::new())
        } else {
            Twins::Excluded(format!("one rule that excludes {} as well", names.join(" and ")))
        };
    }
    let mut texts = vec![(
        words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(),
        false,
    )];
    for (index, link) in &links {
        let written = |name: &str| {
            let comma = if words[*index].ends_with(',') { "," } else { "" };
            match notation {
                Notation::Nft => format!("\"{name}\"{comma}"),
                Notation::Iptables => name.to_owned(),
            }
        };
        let others: Vec<(Option<&str>, bool)> = match (link, of) {
            (Link::Tunnel(name), _) => vec![(Some(name), false)],
            (Link::Bridge, TwinOf::Calico) => vec![(None, false), (Some(of.pods(notation)), true)],
            (Link::Bridge, TwinOf::Passage) => vec![
                (None, false),
                (Some(TwinOf::Calico.pods(notation)), false),
                (Some(of.pods(notation)), true),
            ],
        };
        texts = texts
            .into_iter()
            .flat_map(|(text, is_of_kind)| {
                others
                    .iter()
                    .map(move |(name, of_kind)| (text.clone(), *name, is_of_kind || *of_kind))
            })
            .map(|(mut text, name, is_of_kind)| {
                if let (Some(name), Some(word)) = (name, text.get_mut(*index)) {
                    *word = written(name);
                }
                (text, is_of_kind)
            })
            .collect();
    }
    let original = words.join(" ");
    let texts = texts
        .into_iter()
        .filter(|(_, is_of_kind)| *is_of_kind || of == TwinOf::Calico)
        .map(|(text, _)| text.join(" "));
    Twins::Of(texts.filter(|text| *text != original).collect())
}

/// A link of flannel in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// The bridge of the pods.
    Bridge,
    /// A tunnel, with the name of Calico's.
    Tunnel(&'static str),
}

impl Link {
    /// The link that this word names.
    fn at(words: &[&str], index: usize, notation: Notation) -> Option<Self> {
        let is_comment = index > 0 && words[index - 1].ends_with("comment");
        match bare(words[index], notation)? {
            _ if is_comment => None,
            BRIDGE => Some(Self::Bridge),
            name if is_tunnel(name) && name.contains("v6") => Some(Self::Tunnel("vxlan-v6.calico")),
            name if is_tunnel(name) => Some(Self::Tunnel("vxlan.calico")),
            _ => None,
        }
    }
}

/// The name in a word, without quotes and comma.
fn bare(word: &str, notation: Notation) -> Option<&str> {
    let bare = word.trim_end_matches(',');
    match notation {
        Notation::Nft => bare.strip_prefix('"').and_then(|name| name.strip_suffix('"')),
        Notation::Iptables => Some(bare),
    }
}

/// Whether the rule applies to all links but this one: `! -i cni0`, `iifname != "cni0"`, `iifname != { "cni0", … }`.
fn is_excluded(words: &[&str], index: usize, notation: Notation) -> bool {
    let before = &words[..index];
    match notation {
        Notation::Iptables => before.len() > 1 && before[before.len() - 2] == "!",
        Notation::Nft => {
            let start = before.iter().rposition(|word| ["{", "}"].contains(word));
            let of_match = match start {
                Some(brace) if before[brace] == "{" => &before[..brace],
                _ => before,
            };
            of_match.last() == Some(&"!=")
        }
    }
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
