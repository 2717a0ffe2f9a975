//! Before the first change: agents report, checks run, the plan is written. Plan and run are this one code.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{Desired, MigrationPhase};
use api::{Migration, MigrationStatus, NodeMigration};
use jiff::{SignedDuration, Timestamp};
use kube::{Api, ResourceExt};
use plan::check::Check;
use plan::decision::WaitReason;
use plan::document::{Action, Document};

use crate::cache::Cache;
use crate::context::Context;
use crate::lifecycle::{Kind, wait};
use crate::memory::Memory;
use crate::tell::Tone;
use crate::write::{self, WriteError};

/// How long agents are waited for before their silence is a refusal.
const AGENT_PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// How often the cluster is read again while a plan waits to be run.
const RECHECK: SignedDuration = SignedDuration::from_secs(2);

/// One pass of planning.
pub(crate) async fn plan<K: Kind>(
    kind: &K,
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    let now = Timestamp::now();
    kind.adopt(context, cache, migration).await?;
    // A changed spec is looked at at once; the cluster around it every few seconds.
    let seen = migration.status.as_ref().map(|status| status.observed_generation);
    let fresh = seen == migration.metadata.generation
        && memory
            .checked_at
            .is_some_and(|at| now.duration_since(at) < RECHECK);
    if fresh {
        return Ok(());
    }
    let name = migration.name_any();
    let node_migrations: Vec<_> = cache
        .node_migrations
        .state()
        .into_iter()
        .filter(|object| object.spec.migration == name)
        .collect();
    let facts = kind
        .read(context, cache, memory, migration, &node_migrations)
        .await?;
    memory.checked_at = Some(now);
    let silent = kind.silent(&facts);
    let age = migration
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| now.duration_since(time.0));
    if !silent.is_empty() && age.is_some_and(|age| age < AGENT_PATIENCE) {
        status.phase = MigrationPhase::Planning;
        let message = format!("waiting for the agents of {}", silent.join(", "));
        wait(status, WaitReason::AgentSilent, message);
        return Ok(());
    }
    let (settings, found) = kind.judge(migration, &facts);
    status.checks = sorted(found);
    count_failed(context, &status.checks);
    let Some(settings) = settings else {
        refuse(status);
        return Ok(());
    };
    let plan = kind.document(&settings, &facts, &context.node_name);
    write_node_plans(kind, context, &node_migrations, &settings, &plan).await?;
    status.plan = Some(api::migration::Plan {
        hash: plan.hash(),
        prepare: plan.prepare.clone(),
        nodes: plan.nodes.iter().map(|(name, _)| name.clone()).collect(),
        finish: plan.finish.clone(),
    });
    kind.save(settings, status);
    if !status.checks.iter().all(|check| check.verdict.allows()) {
        refuse(status);
        return Ok(());
    }
    if let Some(reviewed) = migration
        .spec
        .plan_hash
        .as_ref()
        .filter(|hash| **hash != plan.hash())
    {
        status.phase = MigrationPhase::Refused;
        "PlanChanged".clone_into(&mut status.blocked);
        status.message = format!(
            "the plan changed since it was reviewed: reviewed {reviewed}, now {}. Run `kubectl replumb plan` and \
             apply again",
            plan.hash()
        );
        return Ok(());
    }
    status.blocked = String::new();
    status.progress.nodes = u32::try_from(plan.nodes.len()).unwrap_or(u32::MAX);
    status.progress.text = format!("0/{}", plan.nodes.len());
    match migration.spec.desired {
        Desired::Run => start(kind, context, cache, migration, &facts, status, now).await,
        Desired::Plan | Desired::Pause | Desired::Abort | Desired::Rollback => {
            status.phase = MigrationPhase::Planned;
            "every check allows the migration; nothing has changed. Start it with `kubectl replumb apply`"
                .clone_into(&mut status.message);
            Ok(())
        }
    }
}

/// The last moment before the first change: what is there is saved into the status, and only then written.
async fn start<K: Kind>(
    kind: &K,
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    facts: &K::Facts,
    status: &mut MigrationStatus,
    now: Timestamp,
) -> Result<(), WriteError> {
    status.before = kind.before(context, cache, facts).await?;
    status.phase = MigrationPhase::Preparing;
    status.started_at = Some(now);
    "cluster-wide objects are written".clone_into(&mut status.message);
    context
        .teller
        .migration(migration, Tone::Normal, "Started", &status.message)
        .await;
    Ok(())
}

fn sorted(mut checks: Vec<Check>) -> Vec<Check> {
    checks.sort_by(|left, right| {
        right
            .verdict
            .cmp(&left.verdict)
            .then_with(|| left.name.cmp(&right.name))
    });
    checks
}

fn refuse(status: &mut MigrationStatus) {
    let refusals: Vec<&Check> = status
        .checks
        .iter()
        .filter(|check| !check.verdict.allows())
        .collect();
    status.phase = MigrationPhase::Refused;
    "ChecksFailed".clone_into(&mut status.blocked);
    status.message = match refusals.as_slice() {
        [] => "refused".to_owned(),
        [one] => one.line(),
        [first, ..] => format!(
            "{} checks refuse the migration; the first: {}",
            refusals.len(),
            first.line()
        ),
    };
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

/// Gives every node its part of the plan, and its agent what it needs to judge the host.
async fn write_node_plans<K: Kind>(
    kind: &K,
    context: &Context,
    node_migrations: &[Arc<NodeMigration>],
    settings: &K::Settings,
    plan: &Document,
) -> Result<(), WriteError> {
    let by_name: BTreeMap<&str, (usize, &Vec<Action>)> = plan
        .nodes
        .iter()
        .enumerate()
        .map(|(position, (name, actions))| (name.as_str(), (position, actions)))
        .collect();
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    for object in node_migrations {
        let Some((position, actions)) = by_name.get(object.spec.node_name.as_str()) else {
            continue;
        };
        let mut spec = object.spec.clone();
        spec.position = u32::try_from(*position).unwrap_or(u32::MAX);
        spec.plan.clone_from(actions);
        kind.ask(settings, &mut spec);
        write::patch_spec(&api, object.as_ref(), &object.spec, &spec).await?;
    }
    Ok(())
}
