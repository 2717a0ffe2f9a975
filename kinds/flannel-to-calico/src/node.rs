//! The next step of one node, as the coordinator sees it. Level-triggered: the same facts give the same step,
//! whatever was decided before, so that a restart or a crash changes nothing.

mod aside;
mod back;
mod decide;
mod evict;
mod in_place;
mod label;

use std::collections::BTreeMap;

pub use aside::{given_back, is_unchanged};
pub use decide::{at_deadline, decide};
pub use in_place::{restart, upkeep};
use jiff::{SignedDuration, Timestamp};
pub use label::{LabelDrift, drift};

use super::facts::LegacyPod;
use super::import::ImportedAddress;
use super::objects::Allocation;
use super::phase::{Goal, Phase};
use super::settings::Strategy;
use engine::decision::Decision;
use engine::drain::{self, Budget, Pod, Residents};
use engine::evict::{OnBlocked, PodName, Refusal};
use engine::probe::{ProbePod, Prober};

/// Which network a Node's label says that it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkLabel {
    /// No label yet.
    Missing,
    /// flannel's pods run here.
    Flannel,
    /// Neither runs here.
    Neither,
    /// Calico's pods run here.
    Calico,
    /// A value that nobody of us writes.
    Other(String),
}

impl NetworkLabel {
    /// Reads the label's value.
    pub fn read(value: Option<&str>) -> Self {
        match value {
            None => Self::Missing,
            Some("flannel") => Self::Flannel,
            Some("none") => Self::Neither,
            Some("calico") => Self::Calico,
            Some(other) => Self::Other(other.to_owned()),
        }
    }

    /// The label's value; `None` when there is none.
    pub fn value(&self) -> Option<&str> {
        match self {
            Self::Missing => None,
            Self::Flannel => Some("flannel"),
            Self::Neither => Some("none"),
            Self::Calico => Some("calico"),
            Self::Other(value) => Some(value),
        }
    }
}

/// What the node's agent reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentReport {
    /// Whether the agent's pod on the node is Ready.
    pub ready: bool,
    /// The phase that it proved.
    pub phase: Option<Phase>,
    /// What it does or waits for.
    pub message: String,
    /// A failure that it does not mend by itself.
    pub failure: Option<String>,
    /// Lines of its checks that do not allow going on.
    pub failing_checks: Vec<String>,
    /// The goal that it has acted on.
    pub goal: Option<Goal>,
    /// What is different on the host from before the migration.
    pub changes: Vec<String>,
    /// Why it puts the old network back by itself.
    pub fell_back: Option<String>,
    /// Whether a pod of Calico's is attached to the host.
    pub sees_calicos_pods: bool,
}

impl AgentReport {
    /// Whether the agent was told to take every change back, and has proved that it did.
    pub fn is_back(&self) -> bool {
        self.goal == Some(Goal::Flannel) && self.changes.is_empty() && self.phase.is_some()
    }
}

/// Where a node in work is led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To Calico.
    There,
    /// To flannel, as it was before.
    Back,
}

impl Direction {
    /// What a person types once what halted is mended.
    fn again(self) -> &'static str {
        match self {
            Self::There => "`kubectl replumb resume`",
            Self::Back => {
                "once more what asked for the way back: `kubectl replumb abort`, `rollback NODE` or `rollback --all` \
                 (`resume` turns it around)"
            }
        }
    }
}

/// Everything that the decision about one node depends on.
#[derive(Clone, Debug)]
pub struct NodeView<'facts> {
    /// Name of the node.
    pub name: &'facts str,
    /// Where it is led.
    pub direction: Direction,
    /// When it was done before it turned around: it is that again if it is given back.
    pub done_before: Option<Timestamp>,
    /// Whether the Node reports Ready.
    pub ready: bool,
    /// Since when it reports that; `None` when it has never reported.
    pub ready_changed: Option<Timestamp>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Whether the cordon is ours.
    pub cordoned_by_us: bool,
    /// The Node's label.
    pub network: NetworkLabel,
    /// The goal that the agent was given.
    pub goal: Goal,
    /// What the agent reported.
    pub agent: AgentReport,
    /// Pods on the node.
    pub residents: Residents<'facts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: &'facts [Budget],
    /// Refused evictions by pod UID.
    pub refusals: &'facts BTreeMap<String, Refusal>,
    /// Names of flannel's pods on the node, terminating ones included, and whether each is Ready and not terminating.
    pub flannel_pods: Vec<(String, bool)>,
    /// Names of Calico's pods on the node, and whether each is Ready and not terminating.
    pub calico_pods: Vec<(String, bool)>,
    /// In place: addresses that Calico's IPAM does not know of yet.
    pub to_import: Vec<Allocation>,
    /// In place: addresses that it was told of, and that nobody of flannel's has any more.
    pub to_release: Vec<ImportedAddress>,
    /// In place: flannel's pods that live on the node, or have left something.
    pub legacy_pods: Vec<LegacyPod>,
    /// The probe pod, if there is one.
    pub probe_pod: Option<ProbePod>,
    /// Who was asked to reach it.
    pub probers: Vec<Prober>,
    /// The stage that was recorded last, and since when.
    pub stage: Option<(Stage, Timestamp)>,
}

impl NodeView<'_> {
    /// Whether this is a pod of flannel's.
    fn is_legacy(&self, pod: &Pod) -> bool {
        self.legacy_pods.iter().any(|legacy| legacy.is(pod))
    }
}

