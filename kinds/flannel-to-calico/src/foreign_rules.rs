//! Rules of other programs that name the links of flannel. Calico's links have other names: without a twin for them, such a rule
//! no longer applies to a pod once its node is migrated. Pure.

mod twins;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::twins::{Twins, twins, with_mark, without_mark};

/// Most rules that are named.
const NAMED: usize = 16;
/// Most characters of a rule that are kept.
const LONGEST: usize = 512;

/// `ForeignRules` are rules of other programs than flannel, Calico, kube-proxy and replumb that name the links of flannel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForeignRules {
    /// `rules` is the list of missing twins for the links of Calico, each with its rule. At most 16 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<ForeignRule>,
    /// `more` is the number of further such twins.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
    /// `refused` is the number of all such twins that the agent cannot write, those of `rules` included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u32,
    /// `passage` is the list of missing twins for the links that pods have only while they are adopted. At most 16 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passage: Vec<ForeignRule>,
    /// `twins` is the number of twins that exist.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub twins: u32,
    /// `written` is the number of twins that the agent has written (`firewallTwins: Write`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub written: u32,
    /// `problem` is why the rules could not be read. Unset if they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// `ForeignRule` is a rule that names a link of flannel, and a twin that it does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForeignRule {
    /// `chain` is the backend, the table and the chain, such as `nft inet firewalld filter_FORWARD`.
    pub chain: String,
    /// `rule` is the rule as its program prints it.
    pub rule: String,
    /// `twin` is the rule that is needed in the same chain.
    pub twin: String,
    /// `refused` is why the agent cannot write the twin, tried without a change. Unset if the program of the rules accepts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The links that a twin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwinOf {
    /// The links of Calico.
    Calico,
    /// The links that pods have while they are adopted: off the bridge, and under the name that flannel's plugin gave them.
    Passage,
}

impl TwinOf {
    const ALL: [Self; 2] = [Self::Calico, Self::Passage];

    /// The comment by which an agent recognizes the twins that it has written.
    fn mark(self) -> &'static str {
        match self {
            Self::Calico => "replumb-twin",
            Self::Passage => "replumb-passage",
        }
    }

    /// The names of the links of pods.
    fn pods(self, notation: Notation) -> &'static str {
        match (self, notation) {
            (Self::Calico, Notation::Nft) => "cali*",
            (Self::Calico, Notation::Iptables) => "cali+",
            (Self::Passage, Notation::Nft) => "veth*",
            (Self::Passage, Notation::Iptables) => "veth+",
        }
    }
}

/// How a program writes the name of a link in a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// `iifname "cni0"`; every link whose name starts so: `"cali*"`.
    Nft,
    /// `-i cni0`; every link whose name starts so: `cali+`.
    Iptables,
}

/// The rules of one chain that concern the links of flannel, by their index in the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainTwins {
    /// Missing twins, each with the index of its rule.
    pub missing: Vec<(usize, MissingTwin)>,
    /// Twins that the agent has written.
    pub written: Vec<(usize, TwinOf)>,
    /// Number of twins that exist.
    pub present: usize,
}

/// A twin that a rule does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingTwin {
    /// The links that the twin is for.
    pub of: TwinOf,
    /// The rule, without its counts.
    pub rule: String,
    /// Its twin, or in words what is needed instead.
    pub twin: String,
    /// The twin with the mark of the agent; `None` if no agent can write one.
    pub marked: Option<String>,
}

/// Why a rule that applies to all links but some has no twin: beside the rule, the twin would apply to those of the rule.
pub const EXCLUDES: &str = "it excludes a link, and a second rule would apply to that link";

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl ChainTwins {
    /// Finds them among all rules of a chain, in its order.
    pub fn of(rules: &[String], notation: Notation) -> Self {
        let known: Vec<(String, Option<TwinOf>)> = rules
            .iter()
            .map(|rule| without_mark(&without_counters(rule), notation))
            .collect();
        let mut found = Self::default();
        for (index, (rule, mark)) in known.iter().enumerate() {
            if let Some(of) = mark {
                found.written.push((index, *of));
                continue;
            }
            // Some programs print a written twin in another form. Directly behind its rule it is one all the same.
            let behind = known.get(index + 1..).unwrap_or_default();
            let own = behind.iter().map_while(|(_, mark)| *mark);
            for of in TwinOf::ALL {
                match twins(rule, of, notation) {
                    Twins::Excluded(needed) => found.missing.push((
                        index,
                        MissingTwin {
                            of,
                            rule: rule.clone(),
                            twin: needed,
                            marked: None,
                        },
                    )),
                    Twins::Of(texts) => {
                        let written = own.clone().filter(|own| *own == of).count();
                        for text in &texts {
                            let is_there = known.iter().any(|(known, _)| known == text);
                            if is_there || written == texts.len() {
                                found.present += 1;
                                continue;
                            }
                            let missing = MissingTwin {
                                of,
                                rule: rule.clone(),
                                marked: Some(with_mark(text, of, notation)),
                                twin: text.clone(),
                            };
                            found.missing.push((index, missing));
                        }
                    }
                }
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
            let of_kind = match missing.of {
                TwinOf::Calico => &mut self.rules,
                TwinOf::Passage => &mut self.passage,
            };
            if of_kind.len() < NAMED {
                of_kind.push(ForeignRule {
                    chain: chain.to_owned(),
                    rule: cut(&missing.rule),
                    twin: cut(&missing.twin),
                    refused: missing.marked.is_none().then(|| EXCLUDES.to_owned()),
                });
            } else if missing.of == TwinOf::Calico {
                self.more = self.more.saturating_add(1);
            }
            if missing.of == TwinOf::Calico && missing.marked.is_none() {
                self.refused = self.refused.saturating_add(1);
            }
        }
    }

    /// Records that a program refuses this twin.
    pub fn refuse(&mut self, of: TwinOf, twin: &str, problem: &str) {
        let of_kind = match of {
            TwinOf::Calico => {
                self.refused = self.refused.saturating_add(1);
                &mut self.rules
            }
            TwinOf::Passage => &mut self.passage,
        };
        let twin = cut(twin);
        for rule in of_kind.iter_mut().filter(|rule| rule.twin == twin) {
            rule.refused = Some(cut(problem));
        }
    }
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
mod tests;
