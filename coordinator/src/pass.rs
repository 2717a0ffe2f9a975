//! The loop: woken by a change or by the clock, one pass over the whole cluster at a time.
//!
//! The number of unavailable nodes is a decision about the whole set, so there is one loop and no queue per object.

use std::sync::Arc;
use std::time::Duration;

use api::migration::{Desired, MigrationPhase};
use api::{Migration, MigrationSpec, MigrationStatus};
use engine::decision::WaitReason;
use engine::reason::BlockReason;
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::bounds;
use crate::cache::{Cache, OptionalWatches};
use crate::clock;
use crate::context::Context;
use crate::events::EventLevel;
use crate::evict;
use crate::failure::{Cause, Failure as _};
use crate::health::Health;
use crate::kind::Kind as _;
use crate::kinds::{self, with_kind};
use crate::lifecycle;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::words::differ_in_words;
use crate::write::{self, WriteError};

/// Interval of passes without a change, for deadlines and retries.
const TICK: Duration = Duration::from_secs(1);
/// Time limit of a pass over a Migration, after which it is cancelled and the status says so. Every step is idempotent: the next
/// pass continues.
const PASS_LIMIT: Duration = Duration::from_mins(1);
/// Changes within this time are handled together.
const SETTLE: Duration = Duration::from_millis(30);

/// Runs passes in a loop while this process is the leader.
pub async fn run(context: &Context, cache: &Cache, health: &Arc<Health>, leading: &watch::Receiver<bool>) {
    let mut memory = Memory::default();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cache.changed() => {
                // One write of the coordinator returns as several events: make one pass for all.
                let _ = tokio::time::timeout(SETTLE, std::future::pending::<()>()).await;
            }
            _ = tick.tick() => {}
        }
        health.turned();
        context.metrics.leading.set(i64::from(*leading.borrow()));
        if !*leading.borrow() {
            memory.stop();
            cache.keep_watches(OptionalWatches::default());
            continue;
        }
        context.metrics.passes.inc();
        let timer = context.metrics.pass_duration.start_timer();
        let mut lost = leading.clone();
        let ended = tokio::select! {
            ended = pass(context, cache, &mut memory) => ended,
            // Another coordinator may lead from now on: no further write.
            _ = lost.wait_for(|leads| !leads) => {
                memory.stop();
                continue;
            }
        };
        timer.observe_duration();
        let Err(error) = ended else { continue };
        context
            .metrics
            .write_errors
            .with_label_values(&[error.category()])
            .inc();
        match error.root_cause() {
            // Another writer was faster: the watch delivers the new state.
            Cause::Changed => {
                info!(error = %runtime::error::chain(&error), "object changed; pass repeated");
            }
            Cause::Api(_) | Cause::Etcd(_) => {
                warn!(error = %runtime::error::chain(&error), "pass failed; will be repeated");
            }
        }
    }
}

/// One pass: advances the active Migration, and reports to every other one why it waits.
pub(crate) async fn pass(context: &Context, cache: &Cache, memory: &mut Memory) -> Result<(), PassError> {
    // Statuses are large, and a pass is part of other futures.
    Box::pin(every_migration(context, cache, memory)).await
}

async fn every_migration(context: &Context, cache: &Cache, memory: &mut Memory) -> Result<(), PassError> {
    evict::forget_missed(memory, &cache.pods);
    let mut migrations: Vec<Migration> = Vec::new();
    for guarded in cache.migrations.state() {
        match &guarded.0 {
            Ok(migration) => migrations.push(migration.clone()),
            Err(error) => {
                warn!(object = guarded.name_any(), %error, "Migration ignored: it does not parse");
            }
        }
    }
    migrations.retain(|migration| migration.metadata.deletion_timestamp.is_none());
    let active = choose(&migrations);
    cache.keep_watches(active.map(|active| watches(&active.spec)).unwrap_or_default());
    let active = active.map(ResourceExt::name_any);
    let upkeep_is_due = memory.upkeep_is_due(clock::now());
    let mut failed = None;
    for migration in &migrations {
        let status = match &active {
            Some(active) if *active == migration.name_any() => {
                let (status, error) = status_after_pass(context, cache, memory, migration).await;
                failed = failed.or(error);
                status
            }
            Some(active) if !is_over(migration) => refused(
                migration,
                BlockReason::AnotherMigration,
                format!(
                    "Migration {active} is active, and only one may run. Wait until it is over, or delete it if not started"
                ),
            ),
            Some(_) | None => {
                if upkeep_is_due {
                    let kept = keep_up_after_end(context, cache, migration).await;
                    failed = failed.or(kept.err());
                }
                continue;
            }
        };
        // A failed status write does not block the other statuses.
        let published = publish(context, memory, migration, status).await;
        failed = failed.or(published.err().map(PassError::Write));
    }
    count_phase(context, &migrations, active.as_deref());
    failed.map_or(Ok(()), Err)
}

