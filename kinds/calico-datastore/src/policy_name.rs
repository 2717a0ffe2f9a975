//! Names of policies of Kubernetes in v2 and v3.

use super::validate::text::LONGEST_NAME;

/// Prefix of policies that come from policies of Kubernetes.
pub(super) const OF_KUBERNETES: &str = "knp.default.";

/// The longest name of a policy of Kubernetes that v3 accepts.
pub(super) const LONGEST_POLICY: usize = LONGEST_NAME - OF_KUBERNETES.len();

/// Identity of a policy of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyName {
    /// Namespace of the policy.
    pub namespace: String,
    /// Name of the policy in Kubernetes.
    pub name: String,
}

impl PolicyName {
    /// Parses the name in v2: `knp.default.`, the namespace, a dot, and the name.
    pub(super) fn of_v2(name: &str) -> Option<Self> {
        // No namespace has a dot in its name.
        let (namespace, name) = name.strip_prefix(OF_KUBERNETES)?.split_once('.')?;
        Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Whether the name is too long for v3, which adds the prefix `knp.default.` and refuses names that are longer than those of
    /// Kubernetes (libcalico-go, `validateObjectMeta`).
    pub fn is_too_long(&self) -> bool {
        self.name.len() > LONGEST_POLICY
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
