//! One pass of a conversion in a cluster: what is there becomes a view, the view a decision, the decision one step.

use api::migration::{CalicoDatastoreStatus, Desired, Direction, MigrationPhase, TurnedBack};
use api::{Migration, MigrationStatus};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use plan::calico_datastore::cluster::calico::Calico;
use plan::calico_datastore::cluster::decide::{Policy, StoresView, decide};
use plan::calico_datastore::cluster::step::{Stage, Step};
use plan::decision::{Decision, WaitReason};

use super::look::Observed;
use super::saved::Saved;
use crate::cache::Cache;
use crate::context::Context;
use crate::lifecycle::wait;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::tell::Tone;
use crate::write::WriteError;
use crate::{limits, stages, stop, traffic};

/// What one pass is made on.
pub(super) struct Pass<'pass> {
    pub(super) context: &'pass Context,
    pub(super) cache: &'pass Cache,
    pub(super) migration: &'pass Migration,
    pub(super) saved: &'pass Saved,
    pub(super) snapshot: &'pass Snapshot,
    /// Whether nothing is left to do but to take away what was made for the time of the migration.
    pub(super) is_over: bool,
    pub(super) now: Timestamp,
}

impl Pass<'_> {
    /// Where it leads. Who has turned back once does not turn again: what was taken back is converted anew by another Migration.
    pub(super) fn direction(&self, known: &CalicoDatastoreStatus) -> Direction {
        let has_turned = known.turned_back.is_some();
        match self.migration.spec.desired {
            Desired::Rollback => Direction::Back,
            Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort if has_turned => Direction::Back,
            Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort => Direction::There,
        }
    }
}

/// The phase of the Migration in this stage.
fn phase(stage: Stage, direction: Direction) -> MigrationPhase {
    match (direction, stage) {
        (Direction::Back, _) => MigrationPhase::RollingBack,
        (Direction::There, Stage::Prepare | Stage::Convert) => MigrationPhase::Preparing,
        (Direction::There, Stage::Nodes | Stage::Controllers) => MigrationPhase::Rolling,
        (Direction::There, Stage::Open | Stage::CleanUp) => MigrationPhase::Finishing,
    }
}

/// One pass of a migration that has begun.
pub async fn go_on(
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
    super::adopt(context, cache, migration).await?;
    let snapshot = Snapshot::take(cache, &migration.name_any(), &context.namespace);
    if let Some(message) = snapshot.malformed() {
        wait(status, WaitReason::CheckFailing, message);
        return Ok(());
    }
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
    let Some(observed) = pass.observe(&known).await? else {
        let message = format!(
            "DaemonSet {} is gone: somebody has deleted it. Apply it again, of v2 as long as Calico works with etcd v2, and this goes on",
            known.settings.daemon_set.value
        );
        wait(status, WaitReason::DaemonSetRollout, message);
        status.calico_datastore = Some(Box::new(known));
        return Ok(());
    };
    count(context, &mut known, &observed);
    let held = pass.traffic(memory, &known, status).await?;
    let work = memory.calico_datastore.worker.look().await;
    if let Some(why) = memory.calico_datastore.worker.took_back()
        && pass.direction(&known) == Direction::There
    {
        known.turned_back = Some(TurnedBack { at: pass.now, why });
    }
    let is_past = matches!(&stores, Ok(stores) if stores.is_past_the_point_of_no_return());
    let view = pass.view(&known, &observed, stores.clone(), &work);
    let policy = Policy {
        at_once: limits::rules(migration)
            .max_unavailable
            .resolve(observed.nodes.len()),
        hold: held.hold,
    };
    let next = decide(&view, &policy);
    let direction = if is_past {
        Direction::There
    } else {
        pass.direction(&known)
    };
    if let Some(stage) = next.stage {
        stages::enter(&mut known.stage, &mut known.history, stage, direction, pass.now);
        status.phase = phase(stage, direction);
    }
    progress(status, &observed, direction);
    match next.decision {
        Decision::Run(Step::Finish) => pass.finish(direction, &mut known, status).await?,
        Decision::Run(step) => {
            let said = Box::pin(pass.make(&step, &mut known, memory, &observed)).await?;
            status.blocked = String::new();
            status.message = said;
        }
        Decision::Wait(found) => wait(status, found.reason, found.message),
        Decision::Halt(halt) => {
            status.phase = MigrationPhase::Halted;
            halt.reason.as_str().clone_into(&mut status.blocked);
            status.message = halt.message;
        }
        Decision::Settled => {}
    }
    if let Some(stop) = held.stop
        && status.phase != MigrationPhase::Halted
        && !status.phase.is_over()
    {
        stop::halt(status, &stop);
    }
    if !status.phase.is_over() {
        tell_of_the_pause(&known, stores.as_ref().ok(), &observed, status, pass.now);
        tell_of_no_way_back(migration, is_past, status);
    }
    status.calico_datastore = Some(Box::new(known));
    Ok(())
}

