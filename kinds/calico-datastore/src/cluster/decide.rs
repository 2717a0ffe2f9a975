//! The next step of the whole conversion. Level-triggered: the same facts give the same step, whatever was decided before, so
//! that a restart or a crash changes nothing.
//!
//! Forward: the controllers stop writing to v2, Calico is paused, all data is written to v3, every calico-node and the
//! controllers change to v3, the controllers write their objects, and v3 is opened. Rollback, before v3 is open: v2 is opened at
//! once, because no new pod gets a network before; calico-node returns to v2; v3 is restored only when no calico-node of v3 can
//! run any more, because a calico-node of v3 opens an empty v3.

use jiff::Timestamp;

use super::calico::{Calico, Content};
use super::nodes;
use super::step::{Stage, Step, StoreWork};
use super::view::{ControllersView, ControllersWork, Next, Policy, StoresView, View, Work};
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use engine::decision::{Decision, Direction, Halt, HaltReason, Wait, WaitReason};

/// The next step that does not depend on the cluster: v2 is opened again before anything else is read. `None` when this is not
/// the next step.
pub fn urgent(direction: Direction, stores: &StoresView, work: &Work, now: Timestamp) -> Option<Next> {
    if stores.is_past_the_point_of_no_return() {
        return None;
    }
    match direction {
        Direction::Forward => rollback_reason(stores, now).map(|why| run(Stage::Open, Step::RollBack(why))),
        // v3 is restored later, when no program of v3 runs.
        Direction::Rollback if stores.is_paused() => {
            Some(working(work, Stage::Open, StoreWork::Abort { nodes_of_v3: true }))
        }
        Direction::Rollback => None,
    }
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
    if let Some(next) = urgent(view.direction, stores, view.work, view.now) {
        return next;
    }
    if stores.is_past_the_point_of_no_return() {
        return finish(view, stores, policy);
    }
    match view.direction {
        Direction::Rollback => rollback(view, stores, policy),
        Direction::Forward => {
            let next = forward(view, stores, policy);
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

/// Whether a hold of the migration prevents this step. Steps of a rollback are never held.
fn is_held(step: &Step) -> bool {
    match step {
        Step::RollBack(_) | Step::StopWork => false,
        Step::Work(work) => !work.is_rollback(),
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

fn forward(view: &View<'_>, stores: &StoresView, policy: &Policy) -> Next {
    if let Some(drift) = drift(view) {
        return drift;
    }
    let converted = || is_to_convert(stores).then(|| working(view.work, Stage::Convert, StoreWork::Convert));
    prepared(view)
        .or_else(converted)
        .or_else(|| closed(stores))
        .or_else(|| announced(view, stores))
        .or_else(|| calico_node(view, Calico::V3, policy))
        .or_else(|| controllers(view, Calico::V3, Stage::Controllers))
        .or_else(|| written_by_controllers(view, stores))
        .unwrap_or_else(|| working(view.work, Stage::Open, StoreWork::Complete))
}

/// Waits until the controllers have written the objects that are not converted. With v3 open before that, pods lose new
/// connections. Once the opening of v3 is announced, it happens.
fn written_by_controllers(view: &View<'_>, stores: &StoresView) -> Option<Next> {
    if stores.phase != Some(Phase::Verified) {
        return None;
    }
    match &view.controllers_work {
        ControllersWork::Complete => None,
        ControllersWork::Missing(left) => {
            let pod = match view.controllers {
                Some(controllers) if controllers.is_available => "its pod is Available: check its log",
                Some(_) => "its pod is not Available yet: if this lasts, `kubectl describe` the pod",
                None => "it does not exist: complete by hand, or roll back",
            };
            let message = format!(
                "calico-kube-controllers of v3 has not yet written to etcd v3: {left} ({pod}). Before that, v3 is not opened: \
                 Felix of v3 would drop new connections of pods, and missing policies would restrict nothing"
            );
            Some(wait(Stage::Controllers, WaitReason::CalicoControllers, message))
        }
        ControllersWork::Unknown(why) => {
            let message = format!(
                "calico-kube-controllers of v3: unknown whether it has written all its objects: {why}"
            );
            Some(wait(Stage::Controllers, WaitReason::CalicoControllers, message))
        }
    }
}

/// Reason for an automatic rollback, if there is one.
fn rollback_reason(stores: &StoresView, now: Timestamp) -> Option<String> {
    if stores.phase == Some(Phase::Aborting) {
        return Some("the conversion is aborted in the stores".to_owned());
    }
    let abort_at = stores.abort_at.filter(|_| stores.is_paused())?;
    (abort_at <= now).then(|| format!("the pause had to end by {abort_at}"))
}

/// A change of an object by another program, which halts the migration.
fn drift(view: &View<'_>) -> Option<Next> {
    let objects = [
        (
            "the pod template of the DaemonSet of calico-node",
            Some(view.daemon_set.template),
        ),
        ("the ConfigMap of calico-node", view.configuration),
        (
            "the pod template of calico-kube-controllers",
            view.controllers.map(|controllers| controllers.template),
        ),
    ];
    objects.into_iter().find_map(|(object, says)| {
        let message = match says? {
            Content::Missing => missing_object(object),
            Content::Other => format!(
                "{object} has neither its former content nor that of the manifest of v3: another program has changed it. Change \
                 it back; status.before has both contents"
            ),
            Content::V2 | Content::V3 | Content::Both => return None,
        };
        Some(halt(None, HaltReason::Drift, message))
    })
}

fn missing_object(object: &str) -> String {
    format!(
        "{object} is missing: its object was deleted. Apply it again, of v2 or v3; status.before has the former content"
    )
}

/// Backs up both stores, and stops the controllers of v2, so that only calico-node writes to v2.
fn prepared(view: &View<'_>) -> Option<Next> {
    if !view.is_backed_up {
        return Some(run(Stage::Prepare, Step::BackUp));
    }
    let controllers = view.controllers?;
    if controllers.template.is(Calico::V3) {
        return None;
    }
    stopped(controllers, Stage::Prepare)
}

fn is_to_convert(stores: &StoresView) -> bool {
    match stores.phase {
        None | Some(Phase::Aborted | Phase::Pausing | Phase::Paused | Phase::Writing | Phase::Written) => {
            true
        }
        Some(Phase::Verified | Phase::Completing | Phase::Completed | Phase::Aborting) => false,
    }
}

/// Stops the controllers, and waits for the end of their pods.
fn stopped(controllers: ControllersView, stage: Stage) -> Option<Next> {
    if !controllers.is_stopped {
        return Some(run(stage, Step::StopControllers));
    }
    (controllers.pods > 0).then(|| {
        let message = format!(
            "calico-kube-controllers: pods still terminating: {}",
            controllers.pods
        );
        wait(stage, WaitReason::CalicoControllers, message)
    })
}

/// Halts unless v3 is as this migration has written it, and closed: a calico-node of v3 that finds no data opens v3.
fn closed(stores: &StoresView) -> Option<Next> {
    let (found, hint) = match (stores.phase, &stores.v2, stores.v3) {
        _ if !stores.is_ours => (
            "the record in etcd v3 belongs to another conversion".to_owned(),
            "`kubectl replumb datastore status` shows it, `kubectl replumb datastore abort` ends it",
        ),
        (_, ReadyV2::Open | ReadyV2::Missing, _) => (
            "/calico/v1/Ready in etcd v2 is no longer false".to_owned(),
            "Find out which program has set it, then `kubectl replumb rollback --all`, and start again",
        ),
        (_, ReadyV2::Paused(_), ReadyV3::Missing) => (
            "ClusterInformation is missing in etcd v3".to_owned(),
            "Find out which program has deleted it, then `kubectl replumb rollback --all`, and start again",
        ),
        (Some(Phase::Completed), ReadyV2::Paused(_), ReadyV3::Paused | ReadyV3::Open) => (
            "the conversion was completed, but etcd v3 was closed later".to_owned(),
            "`kubectl replumb datastore complete` opens it again",
        ),
        (_, ReadyV2::Paused(_), ReadyV3::Paused | ReadyV3::Open) => return None,
    };
    let message = format!(
        "{found}: a calico-node of v3 that starts now could open etcd v3 in addition to v2, so none is started. {hint}"
    );
    Some(halt(Some(Stage::Nodes), HaltReason::DatastoreRefused, message))
}

/// Records in the store that calico-nodes of v3 may run, for an abort by hand.
fn announced(view: &View<'_>, stores: &StoresView) -> Option<Next> {
    let is_to_be = stores.phase == Some(Phase::Verified) && !stores.nodes_of_v3;
    is_to_be.then(|| working(view.work, Stage::Nodes, StoreWork::AnnounceNodes))
}

/// Changes every calico-node to this version.
fn calico_node(view: &View<'_>, calico: Calico, policy: &Policy) -> Option<Next> {
    configured(view, calico).or_else(|| on_every_node(view, calico, policy))
}

/// Changes the objects of calico-node to this version.
fn configured(view: &View<'_>, calico: Calico) -> Option<Next> {
    match view.configuration {
        Some(Content::Missing) => {
            return Some(halt(
                Some(Stage::Nodes),
                HaltReason::Drift,
                missing_object("the ConfigMap of calico-node"),
            ));
        }
        Some(says) if !says.is(calico) => return Some(run(Stage::Nodes, Step::WriteConfiguration(calico))),
        Some(_) | None => {}
    }
    // When no pod has to change, the DaemonSet may roll with its own strategy.
    let is_to_be_held = nodes::is_to_change(view.nodes, calico) && !view.daemon_set.is_held;
    if !view.daemon_set.template.is(calico) || is_to_be_held {
        return Some(run(Stage::Nodes, Step::WriteDaemonSet(calico)));
    }
    None
}

fn on_every_node(view: &View<'_>, calico: Calico, policy: &Policy) -> Option<Next> {
    match nodes::next(view.nodes, calico, policy.at_once) {
        nodes::Next::Restart(pods) => return Some(run(Stage::Nodes, Step::Restart(pods))),
        nodes::Next::Wait(found) => {
            return Some(Next {
                stage: Some(Stage::Nodes),
                decision: Decision::Wait(found),
            });
        }
        nodes::Next::NotReady(_) | nodes::Next::Done => {}
    }
    let missing = view.daemon_set.missing;
    (missing > 0).then(|| {
        let message = format!("the DaemonSet of calico-node lacks pods: {missing}");
        wait(Stage::Nodes, WaitReason::DaemonSetRollout, message)
    })
}

/// Waits for NotReady nodes: they do not delay the opening of a store, but the end of the migration.
fn not_ready_nodes(view: &View<'_>, calico: Calico, policy: &Policy) -> Option<Next> {
    match nodes::next(view.nodes, calico, policy.at_once) {
        nodes::Next::NotReady(found) => Some(Next {
            stage: Some(Stage::Nodes),
            decision: Decision::Wait(found),
        }),
        nodes::Next::Restart(_) | nodes::Next::Wait(_) | nodes::Next::Done => None,
    }
}

/// Changes the controllers to this version, with their number of replicas.
fn controllers(view: &View<'_>, calico: Calico, stage: Stage) -> Option<Next> {
    let controllers = view.controllers?;
    if controllers.template == Content::Missing {
        return Some(halt(
            Some(stage),
            HaltReason::Drift,
            missing_object("calico-kube-controllers"),
        ));
    }
    let is_written = controllers.template.is(calico) && controllers.is_scaled;
    (!is_written).then(|| run(stage, Step::WriteControllers(calico)))
}

fn rollback(view: &View<'_>, stores: &StoresView, policy: &Policy) -> Next {
    if matches!(view.work, Work::Busy { work, .. } if !work.is_rollback()) {
        return run(Stage::Open, Step::StopWork);
    }
    if let ReadyV2::Paused(value) = &stores.v2 {
        let hint = match stores.phase {
            Some(Phase::Completed) => {
                "the conversion was completed, but etcd v3 was closed later: `kubectl replumb datastore complete` opens it again"
            }
            _ => {
                "no conversion of this migration has paused Calico: `kubectl replumb datastore abort` sets it to true"
            }
        };
        let message =
            format!("/calico/v1/Ready in etcd v2 is {value:?}, and no new pod gets a network: {hint}");
        return halt(Some(Stage::Open), HaltReason::DatastoreRefused, message);
    }
    let of_v3 = view.controllers.filter(|controllers| {
        !controllers.template.is(Calico::V2) && controllers.template != Content::Missing
    });
    let is_aborting = stores.phase == Some(Phase::Aborting);
    let restored =
        || is_aborting.then(|| working(view.work, Stage::Convert, StoreWork::Abort { nodes_of_v3: false }));
    of_v3
        .and_then(|controllers| stopped(controllers, Stage::Controllers))
        .or_else(|| configured(view, Calico::V2))
        // The controllers come before the nodes: a missing node must not keep policies from the others.
        .or_else(|| controllers(view, Calico::V2, Stage::Controllers))
        .or_else(|| on_every_node(view, Calico::V2, policy))
        .or_else(|| not_ready_nodes(view, Calico::V2, policy))
        .or_else(restored)
        .or_else(|| cleaned(view, Calico::V2))
        .unwrap_or_else(|| run(Stage::CleanUp, Step::Finish))
}

/// The next step after the opening of v3.
fn finish(view: &View<'_>, stores: &StoresView, policy: &Policy) -> Next {
    match stores.phase {
        Some(Phase::Completing) => return working(view.work, Stage::Open, StoreWork::Complete),
        Some(Phase::Completed) if stores.v2 != ReadyV2::Open => {}
        other => {
            let record = other.map_or_else(
                || "there is no record of a conversion".to_owned(),
                |phase| format!("the conversion is in phase {phase}"),
            );
            let message = format!(
                "etcd v3 is open (datastoreReady is true), {record}, and /calico/v1/Ready in etcd v2 is {}: another program has \
                 changed a flag. Only you can decide which store is right: `kubectl replumb datastore status` shows both",
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
    calico_node(view, Calico::V3, policy)
        .or_else(|| controllers(view, Calico::V3, Stage::Controllers))
        .or_else(|| cleaned(view, Calico::V3))
        .or_else(|| not_ready_nodes(view, Calico::V3, policy))
        .or_else(|| {
            let message = view.without_network.clone()?;
            Some(wait(Stage::CleanUp, WaitReason::PodsWithoutNetwork, message))
        })
        .unwrap_or_else(|| run(Stage::CleanUp, Step::Finish))
}

/// Gives the `DaemonSet` its own update strategy again, and waits for the controllers.
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

/// Starts this work on the stores, or waits for it.
fn working(work: &Work, stage: Stage, wanted: StoreWork) -> Next {
    // Two kinds of abort count as the same: the next run decides how far it restores.
    let is_wanted = |work: StoreWork| work == wanted || (work.is_rollback() && wanted.is_rollback());
    match work {
        Work::Busy { work, .. } if !is_wanted(*work) => run(stage, Step::StopWork),
        Work::Busy {
            refused: Some(why), ..
        } => halt(Some(stage), HaltReason::DatastoreRefused, why.clone()),
        Work::Busy { progress: said, .. } => wait(stage, WaitReason::Datastore, said.clone()),
        Work::Failed {
            work,
            message,
            needs_user: needs_a_person,
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
