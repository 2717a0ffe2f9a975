//! Checks of all prerequisites, on cluster facts and host facts.
//!
//! A passed check is one line with the value found. A failed check names each object, the value found, the value needed
//! and the fix. A fact that could not be read gives `Unknown`, which refuses the migration.

mod access;
mod agents;
mod calico;
mod capacity;
mod chained;
mod enforcers;
mod firewall;
mod flannel;
mod host;
mod kernel;
mod legacy;
mod network;
mod nodes;
mod outside;
mod overlap;
mod owners;
mod plugin;
mod pod_limit;
mod pods;
mod preview;
mod rollout;
mod runtime;
mod webhooks;

#[cfg(test)]
pub(super) mod fixture;

pub use super::check_name::CheckName;
use super::facts::ClusterFacts;
use super::settings::{FirewallTwins, LegacyPods, Settings, Strategy};
use crate::api::PolicyPreview;
use engine::check::{Check, Permission};
use engine::drain;
use engine::evict::{OnBlocked, Time};
use engine::rollout::{MaxUnavailable, MaxUnavailableError};

/// The parts of the spec that checks depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckPolicy {
    /// How a node changes its network.
    pub strategy: Strategy,
    /// The handling of legacy pods, in place.
    pub legacy_pods: LegacyPods,
    /// The handling of other programs' rules that name the links of flannel.
    pub firewall_twins: FirewallTwins,
    /// Whether one schedulable node is enough: its pods are Pending while it is being migrated.
    pub allow_single_node: bool,
    /// Permissions of a drain.
    pub permissions: drain::Permissions,
    /// The handling of pods that cannot be evicted.
    pub on_blocked: OnBlocked,
    /// The time limit of a drain.
    pub time: Time,
    /// How many nodes are migrated at the same time, by the spec.
    pub max_unavailable: Result<MaxUnavailable, MaxUnavailableError>,
    /// Whether traffic pods run on every node.
    pub watches_traffic: bool,
    /// The preview of network policies, by the spec.
    pub policy_preview: PolicyPreview,
}

/// All permissions that the coordinator needs.
pub const PERMISSIONS: [Permission; 16] = [
    Permission::new("patch", "", "nodes", ""),
    Permission::new("create", "", "pods", "eviction"),
    Permission::new("patch", "apps", "daemonsets", ""),
    Permission::new("delete", "apps", "daemonsets", ""),
    Permission::new("create", "crd.projectcalico.org", "ippools", ""),
    Permission::new("patch", "crd.projectcalico.org", "felixconfigurations", ""),
    Permission::new("patch", "crd.projectcalico.org", "ipamconfigs", ""),
    Permission::new("create", "crd.projectcalico.org", "ipamblocks", ""),
    Permission::new("create", "crd.projectcalico.org", "blockaffinities", ""),
    Permission::new("create", "crd.projectcalico.org", "ipamhandles", ""),
    // For a rollback.
    Permission::new("delete", "crd.projectcalico.org", "ippools", ""),
    Permission::new("delete", "crd.projectcalico.org", "felixconfigurations", ""),
    Permission::new("delete", "crd.projectcalico.org", "ipamconfigs", ""),
    Permission::new("delete", "crd.projectcalico.org", "ipamblocks", ""),
    Permission::new("delete", "crd.projectcalico.org", "blockaffinities", ""),
    Permission::new("delete", "crd.projectcalico.org", "ipamhandles", ""),
];

/// Checks all prerequisites.
pub fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let key = (
        settings.flannel_daemon_set_namespace.value.clone(),
        settings.flannel_daemon_set_name.value.clone(),
    );
    let flannel = facts.daemon_sets.get(&key);
    let key = (
        settings.calico_daemon_set_namespace.value.clone(),
        settings.calico_daemon_set_name.value.clone(),
    );
    let calico = facts.daemon_sets.get(&key);
    let mut checks = access::check(facts);
    checks.extend(agents::check(facts));
    checks.extend(rollout::check(facts, policy));
    checks.extend(flannel::check(settings, facts, flannel));
    checks.extend(owners::check(&[flannel, calico]));
    checks.extend(calico::check(settings, facts, calico));
    checks.extend(nodes::check(settings, facts));
    checks.extend(outside::check(settings, facts, calico));
    checks.extend(network::check(settings, facts, flannel, calico));
    checks.extend(host::check(settings, facts, calico));
    checks.extend(runtime::check(settings, facts));
    checks.extend(plugin::check(facts));
    checks.extend(firewall::check(facts, policy));
    checks.extend(chained::check(facts, calico));
    checks.extend(overlap::check(settings, facts));
    checks.extend(legacy::check(settings, facts, policy));
    checks.extend(kernel::check(facts, policy));
    checks.extend(pod_limit::check(facts, policy));
    checks.extend(enforcers::check(flannel, facts));
    checks.extend(preview::check(facts, policy));
    match (policy.strategy, policy.legacy_pods) {
        (Strategy::Drain, _) => {
            checks.extend(pods::check(facts, policy));
            checks.extend(pods::grace_periods(facts, policy));
            checks.extend(nodes::schedulable(facts, policy));
            checks.extend(capacity::check(facts, policy));
            checks.extend(webhooks::check(facts));
        }
        // Legacy pods are evicted in the end, and a new pod may start on the same node.
        (Strategy::InPlace, LegacyPods::Restart) => checks.extend(pods::check(facts, policy)),
        // No pod is evicted, so no other node needs room.
        (Strategy::InPlace, LegacyPods::Keep | LegacyPods::Adopt) => {}
    }
    checks
}

#[cfg(test)]
mod tests;
