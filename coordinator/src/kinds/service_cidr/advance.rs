//! One pass of a change of the Services' range: observe → view → decide → apply one step → report.

use std::collections::BTreeMap;

use api::migration::{Desired, ServiceCidr, ServiceCidrStatus};
use api::{Migration, MigrationStatus};
use engine::decision::WaitReason;
use engine::moves::Workload;
use jiff::Timestamp;
use kube::ResourceExt;
use service_cidr::side::Side;
use service_cidr::step::Stage;

use super::objects::{all_ranges, api_version};
use super::pass::{Pass, direction};
use super::service_index::ServiceStore;
use super::{ReadCache, adopt, assigned_addresses, report};
use crate::cache::Cache;
use crate::clock;
use crate::context::Context;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::snapshot::Snapshot;
use crate::waits::wait;
use crate::{staged, workloads};

/// The side whose addresses Services get.
fn goal(desired: Desired) -> Side {
    match desired {
        Desired::Rollback => Side::Old,
        Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort => Side::New,
    }
}

/// One pass of a started migration.
#[expect(clippy::too_many_arguments, reason = "each is a part of one pass")]
pub async fn advance(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    kind: &ServiceCidr,
    unready: &BTreeMap<Workload, usize>,
    mut known: ServiceCidrStatus,
    status: &mut MigrationStatus,
) -> Result<(), PassError> {
    if status.phase.is_over() {
        return Ok(());
    }
    let goal = goal(migration.spec.desired);
    adopt::adopt(
        context,
        cache,
        migration,
        &adopt::settings_of_agents(&known.settings, goal),
    )
    .await?;
    let snapshot = Snapshot::take(cache, &migration.name_any(), &context.namespace);
    let Some(version) = api_version(&context.client).await? else {
        let message = "the API server serves no ServiceCIDRs any more: replumb changes nothing until it does";
        wait(status, WaitReason::ServiceRanges, message.to_owned());
        return Ok(());
    };
    let services = cache.of_kind::<ServiceStore>();
    let Some(index) = services.index(&context.watching, cache.signal()).await else {
        wait(status, WaitReason::RequestRefused, report::NOT_LISTED.to_owned());
        return Ok(());
    };
    let Some(workloads) = workloads::watched(context, cache, status).await else {
        return Ok(());
    };
    let ranges = match all_ranges(&context.client, &version).await? {
        Ok(ranges) => ranges,
        Err(malformed) => {
            wait(
                status,
                WaitReason::ServiceRanges,
                report::malformed_message(&malformed),
            );
            return Ok(());
        }
    };
    report::count(&mut known, &index);
    let records = &mut memory.records;
    let (booked, untouched) =
        assigned_addresses::record(context, records, migration, &mut known, &index, goal).await?;
    let before = migration
        .status
        .as_ref()
        .and_then(|status| status.service_cidr.as_ref());
    let stage = before.and_then(|known| known.stage.as_ref());
    let pass = Pass {
        context,
        cache,
        migration,
        kind,
        unready,
        snapshot: &snapshot,
        index: &index,
        workloads: &workloads,
        ranges: &ranges,
        assigned: &booked,
        untouched: &untouched,
        version: &version,
        goal,
        is_over: stage
            .is_some_and(|stage| stage.name == Stage::CleanUp && stage.direction == direction(goal)),
        now: clock::now(),
    };
    if stage.is_some_and(|stage| stage.direction != direction(goal)) {
        known.exchange_started_at = None;
        known.soak_started_at = None;
        // A rollback does not wait for silent nodes: what was confirmed then is not confirmed by all nodes.
        memory.kinds.of::<ReadCache>().confirmed.clear();
    }
    let (next, gate, services) = Box::pin(pass.view_and_decide(memory, &mut known, status)).await?;
    enter(&mut known, next.stage, goal, pass.now);
    status.phase = report::phase(next.stage, goal);
    report::progress(&services.views, status);
    Box::pin(pass.apply(memory, next, services.seen, &mut known, status)).await?;
    gate.halt(status);
    status.service_cidr = Some(known);
    Ok(())
}

/// Records the stage of the migration.
fn enter(known: &mut ServiceCidrStatus, stage: Stage, goal: Side, now: Timestamp) {
    if stage == Stage::Exchange {
        known.exchange_started_at.get_or_insert(now);
    }
    staged::enter(&mut known.stage, &mut known.history, stage, direction(goal), now);
}
