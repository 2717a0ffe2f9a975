//! One pass of a change of the range: observe → view → decide → apply one step → report.

use std::collections::BTreeMap;

use api::migration::{Desired, Direction, PodCidr, PodCidrStatus};
use api::{Migration, MigrationStatus};
use engine::decision::WaitReason;
use engine::reason::BlockReason;
use kube::ResourceExt;
use pod_cidr::decide::PoolRole;
use pod_cidr::pools;

use super::adopt::Tunnels;
use super::pass::Pass;
use super::read_cache::ReadCache;
use super::saved::Saved;
use super::{adopt, calico_nodes, malformed, observe, report};
use crate::cache::Cache;
use crate::clock;
use crate::context::Context;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::snapshot::Snapshot;
use crate::waits::wait;
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
) -> Result<(), PassError> {
    if status.phase.is_over() {
        return Ok(());
    }
    let store = match observe::store(context, cache, memory, kind, &known).await? {
        Ok(store) => store,
        Err(message) => {
            wait(status, WaitReason::Datastore, message);
            return Ok(());
        }
    };
    let now = clock::now();
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
        Some(observe::ipam(reads, cache, &store, &calico_nodes, stage, direction, &look).await?)
    } else {
        None
    };
    let tunnels = ipam.as_deref().map(|ipam| Tunnels {
        nodes: &calico_nodes,
        ipam,
    });
    adopt::adopt(context, cache, migration, &look, tunnels).await?;
    let snapshot = Snapshot::take(cache, &migration.name_any(), &context.namespace);
    let pools = observe::pools(&store).await?;
    let ranges = [kind.from, kind.to];
    let seen = ipam.as_deref().map(|ipam| &ipam.unclear);
    let told = malformed::warnings(&pools.malformed, seen, ranges);
    memory.warnings.of_kind(&migration.name_any(), told);
    if let Some(message) = report::malformed_pool(&pools, &known) {
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
        status.set_reason(
            BlockReason::PastReturn,
            report::past_return(kind.from, kind.to, &known),
        );
        return Ok(());
    }
    let (next, gate) = Box::pin(pass.view_and_decide(memory, &mut known, status)).await?;
    staged::enter(&mut known.stage, &mut known.history, next.stage, direction, now);
    status.phase = report::phase(next.stage, direction);
    Box::pin(pass.apply(memory, next.decision, &mut known, status)).await?;
    gate.halt(status);
    status.pod_cidr = Some(known);
    Ok(())
}
