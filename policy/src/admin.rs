//! Policies of administrators, evaluated as Calico does, and Calico's own policies, which are not evaluated.
//!
//! v3.29 reads `AdminNetworkPolicy`, v3.30 and v3.31 also `BaselineAdminNetworkPolicy`. v3.32 reads `ClusterNetworkPolicy` alone:
//! older objects lose their effect. Staged policies of Calico are never enforced, and are no [`AdminPolicy`].

mod read;

use std::cmp::Ordering;

use engine::labels::Labels;

use crate::certainty::Match;
use crate::name::{ObjectKind, ObjectName};
use crate::pod::Pod;
use crate::rules::Rule;
use crate::selector::Selector;
use crate::settings::Version;
use crate::verdict::{Direction, UnknownReason};

/// A policy of an administrator, or one of Calico's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminPolicy {
    /// Its kind and name.
    pub object: ObjectName,
    /// What is known of it.
    pub content: Content,
}

/// What is known of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Everything.
    Rules(TierRules),
    /// Only that it may refuse or allow connections of these directions, of pods in its namespace, or of every pod.
    Opaque(Vec<Direction>),
}

/// Rules of a policy in a tier before or after the policies of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierRules {
    /// The tier.
    pub tier: Tier,
    /// The place in the tier: a lower number is evaluated first.
    pub priority: i64,
    /// Namespaces of the pods.
    pub namespaces: Selector,
    /// The pods in them.
    pub pods: Selector,
    /// Rules for connections to the pods, in their order.
    pub ingress: Box<[AdminRule]>,
    /// Rules for connections from the pods, in their order.
    pub egress: Box<[AdminRule]>,
}

/// A tier of policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Before the policies of Kubernetes.
    Admin,
    /// After them, for pods that none of them isolates.
    Baseline,
}

/// A rule with its action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminRule {
    /// The action.
    pub action: Action,
    /// What it applies to.
    pub rule: Rule,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The connection is allowed in this direction.
    Allow,
    /// The connection is refused.
    Deny,
    /// The next tier decides.
    Pass,
}

impl AdminPolicy {
    /// Whether this version of Calico reads policies of this kind.
    pub fn is_read_by(&self, version: Version) -> bool {
        let before_cluster = version < Version::new(3, 32);
        match self.object.kind {
            ObjectKind::AdminNetworkPolicy => version >= Version::new(3, 29) && before_cluster,
            ObjectKind::BaselineAdminNetworkPolicy => version >= Version::new(3, 30) && before_cluster,
            ObjectKind::ClusterNetworkPolicy => !before_cluster,
            ObjectKind::NetworkPolicy | ObjectKind::CalicoNetworkPolicy | ObjectKind::GlobalNetworkPolicy => {
                true
            }
        }
    }

    /// The order in which Calico evaluates policies: by tier, then by priority, then by name.
    pub(crate) fn order(one: &Self, other: &Self) -> Ordering {
        let key = |policy: &Self| match &policy.content {
            Content::Rules(rules) => (Some(rules.tier), rules.priority),
            Content::Opaque(_) => (None, 0),
        };
        key(one)
            .cmp(&key(other))
            .then_with(|| one.object.cmp(&other.object))
    }

    /// Whether the policy has an effect in this direction.
    pub fn has(&self, direction: Direction) -> bool {
        match &self.content {
            Content::Rules(rules) => !rules.rules(direction).is_empty(),
            Content::Opaque(directions) => directions.contains(&direction),
        }
    }

    /// Whether the policy applies to connections of this pod in this direction. `namespace` has the labels of its namespace, if
    /// they are known.
    pub(crate) fn selects(&self, pod: &Pod, namespace: Option<&Labels>, direction: Direction) -> Match {
        if !self.has(direction) {
            return Match::No;
        }
        match &self.content {
            Content::Opaque(_) => {
                let own = self.object.namespace.as_ref();
                let is_own = own.is_none_or(|own| *own == pod.namespace);
                Match::from(is_own).and(|| Match::Unknown(UnknownReason::CalicoPolicy))
            }
            Content::Rules(rules) => rules.pods.matches(&pod.labels).and(|| {
                namespace.map_or(Match::Unknown(UnknownReason::NamespaceMissing), |labels| {
                    rules.namespaces.matches_namespace(&pod.namespace, labels)
                })
            }),
        }
    }
}

impl TierRules {
    /// The rules for a direction, in their order.
    pub fn rules(&self, direction: Direction) -> &[AdminRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

#[cfg(test)]
mod tests;
