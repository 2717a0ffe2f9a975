//! Whose an object is: what is the cluster's a migration waits for, and what is a tenant's holds nothing of others.

/// The namespace of what runs the cluster: name servers, API servers and controller managers.
pub const KUBE_SYSTEM: &str = "kube-system";

/// Whose an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The cluster's: it is in no namespace, or in one that only the cluster's operators write to.
    Cluster,
    /// A tenant's, who writes to this namespace.
    Tenant(String),
}

impl Owner {
    /// Whose an object of this namespace is; `None` where it is in no namespace. `system` are namespaces that are the cluster's, too: the
    /// one of replumb, and the one of the network.
    pub fn of(namespace: Option<&str>, system: &[&str]) -> Self {
        match namespace {
            Some(namespace) if namespace != KUBE_SYSTEM && !system.contains(&namespace) => {
                Self::Tenant(namespace.to_owned())
            }
            Some(_) | None => Self::Cluster,
        }
    }

    /// The namespace of the tenant; `None` where it is the cluster's.
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
    #[case::of_ours(Some("replumb-system"), None)]
    #[case::of_a_tenant(Some("shop"), Some("shop"))]
    #[case::with_a_name_that_only_begins_like_it(Some("kube-system-2"), Some("kube-system-2"))]
    fn whose_an_object_is(#[case] namespace: Option<&str>, #[case] tenant: Option<&str>) {
        assert_eq!(Owner::of(namespace, &["replumb-system"]).tenant(), tenant);
    }
}
