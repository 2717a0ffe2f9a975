//! One pass of a change of the range: the observed state gives a view, the view a decision, the decision one step.

use std::collections::BTreeMap;

use api::migration::{CurrentStage, Desired, Direction, PodCidr, PodCidrStatus, Stage};
use api::{Migration, MigrationStatus};
use crash_point::Edge;
use engine::decision::{Decision, WaitReason};
use jiff::Timestamp;
use kube::ResourceExt;
use pod_cidr::calico_node::CalicoNode;
use pod_cidr::decide::{PoolRole, Step};
use pod_cidr::host::HostSettings;
use pod_cidr::{hardcoded_range, pools, tunnel_address};

use super::adopt::Tunnels;
use super::apply::{Outcome, StepExecutor};
use super::malformed::{self, Pools};
use super::pass::Pass;
use super::read_cache::{ReadCache, SharedIpam};
use super::redundancy::REDUNDANT_REPLICAS;
use super::saved::Saved;
use super::{adopt, calico_nodes, progress, read, unreachable};
use crate::cache::Cache;
use crate::calico::store::Store;
use crate::context::Context;
use crate::memory::Memory;
use crate::read_cache::Pace;
use crate::snapshot::Snapshot;
use crate::waits::wait;
use crate::write::WriteError;
use crate::{staged, workloads};

/// The direction in which pods move.
fn direction(desired: Desired) -> Direction {
    match desired {
        Desired::Rollback => Direction::Rollback,
        Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort => Direction::Forward,
    }
}

/// One pass of a started migration.
#[expect(clippy::too_many_arguments, reason = "each is a part of one pass")]
pub async fn advance(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    kind: &PodCidr,
    saved: &Saved,
    mut known: PodCidrStatus,
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    if status.phase.is_over() {
        return Ok(());
    }
    let store = match store(context, cache, memory, kind, &known).await? {
        Ok(store) => store,
        Err(message) => {
            wait(status, WaitReason::Datastore, message);
            return Ok(());
        }
    };
    let now = Timestamp::now();
    let direction = direction(migration.spec.desired);
    let look = match direction {
        Direction::Forward => adopt::settings_forward(kind),
        Direction::Rollback => adopt::settings_back(kind),
    };
    // Without tunnels, a cluster of many nodes is not read for them in each pass.
    let calico_nodes = if pools::has_tunnel(&saved.old_pool) {
        calico_nodes::read(&store, cache).await?
    } else {
        BTreeMap::new()
    };
    let reads = memory.kinds.of::<ReadCache>();
    let ipam = if adopt::agents_keep_addresses(cache, known.stage.as_ref()) {
        let stage = known.stage.as_ref();
        Some(ipam(reads, cache, &store, &calico_nodes, stage, direction, &look).await?)
    } else {
        None
    };
    let tunnels = ipam.as_deref().map(|ipam| Tunnels {
        nodes: &calico_nodes,
        ipam,
    });
    adopt::adopt(context, cache, migration, &look, tunnels).await?;
    let snapshot = Snapshot::take(cache, &migration.name_any(), &context.namespace);
    let pools = read::pools(&store).await?;
    let ranges = [kind.from, kind.to];
    let seen = ipam.as_deref().map(|ipam| &ipam.unclear);
    let told = malformed::warnings(&pools.malformed, seen, ranges);
    memory.warnings.of_kind(&migration.name_any(), told);
    if let Some(message) = malformed_pool(&pools, &known) {
        wait(status, WaitReason::CalicoObjects, message);
        return Ok(());
    }
    let Some(workloads) = workloads::watched(context, cache, status).await else {
        return Ok(());
    };
    let pass = Pass {
        context,
        store: &store,
        cache,
        migration,
        kind,
        saved,
        snapshot: &snapshot,
        pools: &pools,
        workloads: &workloads,
        calico_nodes: &calico_nodes,
        ipam: ipam.as_deref(),
        direction,
        now,
    };
    if direction == Direction::Rollback && pass.pool(PoolRole::Old, &known).is_none() {
        "PastReturn".clone_into(&mut status.reason);
        status.message = pass.past_return(&known);
        return Ok(());
    }
    let (next, gate) = Box::pin(pass.observe_and_decide(memory, &mut known, status)).await?;
    staged::enter(&mut known.stage, &mut known.history, next.stage, direction, now);
    status.phase = progress::phase(next.stage, direction);
    Box::pin(pass.act(memory, next.decision, &mut known, status)).await?;
    gate.halt(status);
    status.pod_cidr = Some(known);
    Ok(())
}

/// Calico's datastore, or why no step may run: it does not answer, or Calico works with another one.
async fn store(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    kind: &PodCidr,
    known: &PodCidrStatus,
) -> Result<Result<Store, String>, WriteError> {
    let datastore = &known.settings.datastore.value;
    let begun_with = known.settings.calico_daemon_set();
    let reads = memory.kinds.of::<ReadCache>();
    if let Some(message) = reads.moved(context, cache, kind, datastore, begun_with).await? {
        return Ok(Err(message));
    }
    let store = reads.store(context, datastore).await;
    Ok(store.map_err(|problem| unreachable(&problem)))
}

