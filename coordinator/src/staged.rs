//! What the kinds with stages share in a pass: the gate before a step, the outcome of a decision, the history of stages, the end.
//!
//! A pass of such a kind is: observe → view → decide (pure, in the crate of the kind) → apply one step → report. A kind writes
//! its own `observe`, `view` and `apply`; the other parts are here. A rollout by node shares the end.

use std::collections::BTreeMap;

use api::migration::{CurrentStage, Direction, FinishedStage, MigrationPhase};
use api::{Migration, MigrationStatus};
use engine::decision::{Decision, Wait, WaitReason};
use engine::reason::BlockReason;
use engine::traffic::Generation;
use engine::traffic::pods::PodDecision;
use jiff::Timestamp;

use crate::context::Context;
use crate::events::EventLevel;
use crate::facts;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::snapshot::Snapshot;
use crate::stop::{self, Stop};
use crate::traffic::{self, Fates, Network, Networks, TrafficResult};
use crate::waits::wait;
use crate::write::WriteError;

/// Most stages in the history: after many changes of direction, the first ones are not needed.
const MOST_STAGES: usize = 60;

/// Why no step may run now.
pub(crate) struct Gate {
    /// The wait that the decision reports.
    pub(crate) hold: Option<Wait>,
    /// The halt that needs a user.
    stop: Option<Stop>,
}

impl Gate {
    /// The gate of this pass: lost probes, a pause by the user, or `watch`, the wait for traffic. `paused` is what a pause means
    /// for this kind.
    pub(crate) async fn of(
        context: &Context,
        migration: &Migration,
        watched: &TrafficResult,
        status: &mut MigrationStatus,
        now: Timestamp,
        paused: impl FnOnce() -> String,
        watch: impl FnOnce(&MigrationStatus) -> Option<Wait>,
    ) -> Self {
        let lossy = traffic::stop(context, migration, watched, status, now).await;
        let stop = stop::stop(None, status, lossy);
        let hold = if let Some(stop) = &stop {
            Some(stop.hold())
        } else if status.paused {
            Some(Wait {
                reason: WaitReason::Paused,
                message: format!(
                    "paused: {}. Continue with `kubectl replumb resume`, or roll back with `kubectl replumb rollback --all`",
                    paused()
                ),
                until: None,
            })
        } else {
            watch(status)
        };
        Self { hold, stop }
    }

    /// Halts the migration if the gate needs a user, and the decision has neither halted nor completed it.
    pub(crate) fn halt(&self, status: &mut MigrationStatus) {
        if let Some(stop) = &self.stop
            && status.phase != MigrationPhase::Halted
            && !status.phase.is_over()
        {
            stop::halt(status, stop);
        }
    }
}

/// Writes a wait or a halt to the status. Returns the step to run, if that is the decision.
pub(crate) fn report<Step>(decision: Decision<Step>, status: &mut MigrationStatus) -> Option<Step> {
    match decision {
        Decision::Run(step) => return Some(step),
        Decision::Wait(found) => wait(status, found.reason, found.message),
        Decision::Halt(halt) => {
            status.phase = MigrationPhase::Halted;
            status.set_reason(halt.reason, halt.message);
        }
        Decision::Settled => {}
    }
    None
}

/// Reports that a part of the status is missing, after an edit by hand, or an update of replumb that cannot read the status of
/// another version. `advice` follows the message.
pub(crate) fn settings_gone(status: &mut MigrationStatus, missing: &str, advice: &str) {
    let message = format!(
        "{missing} is missing, so the saved settings are unknown. No changes will be made. Install the version of replumb that \
         started the migration, or restore {missing} from a backup of the Migration{advice}"
    );
    status.set_reason(BlockReason::SettingsGone, message);
}

/// Records the current stage; a finished one is added to the history.
pub(crate) fn enter<Stage: Copy + PartialEq>(
    current: &mut Option<CurrentStage<Stage>>,
    history: &mut Vec<FinishedStage<Stage>>,
    stage: Stage,
    direction: Direction,
    now: Timestamp,
) {
    let is_same = |current: &CurrentStage<Stage>| current.name == stage && current.direction == direction;
    if current.as_ref().is_some_and(is_same) {
        return;
    }
    leave(current, history, now);
    *current = Some(CurrentStage {
        name: stage,
        direction,
        since: now,
    });
}

/// Records the end of the stage.
pub(crate) fn leave<Stage>(
    current: &mut Option<CurrentStage<Stage>>,
    history: &mut Vec<FinishedStage<Stage>>,
    now: Timestamp,
) {
    if let Some(over) = current.take() {
        history.push(FinishedStage {
            name: over.name,
            direction: over.direction,
            started_at: over.since,
            finished_at: now,
        });
        let surplus = history.len().saturating_sub(MOST_STAGES);
        history.drain(..surplus);
    }
}

