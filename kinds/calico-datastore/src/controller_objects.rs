//! Objects that are not converted, because Calico's controllers write them to v3: profiles of namespaces and policies of
//! Kubernetes.
//!
//! Until these objects exist, v3 is incomplete. Felix of v3 drops every new connection of an endpoint whose profile is missing
//! ("local endpoints refer to missing or invalid profile, profile's rules replaced with drop rules", v3.31), and a missing policy
//! has no effect. Calico's controllers write these objects whether v3 is open or not.

use std::collections::BTreeSet;
use std::fmt;

use super::escape::unescaped;
use super::names;
use super::policy_name::OF_KUBERNETES;
pub use super::policy_name::PolicyName;
use super::sources::{Origin, Source};
use super::v2::Tree;
use super::{policy, profile};
use calico::etcd::Layout;
use engine::check::names as first;

/// Prefix of profiles of namespaces in v3.
const OF_NAMESPACE: &str = "kns.";

/// Directories of v2 with these objects.
pub const DIRECTORIES: [&str; 2] = [profile::DIRECTORY, policy::DIRECTORY];

/// Objects that the controllers write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerObjects {
    /// Profiles, by their names in v3: `kns.default`.
    pub profiles: BTreeSet<String>,
    /// Policies of Kubernetes.
    pub policies: BTreeSet<PolicyName>,
}

impl ControllerObjects {
    /// Objects that the conversion of this store does not write. A tree of [`DIRECTORIES`] is sufficient.
    pub fn of(tree: &Tree) -> Self {
        let profiles = tree
            .matching(&format!("{}/*/*", profile::DIRECTORY))
            .into_iter()
            .map(|entry| unescaped(entry.parts[0]))
            .filter(|name| name.starts_with(profile::OF_NAMESPACE))
            .map(|name| names::profile(&name))
            .collect();
        let policies = tree
            .matching(&format!("{}/*", policy::DIRECTORY))
            .into_iter()
            .filter_map(|entry| PolicyName::of_v2(&unescaped(entry.parts[0])))
            .collect();
        Self { profiles, policies }
    }

    /// Prefixes of the keys of these objects in v3.
    pub fn prefixes() -> [String; 2] {
        [
            Layout::Resources("Profile", "profiles").prefix(),
            Layout::Resources("NetworkPolicy", "networkpolicies").prefix(),
        ]
    }

    /// The objects that are not among these keys of v3.
    #[must_use]
    pub fn missing<'keys>(mut self, keys: impl IntoIterator<Item = &'keys str>) -> Self {
        for existing in keys.into_iter().filter_map(Existing::of_key) {
            match existing {
                Existing::Profile(name) => self.profiles.remove(name),
                Existing::Policy(name) => self.policies.remove(&name),
            };
        }
        self
    }

    /// Objects that the controllers write for these sources in the cluster. Sources that were deleted since v2 was written are
    /// missing, and newer ones are included.
    pub fn of_sources<'sources>(sources: impl IntoIterator<Item = &'sources Source>) -> Self {
        let mut made = Self::default();
        for source in sources {
            match &source.origin {
                Origin::Namespace(namespace) => made.profiles.insert(profile_of(namespace)),
                Origin::Policy(policy) => made.policies.insert(policy.clone()),
            };
        }
        made
    }

    /// Whether there are objects of the kind that the controllers write for this source.
    pub fn contains_kind(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Namespace(_) => !self.profiles.is_empty(),
            Origin::Policy(_) => !self.policies.is_empty(),
        }
    }

    /// Whether the object that the controllers write for this source is included.
    pub fn contains(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Namespace(namespace) => self.profiles.contains(&profile_of(namespace)),
            Origin::Policy(policy) => self.policies.contains(policy),
        }
    }

    /// Whether the controllers write this key of v3, and the conversion does not.
    pub fn is_key(key: &str) -> bool {
        Existing::of_key(key).is_some()
    }

    /// Whether there are no such objects.
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty() && self.policies.is_empty()
    }
}

/// The name of the profile of a namespace in v3.
fn profile_of(namespace: &str) -> String {
    format!("{OF_NAMESPACE}{namespace}")
}

/// An object of the controllers that exists in v3.
enum Existing<'key> {
    Profile(&'key str),
    Policy(PolicyName),
}

impl<'key> Existing<'key> {
    /// The object with this key of v3; `None` when the controllers do not write this key.
    fn of_key(key: &'key str) -> Option<Self> {
        let [profiles, policies] = ControllerObjects::prefixes();
        if let Some(name) = key.strip_prefix(&profiles) {
            return name.starts_with(OF_NAMESPACE).then_some(Self::Profile(name));
        }
        let (namespace, name) = key.strip_prefix(&policies)?.split_once('/')?;
        Some(Self::Policy(PolicyName {
            namespace: namespace.to_owned(),
            name: name.strip_prefix(OF_KUBERNETES)?.to_owned(),
        }))
    }
}