/// The status after one pass of the active Migration, with any outcome of the pass, and the error. Decisions are repeated,
/// and finished writes are found by the next pass.
async fn status_after_pass(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
) -> (MigrationStatus, Option<PassError>) {
    let ended = tokio::time::timeout(PASS_LIMIT, run_kind(context, cache, memory, migration)).await;
    let (reason, words, error) = match ended {
        Ok(Ok(status)) => return (status, None),
        Ok(Err(error)) => (reason(&error), error.message(), Some(error)),
        Err(_) => {
            let doing = match context.obstacles.current_object() {
                Some(object) => format!("at {object}"),
                None => "while reading the cluster".to_owned(),
            };
            let seconds = PASS_LIMIT.as_secs();
            let words = format!("a pass timed out after {seconds} s, {doing}");
            warn!(words, "pass cancelled; will be repeated");
            (Some(WaitReason::RequestRefused), words, None)
        }
    };
    let name = migration.name_any();
    // An unreachable API server cannot store the message; it is reported once it is reachable. A conflict is resolved by the next
    // pass.
    if reason.is_some() {
        memory.unreported.keep(&name, words.clone());
    }
    let known = migration.status.clone().unwrap_or_default();
    let status = MigrationStatus {
        warnings: memory.warnings(cache, &name),
        reason: reason.map_or(known.reason, |reason| reason.as_str().to_owned()),
        message: format!("{words}; the coordinator retries"),
        ..known
    };
    (status, error)
}

/// The reason that a failure has for the user; `None` if it resolves without help, or if no status can be written.
fn reason(error: &PassError) -> Option<WaitReason> {
    match error.root_cause() {
        Cause::Etcd(_) => Some(WaitReason::Datastore),
        Cause::Api(_) => error.concerns_one_object().then_some(WaitReason::RequestRefused),
        Cause::Changed => None,
    }
}

/// Sets one phase for the whole cluster: that of the active Migration, or else of the last completed one.
fn count_phase(context: &Context, migrations: &[Migration], active: Option<&str>) {
    let shown = migrations
        .iter()
        .find(|migration| active == Some(migration.name_any().as_str()))
        .or_else(|| {
            migrations
                .iter()
                .filter(|migration| is_over(migration))
                .max_by_key(|migration| completed_at(migration))
        })
        .map(|migration| {
            migration
                .status
                .as_ref()
                .map(|status| status.phase)
                .unwrap_or_default()
        });
    for phase in MigrationPhase::ALL {
        context
            .metrics
            .phase
            .with_label_values(&[phase.as_str()])
            .set(i64::from(Some(*phase) == shown));
    }
}

fn completed_at(migration: &Migration) -> Option<Timestamp> {
    migration.status.as_ref().and_then(|status| status.completed_at)
}

/// The active Migration: a started one, or else the oldest that is not over.
fn choose(migrations: &[Migration]) -> Option<&Migration> {
    migrations
        .iter()
        .filter(|migration| !is_over(migration))
        .min_by_key(|migration| {
            let begun = migration
                .status
                .as_ref()
                .is_some_and(|status| status.started_at.is_some());
            (
                !begun,
                migration.metadata.creation_timestamp.clone().map(|time| time.0),
                migration.name_any(),
            )
        })
}

fn is_over(migration: &Migration) -> bool {
    migration
        .status
        .as_ref()
        .is_some_and(|status| status.phase.is_over())
}

async fn run_kind(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
) -> Result<MigrationStatus, PassError> {
    match migration.spec.kind() {
        Ok(kind) => {
            with_kind!(kind, kind => lifecycle::reconcile(kind, context, cache, memory, migration).await)
        }
        Err(error) => Ok(refused(
            migration,
            BlockReason::KindNotSupported,
            error.to_string(),
        )),
    }
}

