//! Names of the objects that a verdict names.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// A kind of policy.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
pub enum ObjectKind {
    /// `NetworkPolicy` of `networking.k8s.io/v1`.
    NetworkPolicy,
    /// `AdminNetworkPolicy` of `policy.networking.k8s.io/v1alpha1`.
    AdminNetworkPolicy,
    /// `BaselineAdminNetworkPolicy` of `policy.networking.k8s.io/v1alpha1`.
    BaselineAdminNetworkPolicy,
    /// `ClusterNetworkPolicy` of `policy.networking.k8s.io/v1alpha2`.
    ClusterNetworkPolicy,
    /// `NetworkPolicy` of `crd.projectcalico.org/v1`.
    #[strum(serialize = "Calico NetworkPolicy")]
    CalicoNetworkPolicy,
    /// `GlobalNetworkPolicy` of `crd.projectcalico.org/v1`.
    GlobalNetworkPolicy,
}

impl ObjectKind {
    /// The name of the kind. Calico's `NetworkPolicy` has the prefix `Calico`, because Kubernetes has a kind of that name.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The name of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    /// The kind.
    pub kind: ObjectKind,
    /// The namespace; `None` for a kind of the cluster.
    pub namespace: Option<Arc<str>>,
    /// The name in the namespace.
    pub name: Arc<str>,
}

impl fmt::Display for ObjectName {
    /// The kind and the name, such as `NetworkPolicy shop/db`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ", self.kind.as_str())?;
        if let Some(namespace) = &self.namespace {
            write!(out, "{namespace}/")?;
        }
        out.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_shows_kind_and_namespace() {
        let name = |kind, namespace: Option<&str>| ObjectName {
            kind,
            namespace: namespace.map(Arc::from),
            name: Arc::from("db"),
        };
        let kinds = ObjectKind::VARIANTS.iter().map(|kind| kind.as_str());
        assert_eq!(
            kinds.collect::<std::collections::BTreeSet<_>>().len(),
            ObjectKind::VARIANTS.len()
        );
        assert_eq!(
            name(ObjectKind::NetworkPolicy, Some("shop")).to_string(),
            "NetworkPolicy shop/db"
        );
        assert_eq!(
            name(ObjectKind::CalicoNetworkPolicy, Some("shop")).to_string(),
            "Calico NetworkPolicy shop/db"
        );
        assert_eq!(
            name(ObjectKind::GlobalNetworkPolicy, None).to_string(),
            "GlobalNetworkPolicy db"
        );
    }
}
