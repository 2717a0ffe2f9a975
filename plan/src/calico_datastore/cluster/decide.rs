//! The next step of the whole conversion. Level-triggered: the same facts give the same step, whatever was decided before, so that a
//! restart or a crash changes nothing.
//!
//! There: nobody writes to v2, Calico is paused, everything is in v3, every calico-node and the controllers are of v3, v3 is opened. Back,
//! as long as v3 was not: v2 is opened at once, since nobody gets a network before; calico-node goes back; v3 is made as it was only when
//! no calico-node of v3 can run any more, since one that finds nothing there opens it.

use jiff::Timestamp;

use super::calico::{Calico, Says};
use super::nodes::{self, NodeView};
use super::step::{Stage, Step, StoreWork};
use crate::calico_datastore::run::decide::{ReadyV2, ReadyV3};
use crate::calico_datastore::run::record::Phase;
use crate::decision::{Decision, Direction, Halt, HaltReason, Wait, WaitReason};

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

/// Everything that the decision depends on.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// Where it leads.
    pub direction: Direction,
    /// Whether both stores were kept aside.
    pub is_backed_up: bool,
    /// Both stores, or why they cannot be read.
    pub stores: Result<StoresView, String>,
    /// Why the conversion went back by itself, or by somebody's hand, if it did.
    pub taken_back: Option<String>,
    /// The `ConfigMap`; `None` where none is to be written.
    pub configuration: Option<Says>,
    /// The `DaemonSet`.
    pub daemon_set: DaemonSetView,
    /// calico-node on every node, in order.
    pub nodes: &'facts [NodeView],
    /// The controllers; `None` where there are none.
    pub controllers: Option<ControllersView>,
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

/// Chooses the next step.
pub fn decide(view: &View<'_>, policy: &Policy) -> Next {
    let stores = match &view.stores {
        Ok(stores) => stores,
        Err(message) => {
            return Next {
                stage: None,
                decision: Decision::Wait(waits(WaitReason::Datastore, message.clone())),
            };
        }
    };
    if stores.is_past_the_point_of_no_return() {
        return finish(view, stores, policy);
    }
    match view.direction {
        Direction::Back => back(view, stores, policy),
        Direction::There => {
            let next = there(view, stores, policy);
            match (&next.decision, &policy.hold) {
                (Decision::Run(step), Some(hold)) if is_held(step) => Next {
                    decision: Decision::Wait(hold.clone()),
                    ..next
                },
                (Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_), _) => next,
            }
        }
    }
}

/// Whether a step is not made while somebody holds it. Who turns back is never held.
fn is_held(step: &Step) -> bool {
    match step {
        Step::TurnBack(_) | Step::StopWork => false,
        Step::Work(work) => !work.is_back(),
        Step::BackUp
        | Step::StopControllers
        | Step::WriteConfiguration(_)
        | Step::WriteDaemonSet(_)
        | Step::Restart(_)
        | Step::WriteControllers(_)
        | Step::WriteStrategy(_)
        | Step::Finish => true,
    }
}

fn there(view: &View<'_>, stores: &StoresView, policy: &Policy) -> Next {
    if let Some(why) = turns_back(view, stores) {
        return run(Stage::Open, Step::TurnBack(why));
    }
    if let Some(drift) = drift(view) {
        return drift;
    }
    let converted = || is_to_convert(stores).then(|| working(view, Stage::Convert, StoreWork::Convert));
    prepared(view, stores)
        .or_else(converted)
        .or_else(|| calico_node(view, Calico::V3, policy))
        .or_else(|| controllers(view, Calico::V3))
        .unwrap_or_else(|| working(view, Stage::Open, StoreWork::Complete))
}

/// Why it does not go on there.
fn turns_back(view: &View<'_>, stores: &StoresView) -> Option<String> {
    if let Some(why) = &view.taken_back {
        return Some(why.clone());
    }
    if stores.phase == Some(Phase::Aborting) {
        return Some("somebody takes the conversion back".to_owned());
    }
    let abort_at = stores.abort_at.filter(|_| stores.is_paused())?;
    (abort_at <= view.now).then(|| format!("the pause was to end by {abort_at}"))
}

