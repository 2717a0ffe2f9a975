//! The next step of the whole conversion. Level-triggered: the same facts give the same step, whatever was decided before, so
//! that a restart or a crash changes nothing.
//!
//! Forward: the controllers stop writing to v2, Calico is paused, all data is written to v3, every calico-node and the
//! controllers change to v3, the controllers write their objects, and v3 is opened. Rollback, before v3 is open: v2 is opened at
//! once, because no new pod gets a network before; calico-node returns to v2; v3 is restored only when no calico-node of v3 can
//! run any more, because a calico-node of v3 opens an empty v3.

mod next;
mod programs;

use jiff::Timestamp;

use super::calico::{Calico, Content};
use super::step::{Stage, Step, StoreWork};
use super::view::{ControllersWork, Next, Policy, StoresView, View, Work};
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use engine::decision::{Decision, Direction, HaltReason, WaitReason};
use next::{halt, run, wait, waits, working};
use programs::{
    calico_node, cleaned, configured, controllers, missing_object, not_ready_nodes, on_every_node, stopped,
};

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
///
/// # Examples
///
/// ```
/// use calico_datastore::cluster::calico::Content;
/// use calico_datastore::cluster::decide::decide;
/// use calico_datastore::cluster::step::{Stage, Step, StoreWork};
/// use calico_datastore::cluster::view::{ControllersWork, DaemonSetView, Policy, StoresView, View, Work};
/// use calico_datastore::run::decide::{ReadyV2, ReadyV3};
/// use engine::decision::{Decision, Direction};
/// use jiff::Timestamp;
///
/// // Calico works with v2, and no conversion has begun.
/// let stores = StoresView {
///     phase: None,
///     v2: ReadyV2::Open,
///     v3: ReadyV3::Missing,
///     abort_at: None,
///     nodes_of_v3: false,
///     is_ours: true,
/// };
/// let view = View {
///     direction: Direction::Forward,
///     is_backed_up: false,
///     stores: Ok(stores),
///     configuration: None,
///     daemon_set: DaemonSetView {
///         template: Content::V2,
///         strategy: Content::V2,
///         is_held: false,
///         missing: 0,
///     },
///     nodes: &[],
///     controllers: None,
///     controllers_work: ControllersWork::Complete,
///     work: &Work::Idle,
///     without_network: None,
///     now: Timestamp::UNIX_EPOCH,
/// };
/// let policy = Policy { at_once: 1, hold: None };
/// let next = decide(&view, &policy);
/// assert_eq!((next.stage, next.decision), (Some(Stage::Prepare), Decision::Run(Step::BackUp)));
/// let next = decide(&View { is_backed_up: true, ..view }, &policy);
/// assert_eq!(next.decision, Decision::Run(Step::Work(StoreWork::Convert)));
/// ```
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
                 it back; status.savedState has both contents"
            ),
            Content::V2 | Content::V3 | Content::Both => return None,
        };
        Some(halt(None, HaltReason::Drift, message))
    })
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
