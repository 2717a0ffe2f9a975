//! Life of a migration of any kind: planning, passes after the start, and deadlines for waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{Desired, MigrationPhase};
use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration};
use engine::check::Check;
use engine::decision::WaitReason;
use engine::document::Document;
use engine::standstill::MigrationWait;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::cache::{Cache, OptionalWatches};
use crate::clock::Clock;
use crate::context::Context;
use crate::limits;
use crate::memory::Memory;
use crate::unused_fields::SpecField;
use crate::write::WriteError;
use crate::{bounds, planning, records};

/// One kind of migration, as the engine drives it.
pub(crate) trait Kind {
    /// Input of the checks and the plan.
    type Facts;
    /// Settings found by the checks and saved before the first change.
    type Settings;

    /// Creates and deletes `NodeMigration`s to match the Nodes.
    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), WriteError>;

    /// Reads the cluster. Changes nothing.
    async fn read(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        node_migrations: &[Arc<NodeMigration>],
    ) -> Result<Self::Facts, WriteError>;

    /// Nodes whose agents have not reported what the checks need.
    fn silent(&self, facts: &Self::Facts) -> Vec<String>;

    /// Facts that the checks need and that are not read yet; later reads complete them. `None` if none is missing.
    fn unfinished(&self, _facts: &Self::Facts) -> Option<String> {
        None
    }

    /// Settings and checks; settings are `None` if the source of the migration was not found.
    fn judge(&self, migration: &Migration, facts: &Self::Facts) -> (Option<Self::Settings>, Vec<Check>);

    /// Watches that this kind needs beside those that every kind has.
    fn watches(&self) -> OptionalWatches {
        OptionalWatches::default()
    }

    /// Whether this kind uses a field of the spec that not every kind uses.
    fn uses(&self, field: SpecField) -> bool;

    /// Every action on every object, in order.
    fn document(&self, settings: &Self::Settings, facts: &Self::Facts, coordinator_node: &str) -> Document;

    /// Writes into the spec what an agent needs to judge its host.
    fn write_orders(&self, settings: &Self::Settings, spec: &mut NodeMigrationSpec);

    /// Saves the settings.
    fn save(&self, settings: Self::Settings, status: &mut MigrationStatus);

    /// State before the first change, restored at the end or by a rollback. `facts` are those of the checks. State of a node is
    /// written to its `NodeMigration`.
    async fn before(
        &self,
        context: &Context,
        cache: &Cache,
        migration: &Migration,
        facts: &Self::Facts,
    ) -> Result<BTreeMap<String, String>, WriteError>;

    /// One pass of a started migration. Returns the reasons for which nodes in the rollout wait.
    async fn advance(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<&'static str>, WriteError>;

    /// A remark for the user beside the message; it changes every minute, and does not count as progress.
    fn remark(&self, _status: &MigrationStatus) -> Option<String> {
        None
    }
}

/// One pass of a Migration: does the next action and returns the current status.
pub(crate) async fn reconcile(
    kind: &impl Kind,
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
) -> Result<MigrationStatus, WriteError> {
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
            "SettingsGone".clone_into(&mut status.reason);
            status.message = format!(
                "MigrationRecords of this Migration (holding Before): saved state \"{key}\" is missing or incomplete. No changes \
                 will be made. Restore the records from a backup"
            );
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

/// Sets the wait of the whole migration in the status.
pub(crate) fn wait(status: &mut MigrationStatus, reason: WaitReason, message: String) {
    reason.as_str().clone_into(&mut status.reason);
    status.message = message;
}

/// Whether this pass has written all objects so far. If the time of the pass was too short, the status says so.
pub(crate) fn is_written(context: &Context, status: &mut MigrationStatus) -> bool {
    let postponed = context.obstacles.postponed();
    if postponed > 0 {
        status.reason = String::new();
        status.message = match postponed {
            1 => "1 more object is written in the next pass".to_owned(),
            many => format!("{many} more objects are written in the next passes"),
        };
    }
    context.obstacles.is_clear()
}

/// Reports objects that cannot be written, unless the status already asks for an action of the user.
pub(crate) fn report_refusals(context: &Context, status: &mut MigrationStatus) {
    let needs_a_person =
        WaitReason::read(&status.reason).is_none_or(WaitReason::needs_user) && !status.reason.is_empty();
    if let Some(refused) = context.obstacles.wait()
        && !needs_a_person
        && !status.phase.is_over()
    {
        refused.reason.clone_into(&mut status.reason);
        status.message = refused.message;
    }
}

/// Applies a deadline to a wait of the whole migration. A node in the rollout has its own deadlines.
fn apply_standstill(migration: &Migration, clock: &Clock, status: &mut MigrationStatus) {
    let mut before = status.wait.take();
    if let Some(before) = &mut before {
        before.since = clock.since(before.since);
    }
    let reason = WaitReason::read(&status.reason).filter(|_| status.progress.working.is_empty());
    if let Some(reason) = reason {
        let now = Timestamp::now();
        let wait = MigrationWait::observe(before.as_ref(), reason, status.message.clone(), now);
        let limit = limits::step_timeout(migration);
        if let Some(halt) = wait.overdue(limit, clock.deadlines_from(migration.spec.resumed_at, now), now) {
            status.phase_before_halt = Some(status.phase);
            status.phase = MigrationPhase::Halted;
            halt.reason.as_str().clone_into(&mut status.reason);
            status.message.clone_from(&halt.message);
        }
        status.wait = Some(wait);
    } else if status.phase == MigrationPhase::Halted {
        status.phase_before_halt = Some(MigrationPhase::Rolling);
    }
}

/// Counts nodes in the rollout by their reason for waiting; a wait of the whole migration counts as 1.
fn count_blocked(context: &Context, status: &MigrationStatus, reasons: &[&'static str]) {
    let blocked = &context.metrics.blocked;
    blocked.reset();
    for reason in reasons {
        blocked.with_label_values(&[*reason]).inc();
    }
    if !status.reason.is_empty() {
        let complete = blocked.with_label_values(&[status.reason.as_str()]);
        complete.set(complete.get().max(1));
    }
}
