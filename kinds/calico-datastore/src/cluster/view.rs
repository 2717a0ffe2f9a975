//! Everything that the decision depends on.

use jiff::Timestamp;

use super::calico::Says;
use super::nodes::NodeView;
use super::step::{Stage, Step, StoreWork};
use crate::left::Left;
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use engine::decision::{Decision, Direction, Wait};

/// Both stores, as far as the decision needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoresView {
    /// How far the conversion is; `None` when there is no record.
    pub phase: Option<Phase>,
    /// The flag of v2.
    pub v2: ReadyV2,
    /// The flag of v3.
    pub v3: ReadyV3,
    /// When it goes back by itself; `None` when there is no record.
    pub abort_at: Option<Timestamp>,
    /// Whether it is recorded that calico-nodes of v3 may run.
    pub nodes_of_v3: bool,
    /// Whether the record is of this migration.
    pub is_ours: bool,
}

impl StoresView {
    /// Whether Calico may work with v3: from here on there is no way back.
    pub fn is_past_the_point_of_no_return(&self) -> bool {
        self.v3 == ReadyV3::Open
    }

    /// Whether Calico is paused, or may be, by the conversion.
    pub fn is_paused(&self) -> bool {
        match self.phase {
            None | Some(Phase::Aborted | Phase::Completed) => false,
            Some(Phase::Completing) => self.v3 != ReadyV3::Open,
            Some(Phase::Aborting) => self.v2 != ReadyV2::Open,
            Some(Phase::Pausing | Phase::Paused | Phase::Writing | Phase::Written | Phase::Verified) => true,
        }
    }
}

/// The `DaemonSet` of calico-node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaemonSetView {
    /// Which pods it makes.
    pub template: Says,
    /// How it rolls them.
    pub strategy: Says,
    /// Whether it rolls none by itself.
    pub is_held: bool,
    /// Pods that it has to have and does not.
    pub missing: usize,
}

/// calico-kube-controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllersView {
    /// Which pods it makes.
    pub template: Says,
    /// Whether it makes none.
    pub is_stopped: bool,
    /// Whether it makes as many as it has to.
    pub is_whole: bool,
    /// Pods of it that are there, those that terminate included.
    pub pods: usize,
    /// Whether all of them are Available, and of what it makes now.
    pub is_available: bool,
}

/// What is being done on the stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing.
    Idle,
    /// This.
    Busy {
        /// What.
        work: StoreWork,
        /// What it said last.
        said: String,
        /// Why it failed before, and what somebody does about that.
        refused: Option<String>,
    },
    /// It did not get where it was to go, and is made again in some seconds.
    Failed {
        /// What was done.
        work: StoreWork,
        /// Why, and what helps.
        message: String,
        /// Whether somebody has to do something, or it may pass.
        needs_a_person: bool,
    },
}

/// Whether what the conversion leaves to calico-kube-controllers is in v3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllersWork {
    /// All of it.
    There,
    /// This is not.
    Missing(Left),
    /// Nobody could find out, and why.
    Unknown(String),
}

/// Everything that the decision depends on.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// Where it leads.
    pub direction: Direction,
    /// Whether both stores were kept aside.
    pub is_backed_up: bool,
    /// Both stores, or why they cannot be read.
    pub stores: Result<StoresView, String>,
    /// The `ConfigMap`; `None` where none is to be written.
    pub configuration: Option<Says>,
    /// The `DaemonSet`.
    pub daemon_set: DaemonSetView,
    /// calico-node on every node, in order.
    pub nodes: &'facts [NodeView],
    /// The controllers; `None` where there are none.
    pub controllers: Option<ControllersView>,
    /// What those of v3 have to have written before v3 is opened.
    pub controllers_work: ControllersWork,
    /// What is being done on the stores.
    pub work: &'facts Work,
    /// Pods that wait for a network since before v3 was opened, in words; `None` when none does.
    pub without_network: Option<String>,
    /// Now.
    pub now: Timestamp,
}

/// Limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many nodes may be without a Ready calico-node at the same time.
    pub at_once: usize,
    /// Why nothing is begun now: somebody said so, or has to look first.
    pub hold: Option<Wait>,
}

/// Where it is, and what comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Where it is; `None` when that is not known.
    pub stage: Option<Stage>,
    /// What comes next.
    pub decision: Decision<Step>,
}