/// `2 profiles (kns.a, kns.b), 1 policy of Kubernetes (default/web)`.
impl fmt::Display for ControllerObjects {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profiles: Vec<String> = self.profiles.iter().cloned().collect();
        let policies: Vec<String> = self.policies.iter().map(PolicyName::key).collect();
        let words = |one: &str, many: &str, names: &[String]| {
            let kind = if names.len() == 1 { one } else { many };
            format!("{} {kind} ({})", names.len(), first(names))
        };
        let mut parts = Vec::new();
        if !profiles.is_empty() {
            parts.push(words("profile", "profiles", &profiles));
        }
        if !policies.is_empty() {
            parts.push(words("policy of Kubernetes", "policies of Kubernetes", &policies));
        }
        formatter.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn left() -> ControllerObjects {
        let keys = [
            "/calico/v1/policy/profile/k8s_ns.default/rules",
            "/calico/v1/policy/profile/k8s_ns.default/labels",
            "/calico/v1/policy/profile/k8s_ns.team-a/rules",
            "/calico/v1/policy/profile/openstack-sg-1/rules",
            "/calico/v1/policy/profile/mine/rules",
            "/calico/v1/policy/tier/default/policy/knp.default.team-a.web.example",
            "/calico/v1/policy/tier/default/policy/knp.default.default.deny",
            "/calico/v1/policy/tier/default/policy/mine",
        ];
        let values: BTreeMap<String, String> = keys.map(|key| (key.to_owned(), "{}".to_owned())).into();
        ControllerObjects::of(&Tree::of(values))
    }

    #[test]
    fn profiles_of_namespaces_and_policies_of_kubernetes_remain() {
        assert_eq!(
            left().to_string(),
            "2 profiles (kns.default, kns.team-a), 2 policies of Kubernetes (default/deny, team-a/web.example)"
        );
    }

    #[test]
    fn an_object_in_v3_is_not_missing() {
        let directory = "/calico/resources/v3/projectcalico.org";
        let keys = [
            "profiles/kns.default",
            "profiles/ksa.default.default",
            "networkpolicies/team-a/knp.default.web.example",
            // A policy of another namespace, and one that is not a policy of Kubernetes.
            "networkpolicies/other/knp.default.deny",
            "networkpolicies/default/deny",
        ]
        .map(|rest| format!("{directory}/{rest}"));
        let missing = left().missing(keys.iter().map(String::as_str));
        assert_eq!(
            missing.to_string(),
            "1 profile (kns.team-a), 1 policy of Kubernetes (default/deny)"
        );
        let keys = ["profiles/kns.team-a", "networkpolicies/default/knp.default.deny"]
            .map(|rest| format!("{directory}/{rest}"));
        assert!(missing.missing(keys.iter().map(String::as_str)).is_empty());
    }

    #[test]
    fn keys_of_the_controllers_are_recognized() {
        let of =
            |rest: &str| ControllerObjects::is_key(&format!("/calico/resources/v3/projectcalico.org/{rest}"));
        assert!(of("profiles/kns.default"));
        assert!(of("networkpolicies/default/knp.default.deny"));
        for rest in [
            "profiles/mine",
            "profiles/ksa.default.default",
            "networkpolicies/default/default.mine",
            "globalnetworkpolicies/knp.default.deny",
            "ippools/kns.default",
        ] {
            assert!(!of(rest), "{rest}");
        }
    }

    #[test]
    fn sources_in_the_cluster_give_the_objects_of_the_controllers() {
        let policy = PolicyName {
            namespace: "default".to_owned(),
            name: "deny".to_owned(),
        };
        let origins = [
            Origin::Namespace("default".to_owned()),
            Origin::Namespace("new".to_owned()),
            Origin::Policy(policy),
        ];
        let sources = origins.clone().map(|origin| Source {
            uid: origin.name(),
            origin,
            flaw: None,
        });
        let made = ControllerObjects::of_sources(&sources);
        assert_eq!(
            made.to_string(),
            "2 profiles (kns.default, kns.new), 1 policy of Kubernetes (default/deny)"
        );
        for origin in &origins {
            assert!(
                made.contains(origin) && left().contains_kind(origin),
                "{origin:?}"
            );
            assert!(!ControllerObjects::default().contains_kind(origin), "{origin:?}");
        }
        assert!(left().contains(&origins[0]) && !left().contains(&origins[1]));
    }

    #[test]
    fn a_long_list_names_the_first_ten() {
        let left = ControllerObjects {
            profiles: (10..22).map(|number| format!("kns.{number}")).collect(),
            policies: BTreeSet::new(),
        };
        assert_eq!(
            left.to_string(),
            "12 profiles (kns.10, kns.11, kns.12, kns.13, kns.14, kns.15, kns.16, kns.17, kns.18, kns.19 and 2 more)"
        );
    }
}
