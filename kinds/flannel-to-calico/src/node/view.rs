//! The view of one node, with the report of its agent.

use std::collections::BTreeMap;

use engine::daemon_pod::DaemonPod;
use engine::drain::{Budget, Pod, Residents};
use engine::evict::Refusal;
use engine::probe::{ProbePod, Prober};
use jiff::Timestamp;

use super::{Direction, NetworkLabel, Stage};
use crate::facts::LegacyPod;
use crate::import::ImportedAddress;
use crate::objects::Allocation;
use crate::phase::{Goal, Phase};

/// The report of the agent of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentReport {
    /// Whether the agent's pod on the node is Ready.
    pub ready: bool,
    /// The phase that the agent has proved.
    pub phase: Option<Phase>,
    /// The current action or wait of the agent.
    pub message: String,
    /// A failure that needs the user.
    pub failure: Option<String>,
    /// Lines of checks that do not allow the migration to continue.
    pub failing_checks: Vec<String>,
    /// The goal that the agent has acted on.
    pub goal: Option<Goal>,
    /// Differences of the host from its state before the migration.
    pub changes: Vec<String>,
    /// Why the agent restores the old network on its own.
    pub fell_back: Option<String>,
    /// Whether a pod on Calico's network is attached to the host.
    pub has_calico_pods: bool,
    /// Whether new pods get addresses from Calico although the phase is between the networks: calico-node runs and has written to the
    /// host, and its conflist is in use.
    pub is_served_by_calico: bool,
}

impl AgentReport {
    /// Whether the agent has the goal to revert all changes, and has proved that it has done so.
    pub fn is_back(&self) -> bool {
        self.goal == Some(Goal::Flannel) && self.changes.is_empty() && self.phase.is_some()
    }
}

/// The view of one node: everything that its decision depends on.
#[derive(Clone, Debug)]
pub struct NodeView<'facts> {
    /// Name of the node.
    pub name: &'facts str,
    /// The direction of the node.
    pub direction: Direction,
    /// When the node was done before its rollback: it counts as done again if it is released unchanged.
    pub was_done_at: Option<Timestamp>,
    /// Whether the Node is Ready.
    pub ready: bool,
    /// Time of the last change of `ready`; `None` if the Node has never reported.
    pub ready_changed: Option<Timestamp>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Whether replumb has cordoned the node.
    pub cordoned_by_replumb: bool,
    /// The label of the Node.
    pub network: NetworkLabel,
    /// The goal in the `NodeMigration`.
    pub goal: Goal,
    /// The report of the agent.
    pub agent: AgentReport,
    /// Pods on the node.
    pub residents: Residents<'facts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: &'facts [Budget],
    /// Refused evictions by pod UID.
    pub refusals: &'facts BTreeMap<String, Refusal>,
    /// flannel's pods on the node, including terminating pods.
    pub flannel_pods: Vec<DaemonPod>,
    /// Calico's pods on the node, including terminating pods.
    pub calico_pods: Vec<DaemonPod>,
    /// In place: addresses that are not in Calico's IPAM yet.
    pub to_import: Vec<Allocation>,
    /// In place: addresses in Calico's IPAM that no flannel pod uses any more.
    pub to_release: Vec<ImportedAddress>,
    /// In place: legacy pods that run on the node, or have leftovers there.
    pub legacy_pods: Vec<LegacyPod>,
    /// Pods that keep the host in phase Mixed because they cannot be adopted. Empty while other pods are to be adopted.
    pub pods_that_stay: Vec<String>,
    /// The probe pod, if it exists.
    pub probe_pod: Option<ProbePod>,
    /// The nodes that probe this pod.
    pub probers: Vec<Prober>,
    /// The last recorded stage, and its start.
    pub stage: Option<(Stage, Timestamp)>,
}

impl NodeView<'_> {
    /// Whether this pod is on the flannel network.
    pub(super) fn is_legacy(&self, pod: &Pod) -> bool {
        self.legacy_pods.iter().any(|legacy| legacy.is(pod))
    }
}
