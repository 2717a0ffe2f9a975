//! Objects of the cluster that Calico's controllers of v3 convert: those that v3 cannot have, and those that v3 has to have
//! before it is opened.
//!
//! The controllers add a prefix to each label and to each name of a policy, and make many rules of one. v3 never gets the objects
//! that libcalico-go (`lib/validator/v3`) or etcd then refuses.

use std::collections::BTreeMap;

use super::policy_name::{LONGEST_POLICY, PolicyName};
use super::selector;
use super::validate::text::is_qualified_name;
use engine::check::{Finding, names};
use engine::drain::Selector;
use engine::owner::Owner;
use engine::words::cut;

/// Default limit of a request to etcd, in bytes.
const ETCD_LIMIT: usize = 1536 * 1024;
/// Most bytes of a rule of v3 without its peer: action, protocol, port, and the names of the fields.
const RULE_BYTES: usize = 200;
/// Most bytes that a value or a label in a list adds to its own length.
const ITEM_BYTES: usize = 16;
/// Most bytes of a selector in a message.
const SELECTOR_BYTES: usize = 200;

/// An object that the controllers convert.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A Namespace, whose labels become a profile.
    Namespace(String),
    /// A `NetworkPolicy` of Kubernetes.
    Policy(PolicyName),
}

impl Origin {
    /// Kind of the object in Kubernetes.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Namespace(_) => "Namespace",
            Self::Policy(_) => "NetworkPolicy",
        }
    }

    /// Name of the object in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Namespace(name) => name.clone(),
            Self::Policy(policy) => policy.key(),
        }
    }

    /// The namespace itself, or the namespace of the policy.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Namespace(name) => name,
            Self::Policy(policy) => &policy.namespace,
        }
    }
}

/// Reason why v3 cannot have an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// These labels of a Namespace are too long with the prefix of v3.
    Labels(String),
    /// The name of a policy, with this number of characters, is too long with the prefix of v3.
    Name(usize),
    /// A selector is invalid in v3, because of a quotation mark in a value. Kubernetes before 1.27 accepted any text as a value.
    Selector(String),
    /// Up to this number of bytes are written, which etcd may refuse. The number depends on the version of v3.
    Size(usize),
}

impl Flaw {
    /// Whether v3 refuses the object in any case.
    pub fn is_certain(&self) -> bool {
        match self {
            Self::Labels(_) | Self::Name(_) | Self::Selector(_) => true,
            Self::Size(_) => false,
        }
    }

    /// The field, the value found, the value needed, and the fix.
    pub fn finding(&self) -> Finding<'static> {
        match self {
            Self::Labels(labels) => Finding::new(
                "metadata.labels",
                labels,
                "at most 58 characters in the name of a label without a prefix, at most 248 in a prefix",
                "shorten it: v3 adds the prefix `pcns.` and refuses the profile of this namespace, so Felix drops new \
                 connections of its pods",
            ),
            Self::Name(characters) => Finding::new(
                "metadata.name",
                format!("{characters} characters"),
                format!("at most {LONGEST_POLICY} characters"),
                "create it again with a shorter name: v3 adds the prefix `knp.default.` and refuses it, so the policy restricts \
                 nothing",
            ),
            Self::Selector(written) => Finding::new(
                "spec",
                format!("the selector {written:?} in v3"),
                "no quotation mark in its values",
                "correct it: v3 refuses this policy, so the policy restricts nothing",
            ),
            Self::Size(bytes) => Finding::new(
                "",
                format!("up to {bytes} bytes in v3"),
                format!("at most {ETCD_LIMIT} bytes, the limit of etcd"),
                "split it: v3 has each peer of a rule once for each port",
            ),
        }
    }
}

/// An object that the controllers convert, with its flaw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// UID: a later object of the same name is another one.
    pub uid: String,
    /// The object.
    pub origin: Origin,
    /// Reason why v3 cannot have it; `None` when v3 can.
    pub flaw: Option<Flaw>,
}

/// Peers and number of ports of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleShape {
    /// The peers.
    pub peers: Vec<Peer>,
    /// Number of ports.
    pub ports: usize,
}

/// A peer of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Selectors of the peer.
    pub selectors: Vec<Selector>,
    /// Networks of the peer, with excluded ones.
    pub networks: Vec<String>,
}

/// The parts of a policy, besides its name, that decide whether v3 accepts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyShape {
    /// Selector of the pods of the policy.
    pub selector: Selector,
    /// Rules of both directions.
    pub rules: Vec<RuleShape>,
}

impl Source {
    /// The source for a Namespace with these labels.
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

    /// The source for a policy.
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

    /// Whether v3 has to have this object before it is opened. Objects that v3 cannot have are not waited for, except the profile
    /// of a system namespace: without it DNS fails, and no tenant can have written its labels.
    pub(super) fn is_needed(&self, system: &[&str]) -> bool {
        match (&self.flaw, &self.origin) {
            (None, _) => true,
            (Some(_), Origin::Namespace(name)) => Owner::of(Some(name), system) == Owner::Cluster,
            (Some(_), Origin::Policy(_)) => false,
        }
    }
}

/// Whether a label with this key prevents the profile of its Namespace: the controllers of v3 add the prefix `pcns.`
/// (libcalico-go, `NamespaceToProfile`), and keys in v3 have the same limit as in Kubernetes. In v2, each label was a key in
/// etcd.
fn is_too_long(label: &str) -> bool {
    !is_qualified_name(&format!("pcns.{label}"))
}

fn too_large(bytes: usize) -> Option<Flaw> {
    (bytes > ETCD_LIMIT).then_some(Flaw::Size(bytes))
}

/// The largest size of a policy in v3, in bytes: before v3.11, each peer with each port was a rule of its own.
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

/// Warnings about objects that v3 cannot have, while Calico is paused: the subject and the text of each.
pub fn warnings<'sources>(
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
        let part = if part.is_empty() { "the object" } else { part };
        let (kind, name) = (source.origin.kind(), source.origin.name());
        let words = format!(
            "{kind} {name}: v3 {has} have this object, and {is} opened without it: {part} is {found}, needed {needed}; {fix}"
        );
        Some((format!("namespace {}", source.origin.namespace()), words))
    })
}

#[cfg(test)]
mod tests;
