//! What a cluster has of what Calico's controllers of v3 make something of: what of it v3 cannot have, and what v3 is not opened without.
//!
//! They put a word before each label and before each name of a policy, and make many rules of one. What libcalico-go refuses then
//! (`lib/validator/v3`), or etcd, v3 never has, however long somebody waits.

use std::collections::{BTreeMap, BTreeSet};

use super::left::{LONGEST_POLICY, Left, PolicyName};
use super::selector;
use super::validate::text::is_qualified_name;
use engine::check::{Finding, names};
use engine::drain::Selector;
use engine::owner::Owner;
use engine::words::cut;

/// etcd takes no request of more bytes, by default.
const ETCD_TAKES: usize = 1536 * 1024;
/// Bytes of a rule of v3 but for its peer, at most: action, protocol, port, and the names of the fields.
const RULE_BYTES: usize = 200;
/// Bytes of a value or a label in a list, but for itself, at most.
const ITEM_BYTES: usize = 16;
/// No more bytes of a selector are told.
const SELECTOR_BYTES: usize = 200;

/// What the controllers make something of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A Namespace: of its labels they make a profile.
    Namespace(String),
    /// A `NetworkPolicy` of Kubernetes.
    Policy(PolicyName),
}

impl Origin {
    /// Its kind in Kubernetes.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Namespace(_) => "Namespace",
            Self::Policy(_) => "NetworkPolicy",
        }
    }

    /// Its name, for people.
    pub fn name(&self) -> String {
        match self {
            Self::Namespace(name) => name.clone(),
            Self::Policy(policy) => policy.key(),
        }
    }

    /// The namespace that it is, or is in.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Namespace(name) => name,
            Self::Policy(policy) => &policy.namespace,
        }
    }
}

/// Why v3 has nothing of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// These labels of a Namespace are too long behind what v3 puts before each.
    Labels(String),
    /// The name of a policy, of so many letters, is too long behind what v3 puts before it.
    Name(usize),
    /// A selector is none in v3: a value of it ends too early. A Kubernetes that is older than 1.27 took any text as a value.
    Selector(String),
    /// Up to so many bytes are written, and etcd may refuse them. How many there are depends on the version of v3.
    Size(usize),
}

impl Flaw {
    /// Whether v3 is known to refuse it.
    pub fn is_certain(&self) -> bool {
        match self {
            Self::Labels(_) | Self::Name(_) | Self::Selector(_) => true,
            Self::Size(_) => false,
        }
    }

    /// The field, what it is, what is needed, and what a person does.
    pub fn finding(&self) -> Finding<'static> {
        match self {
            Self::Labels(labels) => Finding::new(
                "metadata.labels",
                labels,
                "58 letters at most in the name of a label without a prefix, 248 in a prefix",
                "shorten it: v3 puts `pcns.` before it and refuses the profile of this namespace, without which Felix drops what its pods begin",
            ),
            Self::Name(letters) => Finding::new(
                "metadata.name",
                format!("{letters} letters"),
                format!("{LONGEST_POLICY} letters at most"),
                "create it again with a shorter name: v3 puts `knp.default.` before it and refuses it, so that it holds nothing back",
            ),
            Self::Selector(written) => Finding::new(
                "spec",
                format!("the selector {written:?} in v3"),
                "no quotation mark in its values",
                "correct it: v3 refuses this policy, so that it holds nothing back",
            ),
            Self::Size(bytes) => Finding::new(
                "",
                format!("up to {bytes} bytes in v3"),
                format!("{ETCD_TAKES} bytes at most, which is what etcd takes"),
                "divide it: v3 has each peer of a rule once for each port",
            ),
        }
    }
}

/// An object that the controllers make something of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its UID: one of the same name that comes later is another.
    pub uid: String,
    /// What it is.
    pub origin: Origin,
    /// Why v3 has nothing of it, if that is so.
    pub flaw: Option<Flaw>,
}

/// Whom a rule of a policy is about, and at how many ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleShape {
    /// Each peer.
    pub peers: Vec<Peer>,
    /// Ports.
    pub ports: usize,
}

/// A peer of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its selectors.
    pub selectors: Vec<Selector>,
    /// Its networks, and those that are excepted.
    pub networks: Vec<String>,
}

/// What decides whether v3 takes what becomes of a policy, but for its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyShape {
    /// Which pods it is for.
    pub selector: Selector,
    /// Its rules, of both directions.
    pub rules: Vec<RuleShape>,
}

impl Source {
    /// Of a Namespace with these labels.
    pub fn of_namespace(name: String, uid: String, labels: &BTreeMap<String, String>) -> Self {
        let keys = labels.keys().map(String::as_str);
        let too_long: Vec<&str> = keys.filter(|label| is_too_long(label)).collect();
        let bytes = labels
            .iter()
            .map(|(key, value)| key.len() + value.len() + ITEM_BYTES)
            .fold(RULE_BYTES, usize::saturating_add);
        Self {
            uid,
            origin: Origin::Namespace(name),
            flaw: if too_long.is_empty() {
                too_large(bytes)
            } else {
                Some(Flaw::Labels(names(&too_long)))
            },
        }
    }

