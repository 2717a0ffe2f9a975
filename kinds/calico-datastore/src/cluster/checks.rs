//! Every prerequisite as a check on facts of the cluster and of both stores.

mod calico;
mod cluster;
mod controllers;
mod stores;

use super::facts::ClusterFacts;
use super::settings::Settings;
use engine::check::{Check, Permission, Verdict, access, policies};

/// What the user said, as far as a check depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckPolicy {
    /// Whether nobody watches traffic (`gates.traffic: Ignore`).
    pub is_unwatched: bool,
    /// Fields of `rollout` that say something which this kind does not do.
    pub without_effect: Vec<&'static str>,
    /// How many nodes change at the same time.
    pub at_once: usize,
}

/// Name of a prerequisite: a metric label and an anchor in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckName {
    /// The policies that bound coordinator and agents are installed and bound.
    AdmissionPolicies,
    /// calico-node runs on every node, of one version.
    CalicoNode,
    /// Calico's controllers are known.
    KubeControllers,
    /// Both stores can be reached.
    DatastoreAccess,
    /// Everything in v2 can be converted.
    DatastoreConversion,
    /// v2 is what Calico works with, and v3 is empty.
    DatastoreState,
    /// kops, or somebody else, writes Calico's objects.
    DatastoreOwners,
    /// Every object was understood.
    MalformedObjects,
    /// The manifest of v3 is understood, and the API server would take it.
    Manifest,
    /// What the manifest needs is in the cluster.
    ManifestObjects,
    /// Every node is there.
    NodesReady,
    /// Every node can change before the pause has to end.
    PauseLimit,
    /// The API server lets the coordinator do all that it has to.
    Permissions,
    /// Pods that have no network before.
    PendingPods,
    /// How nodes go, one after the other.
    RolloutRules,
    /// Traffic is watched.
    TrafficGate,
    /// Versions of Kubernetes, Calico and etcd.
    Versions,
    /// Webhooks without whose answer no pod is made.
    Webhooks,
}

impl CheckName {
    /// Every name.
    pub const ALL: [Self; 18] = [
        Self::AdmissionPolicies,
        Self::CalicoNode,
        Self::KubeControllers,
        Self::DatastoreAccess,
        Self::DatastoreConversion,
        Self::DatastoreState,
        Self::DatastoreOwners,
        Self::MalformedObjects,
        Self::Manifest,
        Self::ManifestObjects,
        Self::NodesReady,
        Self::PauseLimit,
        Self::Permissions,
        Self::PendingPods,
        Self::RolloutRules,
        Self::TrafficGate,
        Self::Versions,
        Self::Webhooks,
    ];

    /// The name as it stands in status, metrics and the runbook.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AdmissionPolicies => "AdmissionPolicies",
            Self::CalicoNode => "CalicoNode",
            Self::KubeControllers => "KubeControllers",
            Self::DatastoreAccess => "DatastoreAccess",
            Self::DatastoreConversion => "DatastoreConversion",
            Self::DatastoreState => "DatastoreState",
            Self::DatastoreOwners => "DatastoreOwners",
            Self::MalformedObjects => "MalformedObjects",
            Self::Manifest => "Manifest",
            Self::ManifestObjects => "ManifestObjects",
            Self::NodesReady => "NodesReady",
            Self::PauseLimit => "PauseLimit",
            Self::Permissions => "Permissions",
            Self::PendingPods => "PendingPods",
            Self::RolloutRules => "RolloutRules",
            Self::TrafficGate => "TrafficGate",
            Self::Versions => "Versions",
            Self::Webhooks => "Webhooks",
        }
    }

    /// A check of this name that does not plainly hold.
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

impl From<CheckName> for &'static str {
    fn from(name: CheckName) -> Self {
        name.as_str()
    }
}

/// What the coordinator must be allowed to do everywhere.
pub const PERMISSIONS: [Permission; 3] = [
    Permission::new("create", "", "pods", "eviction"),
    // What calico-kube-controllers of v3 has to write before v3 is opened.
    Permission::new("list", "", "namespaces", ""),
    Permission::new("list", "networking.k8s.io", "networkpolicies", ""),
];

/// And in its own namespace. Whether it may write Calico's objects is seen when it asks to, without effect: those it may write by name.
pub const PERMISSIONS_AT_HOME: [Permission; 1] = [Permission::new("create", "", "secrets", "")];

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
            &[&PERMISSIONS[..], &PERMISSIONS_AT_HOME].concat(),
            &facts.permissions,
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
