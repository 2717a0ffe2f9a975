//! Every prerequisite as a check on cluster facts and host facts.
//!
//! What the migration itself waits for, with its words, is a warning: it can be mended while it runs.

mod api_servers;
mod hosts;
mod pods;
mod quotas;
mod ranges;
mod services;

use super::facts::ClusterFacts;
use super::settings::Settings;
use engine::check::{Check, Permission, Verdict, access, policies};
use engine::drain::Permissions;
use engine::evict::OnBlocked;

/// What the user allows, as far as a check depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckPolicy {
    /// What an eviction may cost.
    pub permissions: Permissions,
    /// What happens when pods do not go.
    pub on_blocked: OnBlocked,
    /// Whether pods that nobody makes again are evicted.
    pub delete_bare_pods: bool,
    /// Whether load balancers keep their addresses.
    pub keep_load_balancers: bool,
    /// Services that go first, as the user wrote them.
    pub order: Vec<String>,
    /// How many Services exchange their addresses at the same time.
    pub services_at_once: usize,
    /// Whether nobody watches traffic (`gates.traffic: Ignore`).
    pub is_unwatched: bool,
}

/// Name of a prerequisite: a metric label and an anchor in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckName {
    /// The policies that bound coordinator and agents are installed and bound.
    AdmissionPolicies,
    /// An agent reports from every node.
    AgentMissing,
    /// Every API server is known, with its range and its certificate.
    ApiServerFlags,
    /// The API has ranges of Services as objects.
    ApiVersion,
    /// Pods that nobody makes again.
    BarePods,
    /// Every `PodDisruptionBudget` yields.
    DisruptionBudgets,
    /// No pod that is started again has data in an emptyDir.
    EmptyDir,
    /// kube-proxy is understood, and works on every node in a way that was measured.
    KubeProxy,
    /// Load balancers keep their addresses.
    LoadBalancers,
    /// Every object was understood.
    MalformedObjects,
    /// Who else says addresses of Services.
    Mentions,
    /// The name servers are understood.
    NameServers,
    /// Coordinator and agents reach the API server by no address that changes.
    OwnPath,
    /// The API server lets the coordinator do all that it has to.
    Permissions,
    /// What pods were told of addresses can be read on every node.
    PodsTold,
    /// Helpers fit into the quotas of every namespace.
    Quotas,
    /// The new ranges are nobody else's.
    Ranges,
    /// The new ranges have room.
    Room,
    /// Every Service can be exchanged.
    Services,
    /// Pods that nobody can evict.
    StaticPods,
    /// Traffic is watched.
    TrafficGate,
}

impl CheckName {
    /// Every name.
    pub const ALL: [Self; 21] = [
        Self::AdmissionPolicies,
        Self::AgentMissing,
        Self::ApiServerFlags,
        Self::ApiVersion,
        Self::BarePods,
        Self::DisruptionBudgets,
        Self::EmptyDir,
        Self::KubeProxy,
        Self::LoadBalancers,
        Self::MalformedObjects,
        Self::Mentions,
        Self::NameServers,
        Self::OwnPath,
        Self::Permissions,
        Self::PodsTold,
        Self::Quotas,
        Self::Ranges,
        Self::Room,
        Self::Services,
        Self::StaticPods,
        Self::TrafficGate,
    ];

    /// The name as it stands in status, metrics and the runbook.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AdmissionPolicies => "AdmissionPolicies",
            Self::AgentMissing => "AgentMissing",
            Self::ApiServerFlags => "ApiServerFlags",
            Self::ApiVersion => "ApiVersion",
            Self::BarePods => "BarePods",
            Self::DisruptionBudgets => "DisruptionBudgets",
            Self::EmptyDir => "EmptyDir",
            Self::KubeProxy => "KubeProxy",
            Self::LoadBalancers => "LoadBalancers",
            Self::MalformedObjects => "MalformedObjects",
            Self::Mentions => "Mentions",
            Self::NameServers => "NameServers",
            Self::OwnPath => "OwnPath",
            Self::Permissions => "Permissions",
            Self::PodsTold => "PodsTold",
            Self::Quotas => "Quotas",
            Self::Ranges => "Ranges",
            Self::Room => "Room",
            Self::Services => "Services",
            Self::StaticPods => "StaticPods",
            Self::TrafficGate => "TrafficGate",
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
}

impl From<CheckName> for &'static str {
    fn from(name: CheckName) -> Self {
        name.as_str()
    }
}

/// Everything that the coordinator must be allowed to do.
pub const PERMISSIONS: [Permission; 11] = [
    Permission::new("watch", "", "services", ""),
    Permission::new("watch", "discovery.k8s.io", "endpointslices", ""),
    Permission::new("create", "", "services", ""),
    Permission::new("patch", "", "services", ""),
    Permission::new("patch", "", "services", "status"),
    Permission::new("delete", "", "services", ""),
    Permission::new("create", "discovery.k8s.io", "endpointslices", ""),
    Permission::new("delete", "discovery.k8s.io", "endpointslices", ""),
    Permission::new("create", "networking.k8s.io", "servicecidrs", ""),
    Permission::new("delete", "networking.k8s.io", "servicecidrs", ""),
    Permission::new("create", "", "pods", "eviction"),
];

/// Judges every prerequisite.
pub fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    [
        access::malformed(
            CheckName::MalformedObjects,
            &facts.malformed,
            facts.nodes.values(),
            &facts.pods,
        ),
        access::permissions(CheckName::Permissions, &PERMISSIONS, &facts.permissions),
        policies::policies(CheckName::AdmissionPolicies, &facts.policies),
        api_servers::check(settings, facts),
        hosts::check(settings, facts),
        pods::check(facts, policy),
        quotas::check(settings, facts, policy),
        ranges::check(settings, facts),
        services::check(settings, facts, policy),
    ]
    .concat()
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
