//! One pass of a conversion in a cluster: the observed state gives a view, the view a decision, the decision one step. The stores come
//! first: another object that cannot be read or written does not keep Calico paused.

use api::migration::{AutomaticRollback, CalicoDatastoreStatus, Desired, Direction, MigrationPhase};
use api::{Migration, MigrationStatus};
use calico_datastore::cluster::calico::Calico;
use calico_datastore::cluster::decide::{decide, urgent};
use calico_datastore::cluster::step::{Stage, Step};
use calico_datastore::cluster::view::{Next, Policy};
use engine::decision::{Decision, WaitReason};
use jiff::Timestamp;
use kube::ResourceExt;

use super::ReadCache;
use super::apply::Outcome;
use super::observe::Observed;
use super::pods;
use super::saved::Saved;
use crate::cache::Cache;
use crate::context::Context;
use crate::events::EventLevel;
use crate::lifecycle::wait;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::write::WriteError;
use crate::{limits, stages, stop, traffic};

/// The inputs of one pass.
pub(super) struct Pass<'pass> {
    pub(super) context: &'pass Context,
    pub(super) cache: &'pass Cache,
    pub(super) migration: &'pass Migration,
    pub(super) saved: &'pass Saved,
    pub(super) snapshot: &'pass Snapshot,
    /// Whether only the clean-up of what replumb created for the migration remains.
    pub(super) is_over: bool,
    pub(super) now: Timestamp,
}

impl Pass<'_> {
    /// The direction. After a rollback without a command, the direction stays Back: another Migration converts the data again.
    pub(super) fn direction(&self, known: &CalicoDatastoreStatus) -> Direction {
        let has_turned = known.automatic_rollback.is_some();
        match self.migration.spec.desired {
            // Half a conversion is no state to stay in.
            Desired::Rollback | Desired::Abort => Direction::Rollback,
            Desired::Plan | Desired::Run | Desired::Pause if has_turned => Direction::Rollback,
            Desired::Plan | Desired::Run | Desired::Pause => Direction::Forward,
        }
    }
}

/// The phase of the Migration in this stage.
fn phase(stage: Stage, direction: Direction) -> MigrationPhase {
    match (direction, stage) {
        (Direction::Rollback, _) => MigrationPhase::RollingBack,
        (Direction::Forward, Stage::Prepare | Stage::Convert) => MigrationPhase::Preparing,
        (Direction::Forward, Stage::Nodes | Stage::Controllers) => MigrationPhase::Rolling,
        (Direction::Forward, Stage::Open | Stage::CleanUp) => MigrationPhase::Finishing,
    }
}

/// One pass of a started migration.
pub async fn advance(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    saved: &Saved,
    mut known: CalicoDatastoreStatus,
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    if status.phase.is_over() {
        return Ok(());
    }
    let snapshot = Snapshot::take(cache, &migration.name_any(), &context.namespace);
    let is_cleaning = known
        .stage
        .as_ref()
        .is_some_and(|stage| stage.name == Stage::CleanUp);
    let pass = Pass {
        context,
        cache,
        migration,
        saved,
        snapshot: &snapshot,
        is_over: is_cleaning,
        now: Timestamp::now(),
    };
    let stores = pass.stores(memory, &mut known).await;
    let work = memory.kinds.of::<ReadCache>().worker.state().await;
    if let Some(why) = memory.kinds.of::<ReadCache>().worker.take_rollback_reason()
        && pass.direction(&known) == Direction::Forward
    {
        known.automatic_rollback = Some(AutomaticRollback {
            at: pass.now,
            reason: why,
        });
    }
    pass.count(&mut known);
    let first = stores
        .as_ref()
        .ok()
        .and_then(|stores| urgent(pass.direction(&known), stores, &work, pass.now));
    if let Some(next) = first {
        let direction = pass.direction(&known);
        pass.enter(&next, direction, &mut known, status);
        match next.decision {
            Decision::Run(step) => {
                let made = pass.run_on_stores(&step, &mut known, memory).await;
                done(Ok(made), status)?;
            }
            other => report(other, status),
        }
        status.calico_datastore = Some(Box::new(known));
        return Ok(());
    }
    let adopted = super::adopt(context, cache, migration).await;
    let held = pass.traffic(memory, &known, adopted, status).await;
    let Some(observed) = pass.observe(&known).await? else {
        let message = format!(
            "DaemonSet {} was deleted. Apply it again (for v2 while Calico works with etcd v2), and the migration continues",
            known.settings.daemon_set.value
        );
        wait(status, WaitReason::DaemonSetRollout, message);
        status.calico_datastore = Some(Box::new(known));
        return Ok(());
    };
    let is_past = matches!(&stores, Ok(stores) if stores.is_past_the_point_of_no_return());
    let controllers = pass.controllers(&known, &observed);
    let controllers_work = pass
        .controllers_progress(memory, &known, &stores, controllers.as_ref())
        .await;
    let view = pass.view(&known, &observed, stores, controllers, controllers_work, &work);
    let policy = Policy {
        at_once: limits::rules(migration)
            .max_unavailable
            .resolve(observed.nodes.len()),
        hold: held.hold,
    };
    let next = decide(&view, &policy);
    let direction = if is_past {
        Direction::Forward
    } else {
        pass.direction(&known)
    };
    pass.enter(&next, direction, &mut known, status);
    progress(status, &observed, direction);
    match next.decision {
        Decision::Run(Step::Finish) => pass.finish(direction, memory, &mut known, status).await?,
        Decision::Run(step) => {
            let made = Box::pin(pass.run(&step, &mut known, memory, &observed)).await;
            done(made, status)?;
        }
        other => report(other, status),
    }
    // On the way back lost probes stop nothing.
    if let Some(stop) = held.stop
        && direction == Direction::Forward
        && status.phase != MigrationPhase::Halted
        && !status.phase.is_over()
    {
        stop::halt(status, &stop);
    }
    if is_past && pass.is_rollback_requested() && !status.phase.is_over() {
        status.message = format!(
            "{}. No rollback: the migration is past its point of no return and completes, because Calico works with etcd v3",
            status.message.trim_end_matches('.')
        );
    }
    status.calico_datastore = Some(Box::new(known));
    Ok(())
}