fn count(context: &Context, known: &mut CalicoDatastoreStatus, observed: &Observed) {
    let waiting = u32::try_from(observed.waiting.len()).unwrap_or(u32::MAX);
    known.pods_without_network = waiting;
    if known.paused_since.is_some() {
        known.most_pods_without_network = known.most_pods_without_network.max(waiting);
    }
    context.metrics.pods_without_network.set(i64::from(waiting));
}

fn progress(status: &mut MigrationStatus, observed: &Observed, direction: Direction) {
    let target = match direction {
        Direction::There => Calico::V3,
        Direction::Back => Calico::V2,
    };
    let done = observed.nodes.iter().filter(|node| node.is_done(target)).count();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    status.progress.text = format!(
        "{done}/{} nodes on Calico {}",
        observed.nodes.len(),
        target.as_str()
    );
    status.progress.nodes = number(observed.nodes.len());
    status.progress.done = number(done);
}

/// Whoever reads the message at night has to see that no pod starts, and until when.
fn tell_of_the_pause(
    known: &CalicoDatastoreStatus,
    stores: Option<&StoresView>,
    observed: &Observed,
    status: &mut MigrationStatus,
    now: Timestamp,
) {
    let is_paused = stores.map_or(known.paused_since.is_some(), StoresView::is_paused);
    let Some(until) = known.paused_until.filter(|_| is_paused) else {
        return;
    };
    let waiting = match observed.waiting.first() {
        None => "no pod waits for a network".to_owned(),
        Some(first) => format!(
            "{} pods wait for a network, the first {}",
            observed.waiting.len(),
            first.key
        ),
    };
    let left = now.duration_until(until);
    let minutes = (left + SignedDuration::from_secs(59)).as_secs().max(0) / 60;
    let end = if known.turned_back.is_some() || status.phase == MigrationPhase::RollingBack {
        String::new()
    } else {
        format!(
            "; everything goes back by itself at {} (in {minutes} min)",
            until.strftime("%H:%M:%SZ")
        )
    };
    status.message = format!(
        "{}. Calico is PAUSED: {waiting}{end}",
        status.message.trim_end_matches('.')
    );
}

fn tell_of_no_way_back(migration: &Migration, is_past: bool, status: &mut MigrationStatus) {
    if is_past && migration.spec.desired == Desired::Rollback {
        status.message = format!(
            "{}. This is past the point of no return, and goes on to its end: Calico works with etcd v3",
            status.message.trim_end_matches('.')
        );
    }
}

impl Pass<'_> {
    /// Takes away what was made for the time of the migration, and says that it is over.
    async fn finish(
        &self,
        direction: Direction,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        use crash_point::Edge;
        crash_point::reach(Step::Finish.name(), Edge::Announced, None).await;
        traffic::end(self.context, self.snapshot).await?;
        if let Some(message) = traffic::ending(self.snapshot) {
            wait(status, WaitReason::PodsTerminating, message);
            return Ok(());
        }
        status.message = match direction {
            Direction::There => format!(
                "Calico works with etcd v3, on every node with {}. etcd v2 is as it was, but for its flag; {} pods waited at most",
                known.settings.to_image.value, known.most_pods_without_network
            ),
            Direction::Back => {
                let why = known
                    .turned_back
                    .as_ref()
                    .map(|turned| format!("{}: ", turned.why))
                    .unwrap_or_default();
                format!("{why}Calico works with etcd v2 as before, and etcd v3 is as it was")
            }
        };
        crash_point::reach(Step::Finish.name(), Edge::Changed, None).await;
        stages::finish(&mut known.stage, &mut known.history, self.now);
        status.phase = match direction {
            Direction::There => MigrationPhase::Completed,
            Direction::Back => MigrationPhase::RolledBack,
        };
        status.completed_at = Some(self.now);
        status.blocked = String::new();
        let phase = status.phase;
        self.context
            .teller
            .migration(
                self.migration,
                Tone::Normal,
                &format!("{phase:?}"),
                &status.message,
            )
            .await;
        Ok(())
    }
}
