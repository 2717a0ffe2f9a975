//! Every prerequisite, as a check of cluster facts and host facts.
//!
//! A condition for which the migration itself waits is a warning: the user can correct it later.

mod api_servers;
mod hosts;
mod pods;
mod quotas;
mod ranges;
mod services;

use strum::{IntoStaticStr, VariantArray};

use super::facts::ClusterFacts;
use super::settings::Settings;
use engine::check::{Check, Permission, Verdict, access, policies};
use engine::drain::Permissions;
use engine::evict::OnBlocked;

/// The options of the user on which checks depend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckPolicy {
    /// What an eviction may destroy.
    pub permissions: Permissions,
    /// What happens when pods cannot be evicted.
    pub on_blocked: OnBlocked,
    /// Whether pods without a controller are evicted.
    pub delete_bare_pods: bool,
    /// Whether load balancers keep their addresses.
    pub keep_load_balancers: bool,
    /// Services that move first, in the order of the spec.
    pub order: Vec<String>,
    /// Maximum number of Services that change their addresses at the same time.
    pub services_at_once: usize,
    /// Whether traffic is not watched (`gates.traffic: Ignore`).
    pub is_unwatched: bool,
}

/// Name of a prerequisite: a metric label and an anchor in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
pub enum CheckName {
    /// The admission policies that restrict coordinator and agents are installed and bound.
    AdmissionPolicies,
    /// An agent reports from every node.
    AgentMissing,
    /// Range and certificate of every API server are known and suitable.
    ApiServerFlags,
    /// The API has `ServiceCIDR`s.
    ApiVersion,
    /// Pods without a controller.
    BarePods,
    /// Every `PodDisruptionBudget` allows disruptions.
    DisruptionBudgets,
    /// No pod that has to restart has data in an emptyDir.
    EmptyDir,
    /// Configuration that contains addresses of Services.
    HardcodedAddresses,
    /// The new ranges have enough addresses.
    InsufficientAddresses,
    /// kube-proxy runs in a supported mode on every node.
    KubeProxy,
    /// Load balancers keep their addresses.
    LoadBalancers,
    /// Every object can be parsed.
    MalformedObjects,
    /// The Corefile of the name servers is suitable.
    NameServers,
    /// Coordinator and agents reach the API server at an address that does not change.
    OwnPath,
    /// The coordinator has all needed permissions.
    Permissions,
    /// The addresses that pods have received can be read on every node.
    PodsTold,
    /// The quotas of every namespace allow helpers.
    Quotas,
    /// The new ranges are not in use.
    Ranges,
    /// Every Service can change its address.
    Services,
    /// Static pods, which cannot be evicted.
    StaticPods,
    /// Traffic is watched.
    TrafficGate,
}

impl CheckName {
    /// Every name.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name as written in status, metrics and the runbook.
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
}

/// All permissions that the coordinator needs.
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

/// Checks every prerequisite.
pub fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    [
        access::malformed(
            CheckName::MalformedObjects,
            &facts.malformed,
            facts.nodes.values(),
            &facts.pods,
        ),
        access::permissions(
            CheckName::Permissions,
            &PERMISSIONS,
            &facts.permissions,
            access::BASE_ROLES,
        ),
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
mod tests;
