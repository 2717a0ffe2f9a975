//! Life of a migration of any kind: planning, passes after the start, and deadlines for waits.

use api::migration::{Desired, MigrationPhase};
use api::{Migration, MigrationStatus};
use engine::reason::{BlockReason, Reason};
use engine::standstill::MigrationWait;
use kube::ResourceExt;

use crate::cache::Cache;
use crate::clock::{self, Clock};
use crate::context::Context;
use crate::kind::Kind;
use crate::limits;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::waits::report_refusals;
use crate::{bounds, planning, records};

/// One pass of a Migration: does the next action and returns the current status.
pub(crate) async fn reconcile(
    kind: &impl Kind,
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
) -> Result<MigrationStatus, PassError> {
    memory.check_clock(context, migration).await;
    context.obstacles.begin_pass();
    let mut status = migration.status.clone().unwrap_or_default();
    status.observed_generation = migration.metadata.generation.unwrap_or_default();
    let started = status.started_at.is_some();
    status.paused = started
        && match migration.spec.desired {
            Desired::Plan | Desired::Pause | Desired::Abort => true,
            Desired::Run | Desired::Rollback => false,
        };
    if !started {
        planning::plan(kind, context, cache, memory, migration, &mut status).await?;
        status.warnings = memory.warnings(cache, &migration.name_any());
        count_blocked(context, &status, &[]);
        return Ok(status);
    }
    // A halt is decided again at every pass: once its cause is gone, the migration continues.
    if let Some(phase) = status.phase_before_halt.take() {
        status.phase = phase;
    }
    memory.records.load(&context.client, migration).await?;
    let complete = match records::assemble(
        &status.saved_state,
        &status.saved_state_in_records,
        &memory.records,
    ) {
        Ok(complete) => complete,
        Err(key) => {
            memory.records.forget();
            let message = format!(
                "MigrationRecords of this Migration (content: SavedState): saved state \"{key}\" is missing or incomplete. No changes \
                 will be made. Restore the records from a backup"
            );
            status.set_reason(BlockReason::SettingsGone, message);
            return Ok(status);
        }
    };
    let inline = std::mem::replace(&mut status.saved_state, complete);
    let reasons = kind
        .advance(context, cache, memory, migration, &mut status)
        .await?;
    // Warnings read in this pass are reported in it.
    status.warnings = memory.warnings(cache, &migration.name_any());
    context.obstacles.end_pass();
    status.saved_state = inline;
    report_refusals(context, &mut status);
    // The message is compared with the previous one: cut both to the same length.
    bounds::cut_to(&mut status.message, bounds::MESSAGE);
    apply_standstill(migration, &memory.clock, &mut status);
    if let Some(remark) = kind.remark(&status) {
        status.message = format!("{}. {remark}", status.message.trim_end_matches('.'));
    }
    count_blocked(context, &status, &reasons);
    Ok(status)
}

/// Applies a deadline to a wait of the whole migration. A node in the rollout has its own deadlines.
fn apply_standstill(migration: &Migration, clock: &Clock, status: &mut MigrationStatus) {
    let mut before = status.wait.take();
    if let Some(before) = &mut before {
        before.since = clock.since(before.since);
    }
    if let Some(Reason::Wait(reason)) = status.known_reason()
        && status.progress.working.is_empty()
    {
        let now = clock::now();
        let wait = MigrationWait::observe(before.as_ref(), reason, status.message.clone(), now);
        let limit = limits::step_timeout(migration);
        if let Some(halt) = wait.overdue(limit, clock.deadlines_from(migration.spec.resumed_at, now), now) {
            status.phase_before_halt = Some(status.phase);
            status.phase = MigrationPhase::Halted;
            status.set_reason(halt.reason, halt.message);
        }
        status.wait = Some(wait);
    } else if status.phase == MigrationPhase::Halted {
        status.phase_before_halt = Some(MigrationPhase::Rolling);
    }
}

/// Counts nodes in the rollout by their reason for waiting; a wait of the whole migration counts as 1.
fn count_blocked(context: &Context, status: &MigrationStatus, reasons: &[Reason]) {
    let blocked = &context.metrics.blocked;
    blocked.reset();
    for reason in reasons {
        blocked.with_label_values(&[reason.as_str()]).inc();
    }
    if !status.reason.is_empty() {
        let complete = blocked.with_label_values(&[status.reason.as_str()]);
        complete.set(complete.get().max(1));
    }
}
