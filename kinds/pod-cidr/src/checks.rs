//! Every prerequisite, as a check of cluster facts and host facts.
//!
//! A passed check is one line with the value found; every other check names each object, the value found, the value needed and
//! the fix. A value that could not be read is `Unknown`, and refuses the migration. A condition for which the migration itself
//! waits is a warning: the user can correct it later.

mod calico;
mod configuration;
pub(super) mod datastore;
mod encapsulation;
mod hosts;
mod name_servers;
mod objects;
mod options;
mod other_pools;
mod pods;
mod pools;
mod room;
mod workloads;

use strum::{IntoStaticStr, VariantArray};

use super::datastore::DatastoreFacts;
use super::facts::ClusterFacts;
use super::settings::{Mode, Settings};
use engine::check::{Check, Permission, Verdict, access, policies};
use engine::drain::Permissions;
use engine::evict::OnBlocked;
use engine::residents::{deployments_to_scale_up, residents, workloads_of};

/// The options of the user on which checks depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckPolicy {
    /// What an eviction may destroy.
    pub permissions: Permissions,
    /// What happens when pods cannot be evicted.
    pub on_blocked: OnBlocked,
    /// Whether pods without a controller are evicted.
    pub delete_bare_pods: bool,
    /// The order in which pods move.
    pub mode: Mode,
    /// Whether the user has checked which ranges the nodes take for ranges of pods.
    pub local_ranges_checked: bool,
    /// Whether traffic is not watched (`gates.traffic: Ignore`).
    pub is_unwatched: bool,
}

/// Name of a prerequisite: a metric label and an anchor in the runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr, VariantArray)]
pub enum CheckName {
    /// Addresses of the old range that are in use by other holders than running pods.
    AddressesStillAllocated,
    /// The admission policies that restrict coordinator and agents are installed and bound.
    AdmissionPolicies,
    /// An agent reports from every node.
    AgentMissing,
    /// Pods without a controller.
    BarePods,
    /// calico-node is Ready on every node, in one version.
    CalicoNodes,
    /// Configuration that contains the old range, other than Calico's pool.
    Configuration,
    /// The controller manager does not exit because of a Node's podCIDR.
    ControllerManager,
    /// Calico's datastore can be read and written.
    DatastoreAccess,
    /// Every `PodDisruptionBudget` allows disruptions.
    DisruptionBudgets,
    /// No pod that has to move has data in an emptyDir.
    EmptyDir,
    /// Nodes reach pods of the pool in a way that was tried.
    Encapsulation,
    /// The new pool has enough addresses.
    InsufficientAddresses,
    /// Calico's IPAM assigns addresses on every node.
    Ipam,
    /// Every object can be parsed.
    MalformedObjects,
    /// In mode `ByNode`, pods of a drained node can run on another node.
    Mode,
    /// Terminating name servers continue to answer for a few seconds.
    NameServers,
    /// The pool of the new range has the needed settings, or does not exist.
    NewPool,
    /// The old pool exists, and is open.
    OldPool,
    /// No other pool gives addresses to pods that leave the old one.
    OtherPools,
    /// The coordinator has all needed permissions.
    Permissions,
    /// No object requests the old pool or an address of it.
    Pins,
    /// No controller reverts changes of the pools.
    PoolOwner,
    /// The new range is not in use.
    Ranges,
    /// At least one node accepts replacement pods.
    SchedulableNodes,
    /// No static pod has an address of the old range.
    StaticPods,
    /// Traffic is watched.
    TrafficGate,
    /// Fail-closed admission webhooks answer while pods move.
    Webhooks,
    /// Workloads that need attention from the user.
    Workloads,
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

/// The API group of Calico's objects in the Kubernetes API.
const CALICO: &str = "crd.projectcalico.org";

/// All permissions that the coordinator needs if Calico's objects are in the Kubernetes API.
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

/// The permissions that the coordinator needs in this cluster: objects in etcd need none of the API server.
pub fn permissions(datastore: &DatastoreFacts) -> Vec<Permission> {
    PERMISSIONS
        .into_iter()
        .filter(|permission| permission.group != CALICO || !datastore.is_etcd())
        .collect()
}

/// Checks every prerequisite.
pub fn check(settings: &Settings, facts: &ClusterFacts, policy: CheckPolicy) -> Vec<Check> {
    let workloads = workloads_of(&facts.pods);
    let residents = residents(&facts.pods, &workloads, &facts.needed(), None);
    let leaving = pods::leaving(settings, facts, &residents);
    let raised = deployments_to_scale_up(&residents, &facts.workloads, facts.nodes_for_pods());
    [
        objects::check(settings, facts),
        access::permissions(
            CheckName::Permissions,
            &permissions(&facts.datastore),
            &facts.permissions,
            access::BASE_ROLES,
        ),
        policies::policies(CheckName::AdmissionPolicies, &facts.policies),
        datastore::check(settings, facts),
        hosts::check(facts),
        pools::check(settings, facts),
        calico::check(settings, facts),
        configuration::check(settings, facts, policy),
        pods::check(settings, facts, &leaving, policy),
        workloads::check(facts, &leaving, &raised),
        name_servers::check(facts),
        room::check(settings, facts),
        options::check(facts, policy),
    ]
    .concat()
}

#[cfg(test)]
pub(crate) mod fixture;

#[cfg(test)]
mod tests;