/// Ends the traffic pods of the migration. Returns whether none is left; until then the status waits.
pub(crate) async fn end_traffic(
    context: &Context,
    memory: &mut Memory,
    snapshot: &Snapshot,
    status: &mut MigrationStatus,
) -> Result<bool, WriteError> {
    traffic::end(context, &mut memory.traffic, snapshot, status).await?;
    match traffic::ending(&memory.traffic, snapshot) {
        Some(held) => {
            wait(status, held.reason, held.message);
            Ok(false)
        }
        None => Ok(true),
    }
}

/// Sets the final phase, and publishes an event with the message.
pub(crate) async fn complete(
    context: &Context,
    migration: &Migration,
    direction: Direction,
    now: Timestamp,
    message: String,
    status: &mut MigrationStatus,
) {
    status.phase = match direction {
        Direction::Forward => MigrationPhase::Completed,
        Direction::Rollback => MigrationPhase::RolledBack,
    };
    status.completed_at = Some(now);
    status.clear_reason(message);
    context
        .events
        .migration(migration, EventLevel::Normal, status.phase, &status.message)
        .await;
}

/// Keeps the traffic pods of a kind in which pods have one network and stay on it, and reads what agents report about them. Once
/// only the clean-up remains (`is_over`), the kind needs none.
pub(crate) async fn watch_one_network(
    context: &Context,
    memory: &mut Memory,
    migration: &Migration,
    snapshot: &Snapshot,
    is_over: bool,
    status: &mut MigrationStatus,
) -> Result<TrafficResult, PassError> {
    let (watched, asks) = traffic::watch(
        context,
        &mut memory.traffic,
        migration,
        &one_network(),
        fates_of_one_network(snapshot, is_over),
        snapshot,
        status,
    )
    .await?;
    asks.write(context).await?;
    Ok(watched)
}

/// The traffic pods of a kind in which pods have one network and stay on it: one for each node that can run one. None once only
/// the clean-up remains.
fn fates_of_one_network(snapshot: &Snapshot, is_over: bool) -> Fates<'_> {
    let mut fates = BTreeMap::new();
    if is_over {
        return fates;
    }
    for name in snapshot.node_migrations.keys() {
        let Some(node) = snapshot.nodes.get(name) else {
            continue;
        };
        let is_usable = facts::nodes::is_ready(node) && snapshot.agent_ready(name);
        let fate = if is_usable {
            PodDecision::Wanted
        } else {
            PodDecision::Kept
        };
        fates.insert((name.as_str(), Generation::Old), fate);
    }
    fates
}

/// The network of such a kind.
fn one_network() -> Networks {
    Networks {
        old: Network {
            name: "pods",
            annotations: BTreeMap::new(),
        },
        new: Network {
            name: "none",
            annotations: BTreeMap::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use api::migration::Stage;
    use engine::decision::{Halt, HaltReason};

    use super::*;

    #[test]
    fn each_stage_is_recorded_once() {
        let (mut current, mut history) = (None, Vec::new());
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).unwrap();
        for (second, stage) in [
            (0, Stage::Switch),
            (1, Stage::Move),
            (2, Stage::Move),
            (5, Stage::Verify),
        ] {
            enter(&mut current, &mut history, stage, Direction::Forward, at(second));
        }
        enter(
            &mut current,
            &mut history,
            Stage::Verify,
            Direction::Rollback,
            at(6),
        );
        leave(&mut current, &mut history, at(9));
        let history: Vec<(Stage, i64)> = history
            .iter()
            .map(|done| (done.name, (done.finished_at - done.started_at).get_seconds()))
            .collect();
        assert_eq!(
            history,
            [
                (Stage::Switch, 1),
                (Stage::Move, 4),
                (Stage::Verify, 1),
                (Stage::Verify, 3)
            ]
        );
        assert_eq!(current, None);
    }
    #[test]
    fn a_wait_and_a_halt_are_written_and_a_step_is_returned() {
        let mut status = MigrationStatus::default();
        let waits = Decision::<u8>::Wait(Wait {
            reason: WaitReason::AgentSilent,
            message: "node a".to_owned(),
            until: None,
        });
        assert_eq!(report(waits, &mut status), None);
        assert_eq!(
            (status.reason.as_str(), status.message.as_str()),
            ("AgentSilent", "node a")
        );
        assert_eq!(report(Decision::Run(7), &mut status), Some(7));
        status.clear_reason("written".to_owned());
        assert_eq!((status.reason.as_str(), status.message.as_str()), ("", "written"));
        let halts = Decision::<u8>::Halt(Halt {
            reason: HaltReason::DatastoreRefused,
            message: "keys are missing".to_owned(),
        });
        assert_eq!(report(halts, &mut status), None);
        assert_eq!(
            (status.phase, status.reason.as_str()),
            (MigrationPhase::Halted, "DatastoreRefused")
        );
    }
}