/// What somebody else has changed.
fn drift(view: &View<'_>) -> Option<Next> {
    let other = |says: Says| says == Says::Other;
    let object = if other(view.daemon_set.template) {
        "the pod template of the DaemonSet of calico-node"
    } else if view.configuration.is_some_and(other) {
        "the ConfigMap of calico-node"
    } else if view
        .controllers
        .is_some_and(|controllers| other(controllers.template))
    {
        "the pod template of calico-kube-controllers"
    } else {
        return None;
    };
    let message = format!(
        "{object} is neither what it was before nor what the manifest of v3 says: somebody else has changed it. Change it back \
         (`kubectl rollout history` and `undo`), or take everything back with `kubectl replumb rollback --all`, which writes what was there before"
    );
    Some(halt(None, HaltReason::Drift, message))
}

/// Both stores are kept aside, and nobody writes to v2 but calico-node.
fn prepared(view: &View<'_>, stores: &StoresView) -> Option<Next> {
    if !is_to_convert(stores) {
        return None;
    }
    if !view.is_backed_up {
        return Some(run(Stage::Prepare, Step::BackUp));
    }
    stopped(view, Stage::Prepare)
}

fn is_to_convert(stores: &StoresView) -> bool {
    match stores.phase {
        None | Some(Phase::Aborted | Phase::Pausing | Phase::Paused | Phase::Writing | Phase::Written) => {
            true
        }
        Some(Phase::Verified | Phase::Completing | Phase::Completed | Phase::Aborting) => false,
    }
}

/// No pod of the controllers runs.
fn stopped(view: &View<'_>, stage: Stage) -> Option<Next> {
    let controllers = view.controllers?;
    if !controllers.is_stopped {
        return Some(run(stage, Step::StopControllers));
    }
    (controllers.pods > 0).then(|| {
        let message = format!("{} pods of calico-kube-controllers are ending", controllers.pods);
        wait(stage, WaitReason::CalicoControllers, message)
    })
}

/// Every calico-node is of this Calico.
fn calico_node(view: &View<'_>, calico: Calico, policy: &Policy) -> Option<Next> {
    if view.configuration.is_some_and(|says| !says.is(calico)) {
        return Some(run(Stage::Nodes, Step::WriteConfiguration(calico)));
    }
    // Where no pod is to be made again, it may roll as it likes.
    let is_to_be_held = nodes::is_to_change(view.nodes, calico) && !view.daemon_set.is_held;
    if !view.daemon_set.template.is(calico) || is_to_be_held {
        return Some(run(Stage::Nodes, Step::WriteDaemonSet(calico)));
    }
    on_every_node(view, calico, policy)
}

fn on_every_node(view: &View<'_>, calico: Calico, policy: &Policy) -> Option<Next> {
    let next = nodes::next(view.nodes, calico, policy.at_once).map(|decision| match decision {
        Decision::Run(pods) => run(Stage::Nodes, Step::Restart(pods)),
        Decision::Wait(found) => Next {
            stage: Some(Stage::Nodes),
            decision: Decision::Wait(found),
        },
        Decision::Settled => Next {
            stage: Some(Stage::Nodes),
            decision: Decision::Settled,
        },
        Decision::Halt(found) => Next {
            stage: Some(Stage::Nodes),
            decision: Decision::Halt(found),
        },
    });
    next.or_else(|| {
        let missing = view.daemon_set.missing;
        (missing > 0).then(|| {
            let message = format!("the DaemonSet of calico-node has {missing} pods less than it has to have");
            wait(Stage::Nodes, WaitReason::DaemonSetRollout, message)
        })
    })
}

/// The controllers are of this Calico, as many as there have to be.
fn controllers(view: &View<'_>, calico: Calico) -> Option<Next> {
    let controllers = view.controllers?;
    let is_written = controllers.template.is(calico) && controllers.is_whole;
    (!is_written).then(|| run(Stage::Controllers, Step::WriteControllers(calico)))
}

fn back(view: &View<'_>, stores: &StoresView, policy: &Policy) -> Next {
    if stores.is_paused() {
        let nodes_of_v3 = !view.daemon_set.template.is(Calico::V2) || nodes::may_run_v3(view.nodes);
        return working(view, Stage::Open, StoreWork::TakeBack { nodes_of_v3 });
    }
    if matches!(view.work, Work::Busy { work, .. } if !work.is_back()) {
        return run(Stage::Open, Step::StopWork);
    }
    if let ReadyV2::Paused(value) = &stores.v2 {
        let message = format!(
            "/calico/v1/Ready in etcd v2 is {value:?}, and no conversion of ours has paused it: no pod gets a network. `kubectl replumb datastore \
             abort` sets it to true"
        );
        return halt(Some(Stage::Open), HaltReason::DatastoreRefused, message);
    }
    let is_of_v3 = |controllers: &ControllersView| !controllers.template.is(Calico::V2);
    let stops = view
        .controllers
        .as_ref()
        .is_some_and(is_of_v3)
        .then(|| stopped(view, Stage::Controllers));
    let restored = || {
        let is_left = stores.phase == Some(Phase::Aborting);
        is_left.then(|| working(view, Stage::Convert, StoreWork::TakeBack { nodes_of_v3: false }))
    };
    stops
        .flatten()
        .or_else(|| calico_node(view, Calico::V2, policy))
        .or_else(restored)
        .or_else(|| controllers(view, Calico::V2))
        .or_else(|| cleaned(view, Calico::V2))
        .unwrap_or_else(|| run(Stage::CleanUp, Step::Finish))
}

