//! Every prerequisite as a check on cluster facts and host facts.
//!
//! A check that finds nothing wrong is one line that says what it saw; one that does names each object, the value
//! found, the value needed and what a person does about it. What could not be looked at is `Unknown`, and refuses.

mod access;
mod agents;
mod calico;
mod capacity;
mod flannel;
mod host;
mod legacy;
mod network;
mod nodes;
mod owners;
mod pods;
mod rollout;
mod version;
mod webhooks;

#[cfg(test)]
pub(super) mod fixture;

use super::cluster::ClusterFacts;
use super::settings::{LegacyPods, Settings, Strategy};
use engine::check::{Check, Permission, Verdict};
use engine::drain;
use engine::evict::{OnBlocked, Time};
use engine::rollout::{MaxUnavailable, MaxUnavailableError};

/// What the user allows, as far as a check depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckPolicy {
    /// How a node changes its network.
    pub strategy: Strategy,
    /// What happens to pods that were there before, in place.
    pub legacy_pods: LegacyPods,
    /// One schedulable node is enough: its pods wait while it is in work.
    pub allow_single_node: bool,
    /// What a drain may do.
    pub permissions: drain::Permissions,
    /// What happens when pods do not go.
    pub on_blocked: OnBlocked,
    /// How long the pods of one node may take to leave.
    pub time: Time,
    /// How many nodes are in work at the same time, as the spec says.
    pub max_unavailable: Result<MaxUnavailable, MaxUnavailableError>,
}

/// Name of a prerequisite: a metric label and an anchor in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckName {
    /// The policies that bound coordinator and agents are installed and bound.
    AdmissionPolicies,
    /// flannel's `DaemonSet` is not kept by the add-on manager.
    AddonManager,
    /// An agent reports from every node.
    AgentMissing,
    /// Every pod that has to leave has a controller that creates it again.
    BarePods,
    /// Bridged packets pass the firewall.
    BridgeNetfilter,
    /// Calico is installed, and waits for its node label.
    CalicoManifests,
    /// flannel and Calico do not run in one pod.
    Canal,
    /// The pods of the nodes in work fit on the others.
    Capacity,
    /// flannel's conflist is what the runtime uses.
    ConflistMalformed,
    /// flannel routes to no node past the tunnel.
    DirectRouting,
    /// Every `PodDisruptionBudget` yields.
    DisruptionBudgets,
    /// No pod that has to leave has data in an emptyDir.
    EmptyDir,
    /// flannel carries packets by VXLAN.
    FlannelBackend,
    /// flannel's `DaemonSet` is the one, and runs everywhere.
    FlannelDaemonSet,
    /// flannel keeps its subnets in the Kubernetes API.
    FlannelSubnetManager,
    /// flannel is v0.9.1 or later.
    FlannelVersion,
    /// Every pod that has to leave ends before its node stops waiting for it.
    GracePeriods,
    /// The agents find nothing on their hosts that would stop them, beyond what the other checks judge.
    HostChecks,
    /// Existing address blocks belong to the nodes that need them.
    IpamBlocks,
    /// An existing pool of flannel's network is as the migration needs it.
    IpPool,
    /// Every pod on flannel's bridge is known by its sandbox.
    LegacyPods,
    /// Every object was understood.
    MalformedObjects,
    /// `rollout.maxUnavailable` is understood.
    MaxUnavailable,
    /// Calico's own migration controller does not run.
    MigrationController,
    /// `net-conf.json` is understood.
    NetworkConfiguration,
    /// The tunnel device is as the settings say.
    NetworkConfigurationMatchesDevice,
    /// flannel's annotations on every Node are understood.
    NodeAnnotations,
    /// Node labels can be changed, and say what this tool understands.
    NodeLabels,
    /// Every node that flannel serves runs Linux.
    OperatingSystem,
    /// The API server lets the coordinator do all that it has to.
    Permissions,
    /// Every Node has a podCIDR inside flannel's network.
    PodCidr,
    /// The address of a tunnel's end is the one that Calico detects.
    PublicAddress,
    /// Nobody writes back what the migration changes.
    Reconciler,
    /// `rp_filter` is as this version of Calico needs it.
    ReversePathFilter,
    /// Pods that leave a node have another to go to.
    SchedulableNodes,
    /// No static pod is on the pod network.
    StaticPods,
    /// `subnet.env` of every host is as the settings say.
    SubnetEnvironment,
    /// Admission works while any node is in work.
    Webhooks,
}