/// Why no step may run while one of both pools is malformed.
fn malformed_pool(pools: &Pools, known: &PodCidrStatus) -> Option<String> {
    let ours =
        [&known.settings.old_pool.value, &known.settings.new_pool.value].map(|name| format!("IPPool {name}"));
    let mut malformed = pools.malformed.iter();
    let pool = malformed.find(|pool| ours.contains(&pool.malformed.object))?;
    Some(format!(
        "{}; replumb changes nothing until it is corrected",
        pool.message()
    ))
}

/// The allocations of Calico's IPAM, while agents keep tunnel addresses: as recent as the next step needs them.
async fn ipam(
    reads: &mut ReadCache,
    cache: &Cache,
    store: &Store,
    calico_nodes: &BTreeMap<String, CalicoNode>,
    stage: Option<&CurrentStage<Stage>>,
    direction: Direction,
    look: &HostSettings,
) -> Result<SharedIpam, WriteError> {
    let switches = stage.is_some_and(|stage| stage.name == Stage::Switch || stage.direction != direction);
    if switches && adopt::any_address_returns(cache, &look.from) {
        // Before a pool opens, an earlier read of its free addresses is too old.
        reads.forget_ipam();
    }
    let found = reads.ipam(store, Pace::Counted).await?;
    let mark = PoolRole::source(direction).mark();
    if tunnel_address::is_missing(calico_nodes, mark, &found, &look.from, &look.to) {
        reads.ipam(store, Pace::Waited).await
    } else {
        Ok(found)
    }
}

impl Pass<'_> {
    /// The message when a rollback is requested after the old pool was deleted.
    fn past_return(&self, known: &PodCidrStatus) -> String {
        let (from, to) = (self.range(PoolRole::Old), self.range(PoolRole::New));
        format!(
            "IPPool {} is deleted, and {from} is past its point of no return: nothing was rolled back. `kubectl replumb resume` \
             completes this migration; another one, from {to} to {from}, moves the pods back",
            known.settings.old_pool.value
        )
    }

    /// Runs the step, or reports the wait.
    async fn act(
        &self,
        memory: &mut Memory,
        decision: Decision<Step>,
        known: &mut PodCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        let executor = StepExecutor {
            context: self.context,
            store: self.store,
            migration: self.migration,
            saved: self.saved,
            new_pool_spec: &pools::wanted(
                &self.saved.old_pool,
                &known.settings.to.value,
                known.settings.block_size.value,
            ),
            grace_period_seconds: self.migration.spec.drain.grace_period_seconds,
        };
        match staged::report(decision, status) {
            Some(Step::Complete) => self.complete(&executor, memory, known, status).await?,
            Some(step) => match executor.run(&step, known, memory).await? {
                Outcome::Done(message) => staged::done(message, status),
                Outcome::Refused(why) => {
                    let message = format!("{why}; replumb retries until this is corrected");
                    wait(status, WaitReason::CalicoObjects, message);
                }
            },
            None => {}
        }
        Ok(())
    }

    /// Restores scaled Deployments, ends the traffic pods, and sets the final phase.
    async fn complete(
        &self,
        executor: &StepExecutor<'_>,
        memory: &mut Memory,
        known: &mut PodCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        crash_point::reach(Step::Complete.name(), Edge::Announced, None).await;
        executor.restore_replicas(known, REDUNDANT_REPLICAS).await?;
        calico_nodes::forget(self.store, self.cache).await?;
        if !staged::end_traffic(self.context, memory, self.snapshot, status).await? {
            return Ok(());
        }
        let settings = &known.settings;
        let (from, to) = (settings.from.value, settings.to.value);
        let (pool, left, range) = match self.direction {
            Direction::Forward => (&settings.old_pool.value, from, to),
            Direction::Rollback => (&settings.new_pool.value, to, from),
        };
        // A rollback waits for no user: places that contain the new range are named at its end.
        let mentions = memory
            .kinds
            .of::<ReadCache>()
            .mentions(
                self.context,
                self.cache,
                self.store,
                self.kind,
                settings.calico_daemon_set(),
                Pace::Waited,
            )
            .await?;
        let still = hardcoded_range::follow_up(&mentions, &left, &range);
        let still = still.first().map_or_else(String::new, |first| {
            let count = still.len();
            format!("; places that still contain {left} and must be changed back: {count}, first: {first}")
        });
        let message = format!(
            "every pod has an address of {range}; IPPool {pool}, its blocks and all routes to it are deleted{still}"
        );
        crash_point::reach(Step::Complete.name(), Edge::Changed, None).await;
        staged::leave(&mut known.stage, &mut known.history, self.now);
        staged::complete(
            self.context,
            self.migration,
            self.direction,
            self.now,
            message,
            status,
        )
        .await;
        Ok(())
    }
}