/// v3 is open.
fn finish(view: &View<'_>, stores: &StoresView, policy: &Policy) -> Next {
    match stores.phase {
        Some(Phase::Completing) => return working(view, Stage::Open, StoreWork::Complete),
        Some(Phase::Completed) if stores.v2 != ReadyV2::Open => {}
        other => {
            let record = other.map_or_else(
                || "there is no record of a conversion".to_owned(),
                |phase| format!("the conversion is in phase {phase}"),
            );
            let message = format!(
                "Calico is let work with etcd v3 (datastoreReady is true), {record}, and /calico/v1/Ready in etcd v2 is {}: somebody else has \
                 turned a flag. Nobody but a person can tell which store is right: `kubectl replumb datastore status` shows both",
                match &stores.v2 {
                    ReadyV2::Missing => "missing",
                    ReadyV2::Open => "true",
                    ReadyV2::Paused(value) => value,
                }
            );
            return halt(Some(Stage::Open), HaltReason::DatastoreRefused, message);
        }
    }
    if let Some(drift) = drift(view) {
        return drift;
    }
    on_every_node(view, Calico::V3, policy)
        .or_else(|| controllers(view, Calico::V3))
        .or_else(|| cleaned(view, Calico::V3))
        .or_else(|| {
            let message = view.without_network.clone()?;
            Some(wait(Stage::CleanUp, WaitReason::PodsWithoutNetwork, message))
        })
        .unwrap_or_else(|| run(Stage::CleanUp, Step::Finish))
}

/// The `DaemonSet` rolls its pods by itself again, and the controllers are there.
fn cleaned(view: &View<'_>, calico: Calico) -> Option<Next> {
    if !view.daemon_set.strategy.is(calico) {
        return Some(run(Stage::CleanUp, Step::WriteStrategy(calico)));
    }
    let controllers = view.controllers?;
    (!controllers.is_available).then(|| {
        let message = "calico-kube-controllers is not Available".to_owned();
        wait(Stage::CleanUp, WaitReason::CalicoControllers, message)
    })
}

/// This is being done on the stores, or begun.
fn working(view: &View<'_>, stage: Stage, wanted: StoreWork) -> Next {
    let is_wanted = |work: StoreWork| work.is_back() == wanted.is_back();
    match view.work {
        Work::Busy { work, .. } if !is_wanted(*work) => run(stage, Step::StopWork),
        Work::Busy {
            refused: Some(why), ..
        } => halt(Some(stage), HaltReason::DatastoreRefused, why.clone()),
        Work::Busy { said, .. } => wait(stage, WaitReason::Datastore, said.clone()),
        Work::Failed {
            work,
            message,
            needs_a_person,
        } if is_wanted(*work) => {
            if *needs_a_person {
                halt(Some(stage), HaltReason::DatastoreRefused, message.clone())
            } else {
                wait(stage, WaitReason::Datastore, message.clone())
            }
        }
        Work::Idle | Work::Failed { .. } => run(stage, Step::Work(wanted)),
    }
}

fn run(stage: Stage, step: Step) -> Next {
    Next {
        stage: Some(stage),
        decision: Decision::Run(step),
    }
}

fn halt(stage: Option<Stage>, reason: HaltReason, message: String) -> Next {
    Next {
        stage,
        decision: Decision::Halt(Halt { reason, message }),
    }
}

fn wait(stage: Stage, reason: WaitReason, message: String) -> Next {
    Next {
        stage: Some(stage),
        decision: Decision::Wait(waits(reason, message)),
    }
}

fn waits(reason: WaitReason, message: String) -> Wait {
    Wait {
        reason,
        message,
        until: None,
    }
}
