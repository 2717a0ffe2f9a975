//! Planning before the first change: agents report, checks run, the plan is written. Plan and run share this code.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::migration::{Desired, MigrationPhase, Plan};
use api::record::{Content, MAX_BYTES, RecordContent, parts};
use api::{Announcement, Migration, MigrationStatus, NodeMigration};
use engine::check::{Check, fit_checks};
use engine::decision::WaitReason;
use engine::document::{Action, Document, NodeActions};
use engine::reason::BlockReason;
use engine::words::{counted, number};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::cache::Cache;
use crate::clock;
use crate::context::Context;
use crate::events::EventLevel;
use crate::kind::Kind;
use crate::memory::Memory;
use crate::node_migrations::update_spec;
use crate::pass_error::PassError;
use crate::records;
use crate::unused_fields;
use crate::waits::{is_written, report_refusals, wait};
use crate::write::WriteError;

/// Time to wait for agents, from the first read and from the last new report, before silent agents are a refusal.
const AGENT_PATIENCE: Duration = Duration::from_mins(1);
/// Shortest and longest interval of reading the cluster again while a plan waits for its start.
const RECHECK: Duration = Duration::from_secs(2);
const SLOWEST_RECHECK: Duration = Duration::from_mins(1);
/// Share of time for reading the cluster: one part in this number.
const RECHECK_SHARE: u32 = 20;
/// Most bytes of checks in a status.
const CHECKS_BYTES: usize = 40 * 1024;
/// Most bytes in a status of the actions before the first node, and of those after the last.
const ACTIONS_BYTES: usize = 24 * 1024;

/// One pass of planning.
pub(crate) async fn plan<K: Kind>(
    kind: &K,
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    status: &mut MigrationStatus,
) -> Result<(), PassError> {
    let now = clock::now();
    kind.adopt(context, cache, migration).await?;
    // A changed spec is read at once, the cluster around it every few seconds.
    let seen = migration.status.as_ref().map(|status| status.observed_generation);
    let pause = recheck(status.phase, memory.check_took);
    let fresh = seen == migration.metadata.generation
        && memory.checked_at.is_some_and(|at| now.duration_since(at) < pause);
    if fresh {
        return Ok(());
    }
    let begun = Instant::now();
    let checked = check(kind, context, cache, memory, migration, status, now).await;
    memory.check_took = begun.elapsed();
    checked
}

/// The pause before the cluster is read again, derived from the duration of the last read: the larger the cluster, the longer.
/// While the migration waits for agents, the pause is the shortest.
fn recheck(phase: MigrationPhase, took: Duration) -> SignedDuration {
    let waits_for_agents = matches!(phase, MigrationPhase::Pending | MigrationPhase::Planning);
    let pause = if waits_for_agents {
        RECHECK
    } else {
        let pause = took.saturating_mul(RECHECK_SHARE);
        pause.clamp(RECHECK, SLOWEST_RECHECK)
    };
    SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX)
}

/// Reads the cluster, runs the checks, and writes the plan.
async fn check<K: Kind>(
    kind: &K,
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    status: &mut MigrationStatus,
    now: Timestamp,
) -> Result<(), PassError> {
    let name = migration.name_any();
    let node_migrations: Vec<_> = cache
        .node_migrations
        .state()
        .into_iter()
        .filter(|object| object.spec.migration == name)
        .collect();
    let facts = kind
        .observe(context, cache, memory, migration, &node_migrations)
        .await?;
    memory.checked_at = Some(now);
    let silent = kind.silent(&facts);
    let silent_for = memory
        .silence
        .observe(&migration.uid().unwrap_or_default(), silent.len());
    // An object without a creation time does not come from an API server.
    let is_stored = migration.metadata.creation_timestamp.is_some();
    if !silent.is_empty() && is_stored && silent_for < AGENT_PATIENCE {
        status.phase = MigrationPhase::Planning;
        let message = format!("waiting for agents on {}", counted("node", "nodes", &silent));
        wait(status, WaitReason::AgentSilent, message);
        return Ok(());
    }
    if let Some(message) = kind.unfinished(&facts) {
        report_unfinished(status, message);
        return Ok(());
    }
    let (settings, mut found) = kind.check(migration, &facts);
    found.extend(unused_fields::check(&migration.spec, |field| kind.uses(field)));
    count_failed(context, &found);
    memory.checks_logged.log(&found);
    status.checks = fit_checks(found, CHECKS_BYTES);
    let Some(settings) = settings else {
        refuse(status);
        return Ok(());
    };
    let plan = kind.document(&settings, &facts, &context.node_name);
    write_node_plans(kind, context, &node_migrations, &settings, &plan).await?;
    status.plan = Some(write_plan(context, memory, migration, &plan).await?);
    kind.save_settings(settings, &facts, status);
    if !status.checks.iter().all(|check| check.verdict.allows()) {
        refuse(status);
        return Ok(());
    }
    if waits_for_writes(context, status) {
        return Ok(());
    }
    if let Some(reviewed) = migration
        .spec
        .plan_hash
        .as_ref()
        .filter(|hash| **hash != plan.hash())
    {
        status.phase = MigrationPhase::Refused;
        let message = format!(
            "the plan changed since its review: hash {reviewed} reviewed, {} now. Run `kubectl replumb plan` and \
             `kubectl replumb apply` again",
            plan.hash()
        );
        status.set_reason(BlockReason::PlanChanged, message);
        return Ok(());
    }
    status.reason = String::new();
    status.progress.nodes = u32::try_from(plan.nodes.len()).unwrap_or(u32::MAX);
    status.progress.text = format!("0/{}", plan.nodes.len());
    match migration.spec.desired {
        Desired::Run => start(kind, context, cache, memory, migration, &facts, status, now).await,
        Desired::Plan | Desired::Pause | Desired::Abort | Desired::Rollback => {
            status.phase = MigrationPhase::Planned;
            "all checks allow the migration; no changes made. Start with `kubectl replumb apply`"
                .clone_into(&mut status.message);
            Ok(())
        }
    }
}

