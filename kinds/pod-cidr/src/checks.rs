//! Every prerequisite as a check on cluster facts and host facts.
//!
//! A check that finds nothing wrong is one line that says what it saw; one that does names each object, the value found, the
//! value needed and what a person does about it. What could not be looked at is `Unknown`, and refuses. What the migration
//! itself waits for, with its words, is a warning: it can be mended while it runs.

mod calico;
mod configuration;
pub(super) mod datastore;
mod hosts;
mod name_servers;
mod objects;
mod pods;
mod pools;
mod room;
mod wishes;
mod workloads;

use super::datastore::DatastoreFacts;
use super::facts::ClusterFacts;
use super::settings::{Mode, Settings};
use engine::check::{Check, Permission, Verdict, access, policies};
use engine::drain::Permissions;
use engine::evict::OnBlocked;
use engine::residents::{residents, with_one_pod, workloads_of};

/// What the user allows, as far as a check depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckPolicy {
    /// What an eviction may cost.
    pub permissions: Permissions,
    /// What happens when pods do not go.
    pub on_blocked: OnBlocked,
    /// Whether pods that nobody makes again are evicted.
    pub delete_bare_pods: bool,
    /// How pods leave the old range.
    pub mode: Mode,
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
    /// Pods that nobody makes again.
    BarePods,
    /// Calico runs on every node, in one version.
    CalicoNodes,
    /// Who says the old range besides Calico's pool.
    Configuration,
    /// The controller manager does not end over a Node's podCIDR.
    ControllerManager,
    /// Calico's objects can be read and written where Calico keeps them.
    DatastoreAccess,
    /// Every `PodDisruptionBudget` yields.
    DisruptionBudgets,
    /// No pod that has to move has data in an emptyDir.
    EmptyDir,
    /// Who has addresses of the old range besides pods that run.
    Holders,
    /// Calico's IPAM gives addresses on every node.
    Ipam,
    /// Every object was understood.
    MalformedObjects,
    /// Pods that leave node by node have somewhere to go.
    Mode,
    /// Name servers go on answering for a moment when they are told to end.
    NameServers,
    /// A pool of the new range is as it has to be, or is not there.
    NewPool,
    /// The pool that pods leave is there, and open.
    OldPool,
    /// The API server lets the coordinator do all that it has to.
    Permissions,
    /// Nobody asks for a pool or an address by name.
    Pins,
    /// Nobody writes the pool back.
    PoolOwner,
    /// The new range is nobody else's.
    Ranges,
    /// The new pool has room.
    Room,
    /// Somewhere the successors of pods can go.
    SchedulableNodes,
    /// No static pod has an address of the old range.
    StaticPods,
    /// Traffic is watched.
    TrafficGate,
    /// Whoever admits pods answers while pods move.
    Webhooks,
    /// What the migration cannot do by itself for some workloads.
    Workloads,
}

impl CheckName {
    /// Every name.
    pub const ALL: [Self; 26] = [
        Self::AdmissionPolicies,
        Self::AgentMissing,
        Self::BarePods,
        Self::CalicoNodes,
        Self::Configuration,
        Self::ControllerManager,
        Self::DatastoreAccess,
        Self::DisruptionBudgets,
        Self::EmptyDir,
        Self::Holders,
        Self::Ipam,
        Self::MalformedObjects,
        Self::Mode,
        Self::NameServers,
        Self::NewPool,
        Self::OldPool,
        Self::Permissions,
        Self::Pins,
        Self::PoolOwner,
        Self::Ranges,
        Self::Room,
        Self::SchedulableNodes,
        Self::StaticPods,
        Self::TrafficGate,
        Self::Webhooks,
        Self::Workloads,
    ];

    /// The name as it stands in status, metrics and the runbook.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AdmissionPolicies => "AdmissionPolicies",
            Self::AgentMissing => "AgentMissing",
            Self::BarePods => "BarePods",
            Self::CalicoNodes => "CalicoNodes",
            Self::Configuration => "Configuration",
            Self::ControllerManager => "ControllerManager",
            Self::DatastoreAccess => "DatastoreAccess",
            Self::DisruptionBudgets => "DisruptionBudgets",
            Self::EmptyDir => "EmptyDir",
            Self::Holders => "Holders",
            Self::Ipam => "Ipam",
            Self::MalformedObjects => "MalformedObjects",
            Self::Mode => "Mode",
            Self::NameServers => "NameServers",
            Self::NewPool => "NewPool",
            Self::OldPool => "OldPool",
            Self::Permissions => "Permissions",
            Self::Pins => "Pins",
            Self::PoolOwner => "PoolOwner",
            Self::Ranges => "Ranges",
            Self::Room => "Room",
            Self::SchedulableNodes => "SchedulableNodes",
            Self::StaticPods => "StaticPods",
            Self::TrafficGate => "TrafficGate",
            Self::Webhooks => "Webhooks",
            Self::Workloads => "Workloads",
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

/// The group of Calico's objects, where they are in the Kubernetes API.
const CALICO: &str = "crd.projectcalico.org";

/// Everything that the coordinator must be allowed to do, where Calico's objects are in the Kubernetes API.
pub const PERMISSIONS: [Permission; 12] = [
    Permission::new("patch", "", "nodes", ""),
    Permission::new("create", "", "pods", "eviction"),
    Permission::new("create", CALICO, "ippools", ""),
    Permission::new("patch", CALICO, "ippools", ""),
    Permission::new("delete", CALICO, "ippools", ""),
    Permission::new("patch", CALICO, "ipamblocks", ""),
    Permission::new("delete", CALICO, "ipamblocks", ""),
    Permission::new("create", CALICO, "ipamhandles", ""),
    Permission::new("patch", CALICO, "ipamhandles", ""),
    Permission::new("patch", CALICO, "blockaffinities", ""),
    Permission::new("delete", CALICO, "blockaffinities", ""),
    Permission::new("patch", "apps", "deployments", "scale"),
];

/// Everything that it must be allowed to do in this cluster: what is in etcd is nothing of the API server's.
pub fn permissions(datastore: &DatastoreFacts) -> Vec<Permission> {
    PERMISSIONS
        .into_iter()
        .filter(|permission| permission.group != CALICO || !datastore.is_etcd())
        .collect()
}

/// Judges every prerequisite.
pub fn check(settings: &Settings, facts: &ClusterFacts, policy: CheckPolicy) -> Vec<Check> {
    let workloads = workloads_of(&facts.pods);
    let residents = residents(&facts.pods, &workloads, &facts.needed(), None);
    let leaving = pods::leaving(settings, facts, &residents);
    let raised = with_one_pod(&residents, &facts.workloads, facts.places());
    [
        objects::check(settings, facts),
        access::permissions(
            CheckName::Permissions,
            &permissions(&facts.datastore),
            &facts.permissions,
        ),
        policies::policies(CheckName::AdmissionPolicies, &facts.policies),
        datastore::check(settings, facts),
        hosts::check(facts),
        pools::check(settings, facts),
        calico::check(settings, facts),
        configuration::check(settings, facts),
        pods::check(settings, facts, &leaving, policy),
        workloads::check(facts, &leaving, &raised),
        name_servers::check(facts),
        room::check(settings, facts),
        wishes::check(facts, policy),
    ]
    .concat()
}

#[cfg(test)]
pub(crate) mod fixture;

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