impl CheckName {
    /// Every name.
    pub const ALL: [Self; 38] = [
        Self::AdmissionPolicies,
        Self::AddonManager,
        Self::AgentMissing,
        Self::BarePods,
        Self::BridgeNetfilter,
        Self::CalicoManifests,
        Self::Canal,
        Self::Capacity,
        Self::ConflistMalformed,
        Self::DirectRouting,
        Self::DisruptionBudgets,
        Self::EmptyDir,
        Self::FlannelBackend,
        Self::FlannelDaemonSet,
        Self::FlannelSubnetManager,
        Self::FlannelVersion,
        Self::GracePeriods,
        Self::HostChecks,
        Self::IpamBlocks,
        Self::IpPool,
        Self::LegacyPods,
        Self::MalformedObjects,
        Self::MaxUnavailable,
        Self::MigrationController,
        Self::NetworkConfiguration,
        Self::NetworkConfigurationMatchesDevice,
        Self::NodeAnnotations,
        Self::NodeLabels,
        Self::OperatingSystem,
        Self::Permissions,
        Self::PodCidr,
        Self::PublicAddress,
        Self::Reconciler,
        Self::ReversePathFilter,
        Self::SchedulableNodes,
        Self::StaticPods,
        Self::SubnetEnvironment,
        Self::Webhooks,
    ];

    /// The name as it stands in status, metrics and the runbook.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AdmissionPolicies => "AdmissionPolicies",
            Self::AddonManager => "AddonManager",
            Self::AgentMissing => "AgentMissing",
            Self::BarePods => "BarePods",
            Self::BridgeNetfilter => "BridgeNetfilter",
            Self::CalicoManifests => "CalicoManifests",
            Self::Canal => "Canal",
            Self::Capacity => "Capacity",
            Self::ConflistMalformed => "ConflistMalformed",
            Self::DirectRouting => "DirectRouting",
            Self::DisruptionBudgets => "DisruptionBudgets",
            Self::EmptyDir => "EmptyDir",
            Self::FlannelBackend => "FlannelBackend",
            Self::FlannelDaemonSet => "FlannelDaemonSet",
            Self::FlannelSubnetManager => "FlannelSubnetManager",
            Self::FlannelVersion => "FlannelVersion",
            Self::GracePeriods => "GracePeriods",
            Self::HostChecks => "HostChecks",
            Self::IpamBlocks => "IpamBlocks",
            Self::IpPool => "IpPool",
            Self::LegacyPods => "LegacyPods",
            Self::MalformedObjects => "MalformedObjects",
            Self::MaxUnavailable => "MaxUnavailable",
            Self::MigrationController => "MigrationController",
            Self::NetworkConfiguration => "NetworkConfiguration",
            Self::NetworkConfigurationMatchesDevice => "NetworkConfigurationMatchesDevice",
            Self::NodeAnnotations => "NodeAnnotations",
            Self::NodeLabels => "NodeLabels",
            Self::OperatingSystem => "OperatingSystem",
            Self::Permissions => "Permissions",
            Self::PodCidr => "PodCidr",
            Self::PublicAddress => "PublicAddress",
            Self::Reconciler => "Reconciler",
            Self::ReversePathFilter => "ReversePathFilter",
            Self::SchedulableNodes => "SchedulableNodes",
            Self::StaticPods => "StaticPods",
            Self::SubnetEnvironment => "SubnetEnvironment",
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
}

impl From<CheckName> for &'static str {
    fn from(name: CheckName) -> Self {
        name.as_str()
    }
}

/// Everything that the coordinator must be allowed to do.
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
    // On the way back.
    Permission::new("delete", "crd.projectcalico.org", "ippools", ""),
    Permission::new("delete", "crd.projectcalico.org", "felixconfigurations", ""),
    Permission::new("delete", "crd.projectcalico.org", "ipamconfigs", ""),
    Permission::new("delete", "crd.projectcalico.org", "ipamblocks", ""),
    Permission::new("delete", "crd.projectcalico.org", "blockaffinities", ""),
    Permission::new("delete", "crd.projectcalico.org", "ipamhandles", ""),
];

/// Judges every prerequisite.
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
    checks.extend(network::check(settings, facts, flannel, calico));
    checks.extend(host::check(settings, facts, calico));
    checks.extend(legacy::check(settings, facts, policy));
    match (policy.strategy, policy.legacy_pods) {
        (Strategy::Drain, _) => {
            checks.extend(pods::check(facts, policy));
            checks.extend(pods::grace_periods(facts, policy));
            checks.extend(nodes::schedulable(facts, policy));
            checks.extend(capacity::check(facts, policy));
            checks.extend(webhooks::check(facts));
        }
        // They are evicted in the end; each may come back to its own node.
        (Strategy::InPlace, LegacyPods::Restart) => checks.extend(pods::check(facts, policy)),
        // Nobody leaves a node, so nobody needs another place.
        (Strategy::InPlace, LegacyPods::Keep) => {}
    }
    checks
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