/// Whether objects are not written yet. The status says which, and the next pass writes them.
fn waits_for_writes(context: &Context, status: &mut MigrationStatus) -> bool {
    if is_written(context, status) {
        return false;
    }
    status.phase = MigrationPhase::Planning;
    status.reason = String::new();
    report_refusals(context, status);
    true
}

/// A plan divided for storage: the part in the status, and the parts in records.
struct Divided {
    plan: Plan,
    prepare: Vec<Vec<Action>>,
    finish: Vec<Vec<Action>>,
}

fn divide(document: &Document) -> Divided {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let divide = |actions: &Vec<Action>| {
        let mut parts = parts(actions.clone(), ACTIONS_BYTES, MAX_BYTES);
        let inline = parts.remove(0);
        let rest = actions.len() - inline.len();
        (inline, parts, count(rest))
    };
    let (prepare, more_before, prepare_in_records) = divide(&document.prepare);
    let (finish, more_after, finish_in_records) = divide(&document.finish);
    Divided {
        plan: Plan {
            hash: document.hash(),
            prepare,
            prepare_in_records,
            node_count: count(document.nodes.len()),
            finish,
            finish_in_records,
        },
        prepare: more_before,
        finish: more_after,
    }
}

/// Writes to records the parts of the plan that exceed the status, and returns the plan for the status.
async fn write_plan(
    context: &Context,
    memory: &mut Memory,
    migration: &Migration,
    document: &Document,
) -> Result<Plan, WriteError> {
    let divided = divide(document);
    for (holds, parts) in [
        (RecordContent::Prepare, divided.prepare),
        (RecordContent::Finish, divided.finish),
    ] {
        let parts = parts.into_iter().map(Content::Actions).collect();
        memory
            .records
            .write(&context.client, migration, holds, parts)
            .await?;
    }
    Ok(divided.plan)
}

/// Starts the migration: saves the previous state in the status and in records before any other write.
#[expect(clippy::too_many_arguments, reason = "each is a part of one pass")]
async fn start<K: Kind>(
    kind: &K,
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    facts: &K::Facts,
    status: &mut MigrationStatus,
    now: Timestamp,
) -> Result<(), PassError> {
    let before = records::divide(kind.saved_state(context, cache, migration, facts).await?);
    if waits_for_writes(context, status) {
        return Ok(());
    }
    memory
        .records
        .write(
            &context.client,
            migration,
            RecordContent::SavedState,
            before.parts,
        )
        .await?;
    status.saved_state = before.inline;
    status.saved_state_in_records = before.in_records;
    status.phase = MigrationPhase::Preparing;
    status.started_at = Some(now);
    "writing cluster-wide objects".clone_into(&mut status.message);
    context
        .events
        .migration(
            migration,
            EventLevel::Normal,
            Announcement::Started,
            &status.message,
        )
        .await;
    Ok(())
}

fn refuse(status: &mut MigrationStatus) {
    let refusals: Vec<&Check> = status
        .checks
        .iter()
        .filter(|check| !check.verdict.allows())
        .collect();
    status.phase = MigrationPhase::Refused;
    let message = match refusals.as_slice() {
        [] => "refused".to_owned(),
        [one] => one.line(),
        [first, ..] => format!(
            "{} refuse the migration; first: {}",
            number(refusals.len(), "check", "checks"),
            first.line()
        ),
    };
    status.set_reason(BlockReason::ChecksFailed, message);
}

fn count_failed(context: &Context, checks: &[Check]) {
    context.metrics.check_failed.reset();
    for check in checks {
        let failed = i64::from(!check.verdict.allows());
        let gauge = context
            .metrics
            .check_failed
            .with_label_values(&[check.name.as_str()]);
        gauge.set(gauge.get().max(failed));
    }
}

/// Reports what has to be read before the checks can run.
fn report_unfinished(status: &mut MigrationStatus, message: String) {
    status.phase = MigrationPhase::Planning;
    status.clear_reason(message);
}

/// Writes to every node its part of the plan, and to its agent what it needs to judge the host.
async fn write_node_plans<K: Kind>(
    kind: &K,
    context: &Context,
    node_migrations: &[Arc<NodeMigration>],
    settings: &K::Settings,
    plan: &Document,
) -> Result<(), WriteError> {
    let by_name: BTreeMap<&str, (usize, &NodeActions)> = plan
        .nodes
        .iter()
        .enumerate()
        .map(|(position, node)| (node.node.as_str(), (position, node)))
        .collect();
    for object in node_migrations {
        let mut spec = object.spec.clone();
        if let Some((position, node)) = by_name.get(object.spec.node_name.as_str()) {
            spec.position = u32::try_from(*position).unwrap_or(u32::MAX);
            spec.prepare.clone_from(&node.prepare);
            spec.plan.clone_from(&node.actions);
            kind.write_orders(settings, &mut spec);
        } else {
            // No action of the plan concerns this node, or none any more.
            spec.prepare.clear();
            spec.plan.clear();
        }
        update_spec(context, object, &spec).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