/// Writes the outcome of a step to the status. A refusal of the API server does not end with another pass.
fn done(made: Result<Outcome, WriteError>, status: &mut MigrationStatus) -> Result<(), WriteError> {
    match made {
        Ok(Outcome::Done(said)) => {
            status.reason = String::new();
            status.message = said;
        }
        Ok(Outcome::Waits(found)) => wait(status, found.reason, found.message),
        Err(error) => match error.refusal() {
            Some(why) => {
                let message = format!("{error}: refused by the API server: {why}");
                wait(status, WaitReason::CheckFailing, message);
            }
            None => return Err(error),
        },
    }
    Ok(())
}

/// Writes a wait or a halt to the status.
fn report(decision: Decision<Step>, status: &mut MigrationStatus) {
    match decision {
        Decision::Wait(found) => wait(status, found.reason, found.message),
        Decision::Halt(halt) => {
            status.phase = MigrationPhase::Halted;
            halt.reason.as_str().clone_into(&mut status.reason);
            status.message = halt.message;
        }
        Decision::Run(_) | Decision::Settled => {}
    }
}

fn progress(status: &mut MigrationStatus, observed: &Observed, direction: Direction) {
    let target = match direction {
        Direction::Forward => Calico::V3,
        Direction::Rollback => Calico::V2,
    };
    let done = observed.nodes.iter().filter(|node| node.is_done(target)).count();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    status.progress.text = format!("{done}/{} nodes", observed.nodes.len());
    status.progress.nodes = number(observed.nodes.len());
    status.progress.done = number(done);
}

impl Pass<'_> {
    /// Whether the user wants a rollback.
    fn is_rollback_requested(&self) -> bool {
        match self.migration.spec.desired {
            Desired::Rollback | Desired::Abort => true,
            Desired::Plan | Desired::Run | Desired::Pause => false,
        }
    }

    fn enter(
        &self,
        next: &Next,
        direction: Direction,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) {
        if let Some(stage) = next.stage {
            stages::enter(&mut known.stage, &mut known.history, stage, direction, self.now);
            status.phase = phase(stage, direction);
        }
    }

    /// Counts pods that wait for a network.
    fn count(&self, known: &mut CalicoDatastoreStatus) {
        let waiting = pods::without_network(self.cache);
        let count = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        known.pod_without_network = waiting.into_iter().next().map(|pod| pod.key);
        known.pods_without_network = count;
        if known.paused_since.is_some() {
            known.max_pods_without_network = known.max_pods_without_network.max(count);
        }
        let metrics = &self.context.metrics;
        metrics.pods_without_network.set(i64::from(count));
        metrics.calico_paused.set(i64::from(known.paused_since.is_some()));
    }
}

impl Pass<'_> {
    /// Deletes what replumb created for the migration, and sets the final phase.
    async fn finish(
        &self,
        direction: Direction,
        memory: &mut Memory,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        use crash_point::Edge;
        crash_point::reach(Step::Finish.name(), Edge::Announced, None).await;
        traffic::end(self.context, &mut memory.traffic, self.snapshot, status).await?;
        if let Some(held) = traffic::ending(&memory.traffic, self.snapshot) {
            wait(status, held.reason, held.message);
            return Ok(());
        }
        status.message = match direction {
            Direction::Forward => format!(
                "Calico works with etcd v3. Every node runs {}. etcd v2 is unchanged, except its Ready flag. Most waiting pods: \
                 {}",
                known.settings.to_image.value, known.max_pods_without_network
            ),
            Direction::Rollback => {
                let why = known
                    .automatic_rollback
                    .as_ref()
                    .map(|turned| format!("{}: ", turned.reason))
                    .unwrap_or_default();
                format!("{why}Calico works with etcd v2, as before. etcd v3 is restored")
            }
        };
        crash_point::reach(Step::Finish.name(), Edge::Changed, None).await;
        stages::finish(&mut known.stage, &mut known.history, self.now);
        status.phase = match direction {
            Direction::Forward => MigrationPhase::Completed,
            Direction::Rollback => MigrationPhase::RolledBack,
        };
        status.completed_at = Some(self.now);
        status.reason = String::new();
        self.context.metrics.pods_without_network.set(0);
        self.context.metrics.calico_paused.set(0);
        let phase = status.phase;
        self.context
            .events
            .migration(
                self.migration,
                EventLevel::Normal,
                &format!("{phase:?}"),
                &status.message,
            )
            .await;
        Ok(())
    }
}
