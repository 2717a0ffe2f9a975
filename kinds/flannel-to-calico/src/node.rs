//! Decisions of the coordinator: the next step of one node. Level-triggered: the same facts give the same step, whatever was
//! decided before, so that a restart or a crash changes nothing.

mod condition;
mod decide;
mod evict;
mod in_place;
mod label;
mod next;
mod release;
mod rollback;
mod view;

pub use decide::{at_deadline, decide};
pub use in_place::{restart, upkeep};
use jiff::{SignedDuration, Timestamp};
pub use label::{LabelDrift, drift};
pub use release::{is_unchanged, release_reason};
use strum::{EnumString, IntoStaticStr, VariantArray};
pub use view::{AgentReport, NodeView};

use super::import::ImportedAddress;
use super::objects::Allocation;
use super::phase::Goal;
use super::settings::{LegacyPods, Strategy};
use engine::decision::Decision;
use engine::drain;
use engine::evict::{OnBlocked, PodName};

/// The network that the label of a Node names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkLabel {
    /// No label.
    Missing,
    /// flannel's pods run on the node.
    Flannel,
    /// Neither flannel's nor Calico's pods run on the node.
    Neither,
    /// Calico's pods run on the node.
    Calico,
    /// A value that this migration never writes.
    Other(String),
}

impl NetworkLabel {
    /// Parses the value of the label.
    pub fn read(value: Option<&str>) -> Self {
        match value {
            None => Self::Missing,
            Some("flannel") => Self::Flannel,
            Some("none") => Self::Neither,
            Some("calico") => Self::Calico,
            Some(other) => Self::Other(other.to_owned()),
        }
    }

    /// The value of the label; `None` without a label.
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

/// The direction in which a node is migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To Calico.
    Forward,
    /// A rollback to flannel.
    Rollback,
}

impl Direction {
    /// The command for the user after the cause of a halt is fixed.
    fn again(self) -> &'static str {
        match self {
            Self::Forward => "run `kubectl replumb resume`",
            Self::Rollback => {
                "repeat the command of the rollback: `kubectl replumb abort`, `rollback NODE` or `rollback --all` \
                 (`resume` changes the direction)"
            }
        }
    }
}

/// Limits and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How the node changes its network.
    pub strategy: Strategy,
    /// The handling of legacy pods, in place.
    pub legacy_pods: LegacyPods,
    /// The time limit of a stage.
    pub step_timeout: SignedDuration,
    /// The time limit of a drain.
    pub drain_timeout: SignedDuration,
    /// The handling of a drain that is blocked after its time limit.
    pub on_blocked: OnBlocked,
    /// Permissions of a drain.
    pub permissions: drain::Permissions,
    /// Grace period that overrides the pods' own, in seconds.
    pub grace_period_seconds: Option<u32>,
    /// Time limits start here if this is later than the start of the stage: after `resume`, or after a change of the clock.
    pub resumed_at: Option<Timestamp>,
}

/// The stage of a node that is being migrated. Ordered. The name is a metric label, an Event reason and a line of the report.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr, VariantArray,
)]
pub enum Stage {
    /// The node is cordoned.
    Cordon,
    /// The pods of the node are evicted.
    Drain,
    /// The label is changed from flannel to none, and flannel's pod ends.
    StopFlannel,
    /// The agent makes flannel's CNI plugin reject new pods.
    HoldNewPods,
    /// The pods of `DaemonSet`s are evicted; their successors wait for the new network.
    DrainDaemonSets,
    /// The agent removes the old network from the host.
    Detach,
    /// In place: the addresses of running pods are written to Calico's IPAM.
    Import,
    /// In place: the agent renames the tunnel.
    Swap,
    /// The label is changed to calico, and calico-node becomes Ready.
    StartCalico,
    /// The host reaches Calico, and the agent's checks pass.
    Attach,
    /// An old and a new node reach a pod on the node.
    Probe,
    /// In place: the agent adopts the running pods of flannel.
    Adopt,
    /// The node is uncordoned, if replumb has cordoned it.
    Uncordon,
    /// Rollback: the label is changed from calico to none, and Calico's pod ends.
    StopCalico,
    /// Rollback: the agent reverts all changes to the host.
    PutBack,
    /// Rollback: the label is changed to flannel, and flannel's pod becomes Ready.
    StartFlannel,
    /// Rollback: the addresses of the node are removed from Calico's IPAM.
    Return,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name of the stage in status, metrics and reports.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether pods are evicted in this stage: then the time limit of a drain applies.
    pub fn is_drain(self) -> bool {
        matches!(self, Self::Drain | Self::DrainDaemonSets)
    }

    /// The time limit of the stage in seconds; `None` if the policy sets no limit.
    pub fn time_limit_seconds(self, policy: &Policy) -> Option<u32> {
        let limit = match (self.is_drain(), policy.on_blocked) {
            (true, OnBlocked::Wait) => return None,
            (true, OnBlocked::Pause | OnBlocked::Skip) => policy.drain_timeout,
            (false, _) => policy.step_timeout,
        };
        u32::try_from(limit.as_secs()).ok()
    }

    /// Reads [`Stage::as_str`].
    pub fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// One change by the coordinator for a node. Each step is idempotent.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum NodeStep {
    /// Set `unschedulable`, with replumb's annotation in the same write.
    Cordon,
    /// Evict these pods, by UID, namespace and name.
    Evict(Vec<PodName>),
    /// Write the network label of the Node.
    Label(&'static str),
    /// Give the agent this goal.
    Goal(Goal),
    /// Write these addresses to Calico's IPAM.
    Import(Vec<Allocation>),
    /// Release these addresses in Calico's IPAM if they still have that handle.
    Release(Vec<ImportedAddress>),
    /// Create the probe pod.
    CreateProbePod,
    /// Uncordon the node.
    Uncordon,
    /// Record that the node is done.
    Complete,
    /// Release all addresses of the node in Calico's IPAM except those of the tunnel, and record that the node is rolled back.
    Return,
}

impl NodeStep {
    /// The name of the step. One of a fixed set, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Label("none") => "LabelNone",
            Self::Label("calico") => "LabelCalico",
            Self::Label("flannel") => "LabelFlannel",
            Self::Goal(Goal::Hold) => "GoalHold",
            Self::Goal(Goal::Held) => "GoalHeld",
            Self::Goal(Goal::Swapped) => "GoalSwapped",
            Self::Goal(Goal::Mixed) => "GoalMixed",
            Self::Goal(Goal::Detached) => "GoalDetached",
            Self::Goal(Goal::Calico) => "GoalCalico",
            Self::Goal(Goal::Flannel) => "GoalFlannel",
            step => step.into(),
        }
    }
}

/// The stage of the node, and the next decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The stage of the node.
    pub stage: Stage,
    /// The next decision.
    pub decision: Decision<NodeStep>,
}