    /// Of a policy.
    pub fn of_policy(name: PolicyName, uid: String, policy: &PolicyShape) -> Self {
        let of_peers = policy.rules.iter().flat_map(|rule| &rule.peers);
        let mut selectors = of_peers
            .flat_map(|peer| &peer.selectors)
            .chain([&policy.selector])
            .map(written);
        let flaw = if name.is_too_long() {
            Some(Flaw::Name(name.name.len()))
        } else if let Some(refused) = selectors.find(|written| selector::parse(written).is_err()) {
            Some(Flaw::Selector(cut(&refused, SELECTOR_BYTES).into_owned()))
        } else {
            too_large(bytes(policy))
        };
        Self {
            uid,
            origin: Origin::Policy(name),
            flaw,
        }
    }

    /// Whether v3 is not opened before it has something of this object. What v3 never has is not waited for, but for the profile of a namespace
    /// of the cluster's own: without it the name servers get no answer, and no tenant can have written its labels.
    fn is_needed(&self, system: &[&str]) -> bool {
        match (&self.flaw, &self.origin) {
            (None, _) => true,
            (Some(_), Origin::Namespace(name)) => Owner::of(Some(name), system) == Owner::Cluster,
            (Some(_), Origin::Policy(_)) => false,
        }
    }
}

/// Whether a label with this key keeps the controllers of v3 from writing the profile of its Namespace: they put `pcns.` before the key
/// (libcalico-go, `NamespaceToProfile`), and a key of v3 is as long as one of Kubernetes. v2 had each label in a key of etcd's.
fn is_too_long(label: &str) -> bool {
    !is_qualified_name(&format!("pcns.{label}"))
}

fn too_large(bytes: usize) -> Option<Flaw> {
    (bytes > ETCD_TAKES).then_some(Flaw::Size(bytes))
}

/// How many bytes become of a policy at most: before v3.11 each peer with each port was a rule of its own.
fn bytes(policy: &PolicyShape) -> usize {
    let of_peer = |peer: &Peer| {
        let of_selectors = peer.selectors.iter().map(|selector| written(selector).len());
        let of_networks = peer.networks.iter().map(|network| network.len() + ITEM_BYTES);
        of_selectors
            .chain(of_networks)
            .fold(RULE_BYTES, usize::saturating_add)
    };
    let of_rule = |rule: &RuleShape| {
        let peers = rule.peers.iter().map(of_peer).fold(0, usize::saturating_add);
        peers.max(RULE_BYTES).saturating_mul(rule.ports.max(1))
    };
    let rules = policy.rules.iter().map(of_rule);
    rules.fold(
        RULE_BYTES + written(&policy.selector).len(),
        usize::saturating_add,
    )
}

/// A selector as the controllers write it (libcalico-go, `k8sSelectorToCalico`).
fn written(selector: &Selector) -> String {
    let of_labels = selector.match_labels.iter();
    let of_labels = of_labels.map(|(key, value)| format!("{key} == '{value}'"));
    let of_terms = selector.match_expressions.iter().map(|(key, operator, values)| {
        let values = values.join("', '");
        match operator.as_str() {
            "In" => format!("{key} in {{ '{values}' }}"),
            "NotIn" => format!("{key} not in {{ '{values}' }}"),
            "DoesNotExist" => format!("! has({key})"),
            _ => format!("has({key})"),
        }
    });
    of_labels.chain(of_terms).collect::<Vec<_>>().join(" && ")
}

/// Which objects v3 is not opened without: those that were there when this conversion was looked at for the first time since its controllers
/// were started. They write what comes later as well, and whoever makes objects all the time holds nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// The conversion, by its id.
    conversion: Option<String>,
    /// UIDs of those of which v3 had nothing at the last look; `None` before the first.
    left: Option<BTreeSet<String>>,
}

impl Awaited {
    /// Forgets what was awaited of another conversion.
    pub fn begin(&mut self, conversion: Option<&str>) {
        if self.conversion.as_deref() != conversion {
            *self = Self {
                conversion: conversion.map(str::to_owned),
                left: None,
            };
        }
    }

    /// Those of these objects that are awaited still. `system` are namespaces that are the cluster's own.
    pub fn among<'sources>(&self, sources: &'sources [Source], system: &[&str]) -> Vec<&'sources Source> {
        let is_left = |uid: &String| self.left.as_ref().is_none_or(|left| left.contains(uid));
        sources
            .iter()
            .filter(|source| is_left(&source.uid) && source.is_needed(system))
            .collect()
    }

    /// Remembers which of those that were awaited v3 has not.
    pub fn keep(&mut self, awaited: &[&Source], missing: &Left) {
        let is_missing = awaited.iter().filter(|source| missing.has(&source.origin));
        self.left = Some(is_missing.map(|source| source.uid.clone()).collect());
    }
}

/// What is told while Calico is paused of objects that v3 cannot have: what each is about, and the words.
pub fn told<'sources>(
    sources: &'sources [Source],
    system: &'sources [&'sources str],
) -> impl Iterator<Item = (String, String)> + 'sources {
    sources.iter().filter_map(|source| {
        let flaw = source.flaw.as_ref()?;
        let Finding {
            part,
            found,
            needed,
            fix,
        } = flaw.finding();
        let has = if flaw.is_certain() { "cannot" } else { "may not" };
        let is = if source.is_needed(system) { "is not" } else { "is" };
        let part = if part.is_empty() { "it" } else { part };
        let (kind, name) = (source.origin.kind(), source.origin.name());
        let words = format!(
            "{kind} {name}: v3 {has} have what becomes of it, and {is} opened without it: {part} is {found}, needed {needed}; {fix}"
        );
        Some((format!("namespace {}", source.origin.namespace()), words))
    })
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
