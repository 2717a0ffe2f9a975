//! Checks every prerequisite, from facts of the cluster and of both stores.

mod calico;
mod cluster;
mod controllers;
mod stores;

use strum::{IntoStaticStr, VariantArray};

use super::facts::ClusterFacts;
use super::settings::Settings;
use engine::check::{Check, Permission, Verdict, access, policies};

/// Fields of the spec that checks depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckPolicy {
    /// Whether traffic is not watched (`gates.traffic: Ignore`).
    pub is_unwatched: bool,
    /// Number of nodes that change at the same time.
    pub max_unavailable: usize,
}

/// Name of a prerequisite: a metric label and an anchor in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
pub enum CheckName {
    /// The admission policies for coordinator and agents are installed and bound.
    AdmissionPolicies,
    /// calico-node runs on every node in one version.
    CalicoNode,
    /// Calico's controllers are known.
    KubeControllers,
    /// Both stores can be reached.
    DatastoreAccess,
    /// All data in v2 can be converted.
    DatastoreConversion,
    /// Calico works with v2, and v3 is empty.
    DatastoreState,
    /// No other program, such as kops, writes Calico's objects.
    DatastoreOwners,
    /// Every object was understood.
    MalformedObjects,
    /// The manifest of v3 is valid and fits the cluster.
    Manifest,
    /// The other objects of the manifest are in the cluster, and the API server accepts the writes of the migration.
    ManifestObjects,
    /// Every node is Ready.
    NodesReady,
    /// Every node can change before the pause has to end.
    PauseLimit,
    /// The coordinator has all permissions that it needs.
    Permissions,
    /// Pods that have no network before the migration.
    PendingPods,
    /// Traffic is watched.
    TrafficGate,
    /// Versions of Kubernetes, Calico and etcd.
    Versions,
    /// Webhooks that every new pod depends on.
    Webhooks,
}

impl CheckName {
    /// Every name.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name in status, metrics and the runbook.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// A check of this name that did not pass.
    pub(super) fn not_pass(
        self,
        verdict: Verdict,
        object: impl Into<String>,
        found: impl Into<String>,
        needed: impl Into<String>,
        fix: impl Into<String>,
    ) -> Check {
        Check::not_pass(self.as_str(), verdict, object, found, needed, fix)
    }

    fn pass(self, object: impl Into<String>, found: impl Into<String>) -> Check {
        Check::pass(self.as_str(), object, found)
    }
}

/// Permissions that the coordinator needs in all namespaces.
pub const PERMISSIONS: [Permission; 3] = [
    Permission::new("create", "", "pods", "eviction"),
    // Sources of the objects that calico-kube-controllers of v3 has to write before v3 is opened.
    Permission::new("list", "", "namespaces", ""),
    Permission::new("list", "networking.k8s.io", "networkpolicies", ""),
];

/// Permissions that the coordinator needs in its own namespace. Permissions on Calico's objects are by name; dry-run requests
/// test them.
pub const OWN_NAMESPACE_PERMISSIONS: [Permission; 1] = [Permission::new("create", "", "secrets", "")];

/// Judges every prerequisite.
pub fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    [
        access::malformed(
            CheckName::MalformedObjects,
            &facts.malformed,
            facts.nodes.values(),
            [],
        ),
        access::permissions(
            CheckName::Permissions,
            &[&PERMISSIONS[..], &OWN_NAMESPACE_PERMISSIONS].concat(),
            &facts.permissions,
            "deploy/base and deploy/calico-datastore",
        ),
        policies::policies(CheckName::AdmissionPolicies, &facts.policies),
        calico::check(settings, facts),
        cluster::check(settings, facts, policy),
        stores::check(settings, facts),
    ]
    .concat()
}

#[cfg(test)]
pub(super) mod fixture;
#[cfg(test)]
mod tests;
