//! One pass of a conversion in a cluster: observe → view → decide → apply one step → report. The stores come
//! first: another object that cannot be read or written does not keep Calico paused.

use api::migration::{AutomaticRollback, CalicoDatastoreStatus, Desired, Direction};
use api::{Migration, MigrationStatus};
use calico_datastore::cluster::decide::{decide, urgent};
use calico_datastore::cluster::step::Stage;
use calico_datastore::cluster::view::{Next, Policy, StoresView, Work};
use engine::decision::WaitReason;
use kube::ResourceExt;

use super::pass::Pass;
use super::saved::Saved;
use super::{ReadCache, report};
use crate::cache::Cache;
use crate::clock;
use crate::context::Context;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::snapshot::Snapshot;
use crate::waits::wait;
use crate::write::WriteError;
use crate::{limits, staged};

/// One pass of a started migration.
pub async fn advance(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    saved: &Saved,
    mut known: CalicoDatastoreStatus,
    status: &mut MigrationStatus,
) -> Result<(), PassError> {
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
        now: clock::now(),
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
        pass.advance_stores(next, memory, &mut known, status).await?;
    } else {
        Box::pin(pass.advance_cluster(stores, &work, memory, &mut known, status)).await?;
    }
    status.calico_datastore = Some(Box::new(known));
    Ok(())
}

impl Pass<'_> {
    /// Runs a step on the stores that comes before everything else.
    async fn advance_stores(
        &self,
        next: Next,
        memory: &mut Memory,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        let direction = self.direction(known);
        self.enter(&next, direction, known, status);
        self.apply_to_stores(next.decision, memory, known, status).await
    }

    /// Observes the cluster, decides, and runs one step.
    async fn advance_cluster(
        &self,
        stores: Result<StoresView, String>,
        work: &Work,
        memory: &mut Memory,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), PassError> {
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
        report::progress(status, &observed, direction);
        self.apply(next.decision, direction, &observed, memory, known, status)
            .await?;
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
            status.phase = report::phase(stage, direction);
        }
    }
}
