//! The view: all facts that the decision depends on.

use jiff::Timestamp;

use super::calico::Content;
use super::nodes::NodeView;
use super::step::{Stage, Step, StoreWork};
use crate::controller_objects::ControllerObjects;
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use engine::decision::{Decision, Direction, Wait};

/// State of both stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoresView {
    /// Phase of the conversion; `None` without a record.
    pub phase: Option<Phase>,
    /// The flag of v2.
    pub v2: ReadyV2,
    /// The flag of v3.
    pub v3: ReadyV3,
    /// Time of the automatic rollback; `None` without a record.
    pub abort_at: Option<Timestamp>,
    /// Whether the record says that calico-nodes of v3 may run.
    pub nodes_of_v3: bool,
    /// Whether the record belongs to this migration.
    pub is_ours: bool,
}

impl StoresView {
    /// Whether v3 is open. From then on a rollback is not possible.
    pub fn is_past_the_point_of_no_return(&self) -> bool {
        self.v3 == ReadyV3::Open
    }

    /// Whether the conversion has paused Calico, or may have done so.
    pub fn is_paused(&self) -> bool {
        match self.phase {
            None | Some(Phase::Aborted | Phase::Completed) => false,
            Some(Phase::Completing) => self.v3 != ReadyV3::Open,
            Some(Phase::Aborting) => self.v2 != ReadyV2::Open,
            Some(Phase::Pausing | Phase::Paused | Phase::Writing | Phase::Written | Phase::Verified) => true,
        }
    }
}

/// State of the `DaemonSet` of calico-node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaemonSetView {
    /// Content of the pod template.
    pub template: Content,
    /// Content of the update strategy.
    pub strategy: Content,
    /// Whether the update strategy is `OnDelete`.
    pub is_held: bool,
    /// Number of missing pods.
    pub missing: usize,
}

/// State of calico-kube-controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllersView {
    /// Content of the pod template.
    pub template: Content,
    /// Whether the Deployment is scaled to zero.
    pub is_stopped: bool,
    /// Whether the Deployment has its full number of replicas.
    pub is_scaled: bool,
    /// Number of existing pods, with terminating ones.
    pub pods: usize,
    /// Whether all pods are Available and have the present template.
    pub is_available: bool,
}

/// State of the work on the stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// No work.
    Idle,
    /// Work in progress.
    Busy {
        /// The work.
        work: StoreWork,
        /// The last progress message.
        progress: String,
        /// The refusal of the earlier attempt, with the fix.
        refused: Option<String>,
    },
    /// The work failed, and starts again in some seconds.
    Failed {
        /// The work.
        work: StoreWork,
        /// The cause and the fix.
        message: String,
        /// Whether the user has to act. Otherwise the cause may pass.
        needs_user: bool,
    },
}

/// Whether calico-kube-controllers has written its objects to v3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllersWork {
    /// All objects exist.
    Complete,
    /// These objects are missing.
    Missing(ControllerObjects),
    /// The state is unknown, for this reason.
    Unknown(String),
}

/// All facts that the decision depends on.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// Direction of the migration.
    pub direction: Direction,
    /// Whether both stores are backed up.
    pub is_backed_up: bool,
    /// Both stores, or the reason why they cannot be read.
    pub stores: Result<StoresView, String>,
    /// The `ConfigMap`; `None` when the manifest has none.
    pub configuration: Option<Content>,
    /// The `DaemonSet`.
    pub daemon_set: DaemonSetView,
    /// calico-node on every node, in order.
    pub nodes: &'facts [NodeView],
    /// The controllers; `None` when there are none.
    pub controllers: Option<ControllersView>,
    /// Objects that the controllers of v3 have to write before v3 is opened.
    pub controllers_work: ControllersWork,
    /// Work on the stores.
    pub work: &'facts Work,
    /// Message about pods that have waited for a network since before v3 was opened; `None` when there are none.
    pub without_network: Option<String>,
    /// The present time.
    pub now: Timestamp,
}

/// Limits of the rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Most nodes without a Ready calico-node at the same time.
    pub at_once: usize,
    /// Reason why no step starts now: a pause of the user, or a condition that has to be read first.
    pub hold: Option<Wait>,
}

/// The stage and the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The stage; `None` when it is unknown.
    pub stage: Option<Stage>,
    /// The decision.
    pub decision: Decision<Step>,
}
