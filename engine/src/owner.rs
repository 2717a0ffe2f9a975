//! The owner of an object. A migration waits for objects of the cluster; an object of a tenant delays no other tenant.

/// The namespace of the cluster's own programs: name servers, API servers and controller managers.
pub const KUBE_SYSTEM: &str = "kube-system";

/// The owner of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The cluster: the object is in no namespace, or in one that only the cluster's operators write to.
    Cluster,
    /// The tenant that writes to this namespace.
    Tenant(String),
}

impl Owner {
    /// The owner of an object in this namespace; `None` for an object in no namespace. `system` has further namespaces of the
    /// cluster: those of replumb and of the network.
    pub fn of(namespace: Option<&str>, system: &[&str]) -> Self {
        match namespace {
            Some(namespace) if namespace != KUBE_SYSTEM && !system.contains(&namespace) => {
                Self::Tenant(namespace.to_owned())
            }
            Some(_) | None => Self::Cluster,
        }
    }

    /// The namespace of the tenant; `None` for the cluster.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::Cluster => None,
            Self::Tenant(namespace) => Some(namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::of_no_namespace(None, None)]
    #[case::of_the_cluster(Some("kube-system"), None)]
    #[case::of_replumb(Some("replumb-system"), None)]
    #[case::of_a_tenant(Some("shop"), Some("shop"))]
    #[case::of_a_namespace_with_the_same_prefix(Some("kube-system-2"), Some("kube-system-2"))]
    fn the_namespace_decides_the_owner(#[case] namespace: Option<&str>, #[case] tenant: Option<&str>) {
        assert_eq!(Owner::of(namespace, &["replumb-system"]).tenant(), tenant);
    }
}
