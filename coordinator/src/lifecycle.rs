//! The life of a migration, whatever its kind: it is planned, it goes on pass by pass, and what it waits for has a deadline.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{Desired, MigrationPhase};
use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration};
use engine::check::Check;
use engine::decision::WaitReason;
use engine::document::Document;
use engine::standstill::Standstill;
use jiff::Timestamp;
use kube::ResourceExt;

use crate::cache::Cache;
use crate::clock::Clock;
use crate::context::Context;
use crate::limits;
use crate::memory::Memory;
use crate::write::WriteError;
use crate::{bounds, planning, records};

/// One kind of migration, as the engine drives it.
pub(crate) trait Kind {
    /// What the checks and the plan are made of.
    type Facts;
    /// What it works with: found by the checks, saved before the first change.
    type Settings;

    /// Brings the `NodeMigration`s in line with the Nodes.
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

    /// Nodes whose agents have not said what the checks need.
    fn silent(&self, facts: &Self::Facts) -> Vec<String>;

    /// What the checks need and is not known yet; the next looks bring the rest. `None` when nothing is missing.
    fn unfinished(&self, _facts: &Self::Facts) -> Option<String> {
        None
    }

    /// Settings and checks; settings are `None` when what is to be migrated could not even be found.
    fn judge(&self, migration: &Migration, facts: &Self::Facts) -> (Option<Self::Settings>, Vec<Check>);

    /// Every action on every object, in order.
    fn document(&self, settings: &Self::Settings, facts: &Self::Facts, coordinator_node: &str) -> Document;

    /// Writes down what an agent needs to know to judge its host.
    fn ask(&self, settings: &Self::Settings, spec: &mut NodeMigrationSpec);

    /// Saves the settings.
    fn save(&self, settings: Self::Settings, status: &mut MigrationStatus);

    /// What is there before the first change, and is put back at the end or on the way back. `facts` are those that the checks have
    /// judged. What is there of a node is written into its `NodeMigration`.
    async fn before(
        &self,
        context: &Context,
        cache: &Cache,
        migration: &Migration,
        facts: &Self::Facts,
    ) -> Result<BTreeMap<String, String>, WriteError>;

    /// One pass of a migration that has begun. Returns why each node in work waits.
    async fn go_on(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<&'static str>, WriteError>;

    /// What a person has to know beside the message, whatever it says; it changes by the minute, and says nothing of whether something moves.
    fn remark(&self, _status: &MigrationStatus) -> Option<String> {
        None
    }
}

/// One pass of a Migration: does what is next and returns the status as it is now.
pub(crate) async fn reconcile(
    kind: &impl Kind,
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
) -> Result<MigrationStatus, WriteError> {
    memory.look_at_the_clock(context, migration).await;
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
    // A halt is decided anew at every look: what was mended goes on.
    if let Some(phase) = status.halted_in.take() {
        status.phase = phase;
    }
    memory.records.load(&context.client, migration).await?;
    let whole = match records::assemble(&status.before, &status.before_in_records, &memory.records) {
        Ok(whole) => whole,
        Err(key) => {
            memory.records.forget();
            "SettingsGone".clone_into(&mut status.blocked);
            status.message = format!(
                "what was saved before the first change as \"{key}\", in the MigrationRecords of this Migration that hold Before, is gone: \
                 nothing is done. Write them again from a backup"
            );
            return Ok(status);
        }
    };
    let inline = std::mem::replace(&mut status.before, whole);
    let reasons = kind.go_on(context, cache, memory, migration, &mut status).await?;
    // What this pass has read is told in it.
    status.warnings = memory.warnings(cache, &migration.name_any());
    context.obstacles.end_pass();
    status.before = inline;
    tell_refusals(context, &mut status);
    // What is waited for is compared with what was: it is as long in both.
    bounds::cut_to(&mut status.message, bounds::MESSAGE);
    stand_still(migration, &memory.clock, &mut status);
    if let Some(remark) = kind.remark(&status) {
        status.message = format!("{}. {remark}", status.message.trim_end_matches('.'));
    }
    count_blocked(context, &status, &reasons);
    Ok(status)
}

/// Says in the status what the whole migration waits for.
pub(crate) fn wait(status: &mut MigrationStatus, reason: WaitReason, message: String) {
    reason.as_str().clone_into(&mut status.blocked);
    status.message = message;
}

/// Whether this pass has written everything so far. Where it has not for want of time, the status says so.
pub(crate) fn is_written(context: &Context, status: &mut MigrationStatus) -> bool {
    let postponed = context.obstacles.postponed();
    if postponed > 0 {
        status.blocked = String::new();
        status.message = match postponed {
            1 => "1 object more is written by the next pass".to_owned(),
            many => format!("{many} objects more are written by the next passes"),
        };
    }
    context.obstacles.is_clear()
}

/// Says in the status which objects cannot be written, unless a person is told of something already.
pub(crate) fn tell_refusals(context: &Context, status: &mut MigrationStatus) {
    let needs_a_person = WaitReason::read(&status.blocked).is_none_or(WaitReason::needs_a_person)
        && !status.blocked.is_empty();
    if let Some(refused) = context.obstacles.wait()
        && !needs_a_person
        && !status.phase.is_over()
    {
        refused.reason.clone_into(&mut status.blocked);
        status.message = refused.message;
    }
}

/// Gives a wait of the whole migration its deadline. A node in work has deadlines of its own.
fn stand_still(migration: &Migration, clock: &Clock, status: &mut MigrationStatus) {
    let mut before = status.standstill.take();
    if let Some(before) = &mut before {
        before.since = clock.since(before.since);
    }
    let reason = WaitReason::read(&status.blocked).filter(|_| status.progress.working.is_empty());
    if let Some(reason) = reason {
        let now = Timestamp::now();
        let wait = Standstill::look(before.as_ref(), reason, status.message.clone(), now);
        let limit = limits::step_timeout(migration);
        if let Some(halt) = wait.overdue(limit, clock.deadlines_from(migration.spec.resumed_at, now), now) {
            status.halted_in = Some(status.phase);
            status.phase = MigrationPhase::Halted;
            halt.reason.as_str().clone_into(&mut status.blocked);
            status.message.clone_from(&halt.message);
        }
        status.standstill = Some(wait);
    } else if status.phase == MigrationPhase::Halted {
        status.halted_in = Some(MigrationPhase::Rolling);
    }
}

/// Counts the nodes in work by why they wait; what only the whole migration waits for counts 1.
fn count_blocked(context: &Context, status: &MigrationStatus, reasons: &[&'static str]) {
    let blocked = &context.metrics.blocked;
    blocked.reset();
    for reason in reasons {
        blocked.with_label_values(&[*reason]).inc();
    }
    if !status.blocked.is_empty() {
        let whole = blocked.with_label_values(&[status.blocked.as_str()]);
        whole.set(whole.get().max(1));
    }
}
