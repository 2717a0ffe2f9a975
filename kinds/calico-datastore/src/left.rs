//! What the conversion leaves to Calico's controllers, who make it anew for v3: profiles of namespaces, policies of Kubernetes.
//!
//! Until that is there v3 is not whole, however much of it was read again. Felix of v3 drops every new connection of an endpoint whose
//! profile is missing ("local endpoints refer to missing or invalid profile, profile's rules replaced with drop rules", v3.31), and nobody
//! keeps a policy that is missing. Calico's controllers write it whether v3 is open or not.

use std::collections::BTreeSet;
use std::fmt;

use super::escape::unescaped;
use super::names;
use super::sources::{Origin, Source};
use super::v2::Tree;
use super::validate::text::LONGEST_NAME;
use super::{policy, profile};
use calico::etcd::Layout;
use engine::check::names as first;

/// What profiles of Kubernetes' namespaces begin with in v3.
const OF_NAMESPACE: &str = "kns.";

/// The longest name of a policy of Kubernetes that v3 takes.
pub(super) const LONGEST_POLICY: usize = LONGEST_NAME - policy::OF_KUBERNETES.len();

/// Directories of v2 in which it stands.
pub const DIRECTORIES: [&str; 2] = [profile::DIRECTORY, policy::DIRECTORY];

/// A policy of Kubernetes, as Calico names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyName {
    /// Its namespace.
    pub namespace: String,
    /// Its name in Kubernetes.
    pub name: String,
}

impl PolicyName {
    /// Of the name that it has in v2: `knp.default.`, its namespace, a dot, and its name.
    pub(super) fn of_v2(name: &str) -> Option<Self> {
        // No namespace has a dot in its name.
        let (namespace, name) = name.strip_prefix(policy::OF_KUBERNETES)?.split_once('.')?;
        Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Whether v3 cannot have it: it puts `knp.default.` before the name, and refuses what is longer than a name of Kubernetes (libcalico-go,
    /// `validateObjectMeta`).
    pub fn is_too_long(&self) -> bool {
        self.name.len() > LONGEST_POLICY
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// What is left to the controllers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Profiles, by their names in v3: `kns.default`.
    pub profiles: BTreeSet<String>,
    /// Policies of Kubernetes.
    pub policies: BTreeSet<PolicyName>,
}

impl Left {
    /// What the conversion of this store leaves. A tree of [`DIRECTORIES`] alone will do.
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

    /// Prefixes of the keys in v3 that say what of it is there.
    pub fn prefixes() -> [String; 2] {
        [
            Layout::Resources("Profile", "profiles").prefix(),
            Layout::Resources("NetworkPolicy", "networkpolicies").prefix(),
        ]
    }

    /// What of it is not among these keys of v3.
    #[must_use]
    pub fn missing<'keys>(mut self, keys: impl IntoIterator<Item = &'keys str>) -> Self {
        for made in keys.into_iter().filter_map(Made::by) {
            match made {
                Made::Profile(name) => self.profiles.remove(name),
                Made::Policy(name) => self.policies.remove(&name),
            };
        }
        self
    }

    /// What the controllers make of these objects of the cluster, which are of kinds that v2 has: what somebody has deleted since those of v2
    /// wrote they do not make again, and what has come since they make, too.
    pub fn made_of<'sources>(sources: impl IntoIterator<Item = &'sources Source>) -> Self {
        let mut made = Self::default();
        for source in sources {
            match &source.origin {
                Origin::Namespace(namespace) => made.profiles.insert(profile_of(namespace)),
                Origin::Policy(policy) => made.policies.insert(policy.clone()),
            };
        }
        made
    }

    /// Whether there is anything of the kind that the controllers make of this.
    pub fn has_kind(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Namespace(_) => !self.profiles.is_empty(),
            Origin::Policy(_) => !self.policies.is_empty(),
        }
    }

    /// Whether what the controllers make of this is among it.
    pub fn has(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Namespace(namespace) => self.profiles.contains(&profile_of(namespace)),
            Origin::Policy(policy) => self.policies.contains(policy),
        }
    }

    /// Whether a key of v3 is one that the controllers make, and no conversion.
    pub fn is_key(key: &str) -> bool {
        Made::by(key).is_some()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty() && self.policies.is_empty()
    }
}

/// The name of a namespace's profile in v3.
fn profile_of(namespace: &str) -> String {
    format!("{OF_NAMESPACE}{namespace}")
}

/// What the controllers have made.
enum Made<'key> {
    Profile(&'key str),
    Policy(PolicyName),
}

impl<'key> Made<'key> {
    /// What this key of v3 is of it.
    fn by(key: &'key str) -> Option<Self> {
        let [profiles, policies] = Left::prefixes();
        if let Some(name) = key.strip_prefix(&profiles) {
            return name.starts_with(OF_NAMESPACE).then_some(Self::Profile(name));
        }
        let (namespace, name) = key.strip_prefix(&policies)?.split_once('/')?;
        Some(Self::Policy(PolicyName {
            namespace: namespace.to_owned(),
            name: name.strip_prefix(policy::OF_KUBERNETES)?.to_owned(),
        }))
    }
}

/// `2 profiles (kns.a, kns.b), 1 policy of Kubernetes (default/web)`.
impl fmt::Display for Left {
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

    fn left() -> Left {
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
        Left::of(&Tree::of(values))
    }

    #[test]
    fn it_is_what_the_conversion_does_not_write() {
        assert_eq!(
            left().to_string(),
            "2 profiles (kns.default, kns.team-a), 2 policies of Kubernetes (default/deny, team-a/web.example)"
        );
    }

    #[test]
    fn what_is_in_v3_is_not_missing() {
        let directory = "/calico/resources/v3/projectcalico.org";
        let keys = [
            "profiles/kns.default",
            "profiles/ksa.default.default",
            "networkpolicies/team-a/knp.default.web.example",
            // Of another namespace, and one that is no policy of Kubernetes.
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
    fn what_only_controllers_write() {
        let of = |rest: &str| Left::is_key(&format!("/calico/resources/v3/projectcalico.org/{rest}"));
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
    fn what_the_cluster_has_is_made_anew() {
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
        let made = Left::made_of(&sources);
        assert_eq!(
            made.to_string(),
            "2 profiles (kns.default, kns.new), 1 policy of Kubernetes (default/deny)"
        );
        for origin in &origins {
            assert!(made.has(origin) && left().has_kind(origin), "{origin:?}");
            assert!(!Left::default().has_kind(origin), "{origin:?}");
        }
        assert!(left().has(&origins[0]) && !left().has(&origins[1]));
    }

    #[test]
    fn of_many_the_first_are_named() {
        let left = Left {
            profiles: (10..22).map(|number| format!("kns.{number}")).collect(),
            policies: BTreeSet::new(),
        };
        assert_eq!(
            left.to_string(),
            "12 profiles (kns.10, kns.11, kns.12, kns.13, kns.14, kns.15, kns.16, kns.17, kns.18, kns.19 and 2 more)"
        );
    }
}
