//! Identity and path of objects.

use serde_json::Value;

use super::error::SnapshotError;

/// Collections of every cluster, which are lists even without objects.
pub const SERVED: [&str; 26] = [
    "/api/v1/configmaps",
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/pods",
    "/api/v1/services",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/networking.k8s.io/v1/ingresses",
    "/apis/networking.k8s.io/v1/ipaddresses",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/networking.k8s.io/v1/servicecidrs",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/replumb.dev/v1alpha1/connectionsamples",
    "/apis/replumb.dev/v1alpha1/migrationrecords",
    "/apis/replumb.dev/v1alpha1/migrations",
    "/apis/replumb.dev/v1alpha1/nodemigrations",
    "/api/v1/resourcequotas",
    "/apis/apiregistration.k8s.io/v1/apiservices",
];

/// What tells an object from every other one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Group and version as in `apiVersion`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// The namespace, for objects that have one.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl Identity {
    /// The identity of an object.
    ///
    /// # Errors
    ///
    /// The object has no kind, version or name, or is a Secret.
    pub fn of(object: &Value) -> Result<Self, SnapshotError> {
        let text = |value: &Value, problem: &'static str| {
            value
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
                .ok_or_else(|| SnapshotError::Object {
                    problem,
                    object: object.to_string().chars().take(120).collect(),
                })
        };
        let identity = Self {
            api_version: text(&object["apiVersion"], "no apiVersion")?,
            kind: text(&object["kind"], "no kind")?,
            namespace: object["metadata"]["namespace"].as_str().map(str::to_owned),
            name: text(&object["metadata"]["name"], "no metadata.name")?,
        };
        if identity.kind == "Secret" {
            return Err(SnapshotError::Confidential {
                object: format!(
                    "Secret {}/{}",
                    identity.namespace.unwrap_or_default(),
                    identity.name
                ),
            });
        }
        Ok(identity)
    }

    /// The identity of an object of a built-in kind.
    pub fn built_in(api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Self {
        Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        }
    }

    /// The path of the collection of all namespaces.
    pub fn collection(&self) -> String {
        format!("{}/{}", discovery_path(&self.api_version), plural(&self.kind))
    }

    /// The path of the object.
    pub fn path(&self) -> String {
        let version = discovery_path(&self.api_version);
        let (plural, name) = (plural(&self.kind), &self.name);
        match &self.namespace {
            Some(namespace) => format!("{version}/namespaces/{namespace}/{plural}/{name}"),
            None => format!("{version}/{plural}/{name}"),
        }
    }
}

/// The path of a group and version.
pub fn discovery_path(api_version: &str) -> String {
    if api_version.contains('/') {
        format!("/apis/{api_version}")
    } else {
        format!("/api/{api_version}")
    }
}

/// The plural of a kind, as Kubernetes and Calico form it.
fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    if let Some(stem) = lower
        .strip_suffix('y')
        .filter(|stem| !stem.ends_with(['a', 'e', 'o']))
    {
        format!("{stem}ies")
    } else if lower == "endpoints" {
        lower
    } else if lower.ends_with('s') {
        format!("{lower}es")
    } else {
        format!("{lower}s")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("v1", "Node", None, "/api/v1/nodes/a")]
    #[case(
        "networking.k8s.io/v1",
        "IPAddress",
        None,
        "/apis/networking.k8s.io/v1/ipaddresses/a"
    )]
    #[case(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        Some("b"),
        "/apis/networking.k8s.io/v1/namespaces/b/networkpolicies/a"
    )]
    #[case(
        "crd.projectcalico.org/v1",
        "BlockAffinity",
        None,
        "/apis/crd.projectcalico.org/v1/blockaffinities/a"
    )]
    #[case(
        "crd.projectcalico.org/v1",
        "IPPool",
        None,
        "/apis/crd.projectcalico.org/v1/ippools/a"
    )]
    #[case("v1", "Endpoints", Some("b"), "/api/v1/namespaces/b/endpoints/a")]
    fn paths(#[case] version: &str, #[case] kind: &str, #[case] namespace: Option<&str>, #[case] path: &str) {
        let object = json!({
            "apiVersion": version, "kind": kind, "metadata": { "name": "a", "namespace": namespace },
        });
        assert_eq!(Identity::of(&object).unwrap().path(), path);
    }

    #[test]
    fn a_secret_is_refused_by_name() {
        let secret =
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "a", "namespace": "b" } });
        assert_eq!(
            Identity::of(&secret).unwrap_err().to_string(),
            "objects: Secret b/a must not be in a snapshot: omit it"
        );
    }
}