/// Limits and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How the node changes its network.
    pub strategy: Strategy,
    /// How long one stage may take.
    pub step_timeout: SignedDuration,
    /// How long the pods of one node may take to leave.
    pub drain_timeout: SignedDuration,
    /// What happens then.
    pub on_blocked: OnBlocked,
    /// What a drain may do.
    pub permissions: drain::Permissions,
    /// Grace period that overrides the pods' own, in seconds.
    pub grace_period_seconds: Option<u32>,
    /// Deadlines count from here when it is later than the stage's start: a person said "resume", or the clock was set.
    pub resumed_at: Option<Timestamp>,
}

/// Where a node in work is. Ordered; the name is a metric label, an Event reason and a line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// New pods go elsewhere.
    Cordon,
    /// Pods leave by eviction.
    Drain,
    /// The label moves away from flannel, and its pod ends.
    StopFlannel,
    /// flannel's CNI plugin refuses new pods.
    HoldNewPods,
    /// `DaemonSet` pods leave by eviction; their successors wait for the new network.
    DrainDaemonSets,
    /// The old network is removed from the host.
    Detach,
    /// In place: Calico's IPAM is told of the addresses that living pods have.
    Import,
    /// In place: the tunnel changes its name.
    Swap,
    /// The label moves to Calico, and calico-node becomes Ready.
    StartCalico,
    /// The host is on Calico, and the agent's checks pass.
    Attach,
    /// A pod on the node is reached from an old and a new node.
    Probe,
    /// The cordon is lifted, if it was ours.
    Uncordon,
    /// Back: the label moves away from Calico, and its pod ends.
    StopCalico,
    /// Back: the agent takes every change to the host back.
    PutBack,
    /// Back: the label moves to flannel, and its pod becomes Ready.
    StartFlannel,
    /// Back: Calico's IPAM forgets the node's addresses.
    Return,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Self; 16] = [
        Self::Cordon,
        Self::Drain,
        Self::StopFlannel,
        Self::HoldNewPods,
        Self::DrainDaemonSets,
        Self::Detach,
        Self::Import,
        Self::Swap,
        Self::StartCalico,
        Self::Attach,
        Self::Probe,
        Self::Uncordon,
        Self::StopCalico,
        Self::PutBack,
        Self::StartFlannel,
        Self::Return,
    ];

    /// The stage as it stands in status, metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cordon => "Cordon",
            Self::Drain => "Drain",
            Self::StopFlannel => "StopFlannel",
            Self::HoldNewPods => "HoldNewPods",
            Self::DrainDaemonSets => "DrainDaemonSets",
            Self::Detach => "Detach",
            Self::Import => "Import",
            Self::Swap => "Swap",
            Self::StartCalico => "StartCalico",
            Self::Attach => "Attach",
            Self::Probe => "Probe",
            Self::Uncordon => "Uncordon",
            Self::StopCalico => "StopCalico",
            Self::PutBack => "PutBack",
            Self::StartFlannel => "StartFlannel",
            Self::Return => "Return",
        }
    }

    /// Whether pods leave in this stage: it has their time, and no step's.
    pub fn is_drain(self) -> bool {
        matches!(self, Self::Drain | Self::DrainDaemonSets)
    }

    /// How long the stage may take, in seconds; `None` where the policy lets it take for ever.
    pub fn patience(self, policy: &Policy) -> Option<u32> {
        let limit = match (self.is_drain(), policy.on_blocked) {
            (true, OnBlocked::Wait) => return None,
            (true, OnBlocked::Pause | OnBlocked::Skip) => policy.drain_timeout,
            (false, _) => policy.step_timeout,
        };
        u32::try_from(limit.as_secs()).ok()
    }

    /// Reads [`Stage::as_str`].
    pub fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == text)
    }
}

/// One change that the coordinator makes for a node: idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeStep {
    /// Set `unschedulable`, with our annotation in the same write.
    Cordon,
    /// Evict these pods, by UID, namespace and name.
    Evict(Vec<PodName>),
    /// Write the Node's network label.
    Label(&'static str),
    /// Give the agent this goal.
    Goal(Goal),
    /// Tell Calico's IPAM of these addresses.
    Import(Vec<Allocation>),
    /// Take these back from Calico's IPAM, where they are still under that handle.
    Release(Vec<ImportedAddress>),
    /// Create the probe pod.
    CreateProbePod,
    /// Lift our cordon.
    Uncordon,
    /// Record that the node is done.
    Complete,
    /// Let Calico's IPAM forget every address of the node's but the tunnel's, and record that the node is back.
    Return,
}

impl NodeStep {
    /// The step by name; bounded, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cordon => "Cordon",
            Self::Evict(_) => "Evict",
            Self::Label("none") => "LabelNone",
            Self::Label("calico") => "LabelCalico",
            Self::Label("flannel") => "LabelFlannel",
            Self::Label(_) => "Label",
            Self::Goal(Goal::Hold) => "GoalHold",
            Self::Goal(Goal::Held) => "GoalHeld",
            Self::Goal(Goal::Swapped) => "GoalSwapped",
            Self::Goal(Goal::Mixed) => "GoalMixed",
            Self::Goal(Goal::Detached) => "GoalDetached",
            Self::Goal(Goal::Calico) => "GoalCalico",
            Self::Goal(Goal::Flannel) => "GoalFlannel",
            Self::Import(_) => "Import",
            Self::Release(_) => "Release",
            Self::CreateProbePod => "CreateProbePod",
            Self::Uncordon => "Uncordon",
            Self::Complete => "Complete",
            Self::Return => "Return",
        }
    }
}

/// Where the node is, and what comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Where the node is.
    pub stage: Stage,
    /// What comes next.
    pub decision: Decision<NodeStep>,
}
