//! One pass of a change of the Services' range: the observed state gives a view, the view a decision, the decision one step.

use std::collections::{BTreeMap, BTreeSet};

use api::migration::{Desired, MigrationPhase, ServiceCidr, ServiceCidrStatus};
use api::{Migration, MigrationStatus};
use crash_point::Edge;
use engine::cluster::Malformed;
use engine::decision::WaitReason;
use engine::moves::Workload;
use engine::words::number;
use jiff::Timestamp;
use kube::ResourceExt;
use service_cidr::assignment::{self, Assignment, AssignmentInputs, counts};
use service_cidr::ranges::joined;
use service_cidr::side::Side;
use service_cidr::step::{Stage, Step};

use super::ReadCache;
use super::adopt;
use super::apply::StepExecutor;
use super::assigned_addresses;
use super::objects::{all_ranges, api_version};
use super::pass::{Pass, direction};
use crate::cache::Cache;
use crate::context::Context;
use crate::memory::Memory;
use crate::records::Records;
use crate::service_index::{Index, name_of};
use crate::snapshot::Snapshot;
use crate::waits::wait;
use crate::write::WriteError;
use crate::{staged, workloads};

/// The side whose addresses Services get.
fn goal(desired: Desired) -> Side {
    match desired {
        Desired::Rollback => Side::Old,
        Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort => Side::New,
    }
}

/// The phase of the Migration in this stage.
fn phase(stage: Stage, goal: Side) -> MigrationPhase {
    match (goal, stage) {
        (Side::Old, _) => MigrationPhase::RollingBack,
        (Side::New, Stage::Range | Stage::ControlPlane) => MigrationPhase::Preparing,
        (Side::New, Stage::Exchange) => MigrationPhase::Rolling,
        (
            Side::New,
            Stage::Close
            | Stage::FollowUp
            | Stage::Restart
            | Stage::Soak
            | Stage::Release
            | Stage::Default
            | Stage::CleanUp,
        ) => MigrationPhase::Finishing,
    }
}

/// The message while Services are not listed.
const NOT_LISTED: &str = "Services and EndpointSlices are not listed yet: the watches have not delivered all of them. The coordinator \
                          needs permission to watch both (deploy/service-cidr)";

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
) -> Result<(), WriteError> {
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
    let Some(index) = cache.services(&context.watching).await else {
        wait(status, WaitReason::RequestRefused, NOT_LISTED.to_owned());
        return Ok(());
    };
    let Some(workloads) = workloads::watched(context, cache, status).await else {
        return Ok(());
    };
    let ranges = match all_ranges(&context.client, &version).await? {
        Ok(ranges) => ranges,
        Err(malformed) => {
            wait(status, WaitReason::ServiceRanges, malformed_message(&malformed));
            return Ok(());
        }
    };
    let found = counts(index.services(), &known.settings);
    known.services_in_old_range = u32::try_from(found.old).unwrap_or(u32::MAX);
    known.services_in_new_range = u32::try_from(found.new).unwrap_or(u32::MAX);
    let records = &mut memory.records;
    let (booked, untouched) = record_addresses(context, records, migration, &mut known, &index, goal).await?;
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
        now: Timestamp::now(),
    };
    if stage.is_some_and(|stage| stage.direction != direction(goal)) {
        known.exchange_started_at = None;
        known.soak_started_at = None;
        // A rollback does not wait for silent nodes: what was confirmed then is not confirmed by all nodes.
        memory.kinds.of::<ReadCache>().confirmed.clear();
    }
    Box::pin(pass.act(memory, &mut known, status)).await?;
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

fn malformed_message(malformed: &Malformed) -> String {
    format!(
        "{}: {}; replumb changes nothing until it is corrected",
        malformed.object, malformed.problem
    )
}

/// Records the addresses of Services that have no record yet, and returns all recorded ones. Nothing is done for a Service
/// without a record: after a crash both addresses have to be known. The pass continues, because a user who creates a Service each
/// second would stop it otherwise.
async fn record_addresses(
    context: &Context,
    records: &mut Records,
    migration: &Migration,
    known: &mut ServiceCidrStatus,
    index: &Index,
    goal: Side,
) -> Result<(Assignment, BTreeSet<String>), WriteError> {
    let written = assigned_addresses::read(records, known.written_here());
    let mut untouched = assigned_addresses::untouched_services(records);
    let ground = AssignmentInputs {
        goal,
        settings: &known.settings,
        since: migration.status.as_ref().and_then(|status| status.started_at),
        holder: &|address| index.holder(address),
    };
    let booked = assignment::assign_addresses(&written, index.services(), &ground);
    if booked.book != written || !known.addresses.is_empty() {
        for (key, both) in &booked.book {
            if written.get(key) != Some(both) {
                let entry = name_of(key).and_then(|name| index.service(&name));
                // A Service that was created at its new address has shown it to clients.
                if entry.is_some_and(|entry| entry.is_at(&both.old)) {
                    untouched.insert(key.clone());
                } else {
                    untouched.remove(key);
                }
            }
        }
        assigned_addresses::write(&context.client, records, migration, &booked.book, &untouched).await?;
        crash_point::reach("WriteAddresses", Edge::Recorded, None).await;
        known.addresses.clear();
    }
    Ok((booked, untouched))
}

impl Pass<'_> {
    /// Observes, decides, and runs one step.
    async fn act(
        &self,
        memory: &mut Memory,
        known: &mut ServiceCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        let (next, gate, services) = Box::pin(self.look(memory, known, status)).await?;
        enter(known, next.stage, self.goal, self.now);
        status.phase = phase(next.stage, self.goal);
        status.progress.text = format!("{}/{} services", services.migrated(), services.views.len());
        let mut executor = StepExecutor {
            pass: self,
            seen: services.seen,
        };
        if !next.helper_updates.is_empty() {
            Box::pin(executor.exchange(&next.helper_updates, known, memory)).await?;
        }
        match staged::report(next.decision, status) {
            Some(Step::Complete) => self.complete(memory, known, status).await?,
            Some(step) => staged::done(Box::pin(executor.make(&step, known, memory)).await?, status),
            None => {}
        }
        if let Some(aside) = next.halted_services {
            aside.reason.as_str().clone_into(&mut status.reason);
            status.message = format!("{}. {}", aside.message, status.message);
        }
        gate.halt(status);
        Ok(())
    }

    /// Deletes what replumb created for the migration, and sets the final phase.
    async fn complete(
        &self,
        memory: &mut Memory,
        known: &mut ServiceCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        crash_point::reach(Step::Complete.name(), Edge::Announced, None).await;
        if !staged::end_traffic(self.context, memory, self.snapshot, status).await? {
            return Ok(());
        }
        let changed = known.settings.changed();
        let (left, target) = (
            joined(changed.of(self.goal.other())),
            joined(changed.of(self.goal)),
        );
        let kept = match self.goal {
            Side::New => known.services_in_old_range,
            Side::Old => known.services_in_new_range,
        };
        let kept = match usize::try_from(kept).unwrap_or(usize::MAX) {
            0 => String::new(),
            kept => format!(
                " except {}",
                number(
                    kept,
                    "load balancer, which keeps its address",
                    "load balancers, which keep their addresses"
                )
            ),
        };
        let message = format!(
            "every Service has an address of {target}{kept}; addresses of {left} do not answer any more"
        );
        crash_point::reach(Step::Complete.name(), Edge::Changed, None).await;
        staged::leave(&mut known.stage, &mut known.history, self.now);
        let direction = direction(self.goal);
        staged::complete(self.context, self.migration, direction, self.now, message, status).await;
        Ok(())
    }
}