/// Upkeep of a Migration that is over.
async fn keep_up_after_end(context: &Context, cache: &Cache, migration: &Migration) -> Result<(), PassError> {
    let Ok(kind) = migration.spec.kind() else {
        return Ok(());
    };
    let kept = with_kind!(kind, kind => {
        tokio::time::timeout(PASS_LIMIT, kind.keep_up_after_end(context, cache, migration)).await
    });
    if let Ok(kept) = kept {
        return kept;
    }
    let seconds = PASS_LIMIT.as_secs();
    warn!(
        object = migration.name_any(),
        seconds, "upkeep after the end timed out; will be repeated"
    );
    Ok(())
}

/// Watches that a Migration needs beside those that every kind has.
fn watches(spec: &MigrationSpec) -> OptionalWatches {
    spec.kind()
        .map(|kind| with_kind!(kind, kind => kind.watches()))
        .unwrap_or_default()
}

fn refused(migration: &Migration, reason: BlockReason, message: String) -> MigrationStatus {
    let mut status = MigrationStatus {
        phase: MigrationPhase::Refused,
        observed_generation: migration.metadata.generation.unwrap_or_default(),
        paused: migration.spec.desired == Desired::Pause,
        ..migration.status.clone().unwrap_or_default()
    };
    status.set_reason(reason, message);
    status
}

/// Writes the status if it differs, and records an Event for a new phase. A change of texts and counts only is written at
/// intervals; the next pass includes it.
pub(crate) async fn publish(
    context: &Context,
    memory: &mut Memory,
    migration: &Migration,
    mut status: MigrationStatus,
) -> Result<(), WriteError> {
    let name = migration.name_any();
    let old = migration.status.clone().unwrap_or_default();
    memory.unreported.add_to(&name, &mut status);
    bounds::cut_texts(&mut status);
    kinds::cut_texts(&mut status);
    status.conditions = conditions::of(&status, &old.conditions, clock::now());
    let now = clock::now();
    if migration.status.is_some()
        && differ_in_words(&old, &status, kinds::clear_counts)
        && !memory.words.may_be_written(context.pace, now)
    {
        return Ok(());
    }
    let api: Api<Migration> = Api::all(context.client.clone());
    if write::patch_status(&api, migration, migration.status.as_ref(), &status).await? {
        memory.words.written(now);
    }
    memory.unreported.forget_reported(&name);
    if old.phase != status.phase || old.reason != status.reason {
        let tone = match status.phase {
            MigrationPhase::Refused | MigrationPhase::Halted => EventLevel::Warning,
            MigrationPhase::Pending
            | MigrationPhase::Planning
            | MigrationPhase::Planned
            | MigrationPhase::Preparing
            | MigrationPhase::Rolling
            | MigrationPhase::Mixed
            | MigrationPhase::Finishing
            | MigrationPhase::Completed
            | MigrationPhase::RollingBack
            | MigrationPhase::RolledBack => EventLevel::Normal,
        };
        context.events.status(migration, tone, &status).await;
    }
    Ok(())
}

mod conditions {
    //! Conditions Ready, Progressing and Halted; the transition time changes with the value only.

    use api::MigrationStatus;
    use api::migration::MigrationPhase;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    pub(super) fn of(status: &MigrationStatus, old: &[Condition], now: Timestamp) -> Vec<Condition> {
        let phase = status.phase;
        let moving = matches!(
            phase,
            MigrationPhase::Preparing
                | MigrationPhase::Rolling
                | MigrationPhase::Finishing
                | MigrationPhase::RollingBack
        ) && !status.paused;
        [
            ("Ready", phase == MigrationPhase::Completed),
            ("Progressing", moving),
            ("Halted", phase == MigrationPhase::Halted),
        ]
        .into_iter()
        .map(|(type_, value)| {
            let value = if value { "True" } else { "False" };
            let before = old.iter().find(|condition| condition.type_ == type_);
            let since = before
                .filter(|condition| condition.status == value)
                .map_or(Time(now), |condition| condition.last_transition_time.clone());
            Condition {
                type_: type_.to_owned(),
                status: value.to_owned(),
                reason: status.reason_or_phase().to_owned(),
                message: status.message.clone(),
                last_transition_time: since,
                observed_generation: Some(status.observed_generation),
            }
        })
        .collect()
    }
}
