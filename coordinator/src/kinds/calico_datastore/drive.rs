//! One pass of a conversion in a cluster: the observed state gives a view, the view a decision, the decision one step. The stores
//! come first: another object that cannot be read or written does not keep Calico paused.

use api::migration::{AutomaticRollback, CalicoDatastoreStatus, Desired, Direction, MigrationPhase};
use api::{Migration, MigrationStatus};
use calico_datastore::cluster::calico::Calico;
use calico_datastore::cluster::decide::{decide, urgent};
use calico_datastore::cluster::step::{Stage, Step};
use calico_datastore::cluster::view::{Next, Policy, StoresView, Work};
use engine::decision::WaitReason;
use jiff::Timestamp;
use kube::ResourceExt;

use super::ReadCache;
use super::apply::Outcome;
use super::observe::Observed;
use super::pass::Pass;
use super::pods;
use super::saved::Saved;
use crate::cache::Cache;
use crate::context::Context;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::waits::wait;
use crate::write::WriteError;
use crate::{limits, staged};

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
        pass.act_on_stores(next, memory, &mut known, status).await?;
    } else {
        Box::pin(pass.act(stores, &work, memory, &mut known, status)).await?;
    }
    status.calico_datastore = Some(Box::new(known));
    Ok(())
}

/// Writes the outcome of a step to the status. A refusal of the API server does not end with another pass.
fn done(made: Result<Outcome, WriteError>, status: &mut MigrationStatus) -> Result<(), WriteError> {
    match made {
        Ok(Outcome::Done(message)) => staged::done(message, status),
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
    /// Runs a step on the stores that comes before everything else.
    async fn act_on_stores(
        &self,
        next: Next,
        memory: &mut Memory,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        let direction = self.direction(known);
        self.enter(&next, direction, known, status);
        if let Some(step) = staged::report(next.decision, status) {
            let outcome = self.run_on_stores(&step, known, memory).await;
            done(Ok(outcome), status)?;
        }
        Ok(())
    }

    /// Observes the cluster, decides, and runs one step.
    async fn act(
        &self,
        stores: Result<StoresView, String>,
        work: &Work,
        memory: &mut Memory,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        let adopted = super::adopt(self.context, self.cache, self.migration).await;
        let gate = self.traffic(memory, known, adopted, status).await;
        let Some(observed) = self.observe(known).await? else {
            let message = format!(
                "DaemonSet {} was deleted. Apply it again (for v2 while Calico works with etcd v2), and the migration continues",
                known.settings.daemon_set.value
            );
            wait(status, WaitReason::DaemonSetRollout, message);
            return Ok(());
        };
        let is_past = matches!(&stores, Ok(stores) if stores.is_past_the_point_of_no_return());
        let controllers = self.controllers(known, &observed);
        let controllers_work = self
            .controllers_progress(memory, known, &stores, controllers.as_ref())
            .await;
        let view = self.view(known, &observed, stores, controllers, controllers_work, work);
        let policy = Policy {
            at_once: limits::rules(self.migration)
                .max_unavailable
                .resolve(observed.nodes.len()),
            hold: gate.hold.clone(),
        };
        let next = decide(&view, &policy);
        let direction = if is_past {
            Direction::Forward
        } else {
            self.direction(known)
        };
        self.enter(&next, direction, known, status);
        progress(status, &observed, direction);
        match staged::report(next.decision, status) {
            Some(Step::Finish) => self.finish(direction, memory, known, status).await?,
            Some(step) => {
                let made = Box::pin(self.run(&step, known, memory, &observed)).await;
                done(made, status)?;
            }
            None => {}
        }
        // On the way back lost probes stop nothing.
        if direction == Direction::Forward {
            gate.halt(status);
        }
        if is_past && self.is_rollback_requested() && !status.phase.is_over() {
            status.message = format!(
                "{}. No rollback: the migration is past its point of no return and completes, because Calico works with etcd v3",
                status.message.trim_end_matches('.')
            );
        }
        Ok(())
    }

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
            staged::enter(&mut known.stage, &mut known.history, stage, direction, self.now);
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
        if !staged::end_traffic(self.context, memory, self.snapshot, status).await? {
            return Ok(());
        }
        let message = match direction {
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
        staged::leave(&mut known.stage, &mut known.history, self.now);
        self.context.metrics.pods_without_network.set(0);
        self.context.metrics.calico_paused.set(0);
        staged::complete(self.context, self.migration, direction, self.now, message, status).await;
        Ok(())
    }
}
