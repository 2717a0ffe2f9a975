//! The rollout: the nodes in progress, and the next step of each.

mod mixed;
mod release;
mod rollback;
mod round;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use ::flannel_to_calico::api::OrEmpty as _;
use api::migration::{MigrationPhase, Strategy};
use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration};
use crash_point::Edge;
use engine::decision::Wait;
use engine::reason::Reason;
use engine::rollout::{self, Back, NodeProgress, RolloutNode};
use flannel_to_calico::node::{NetworkLabel, Policy, Stage};
use flannel_to_calico::phase::Phase;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mixed::{finish_or_stay, restart_pods, restarts};
use round::{Round, RoundResult};
use state::states;

use super::apply::rollback::selects_nodes;
use super::pass::Pass;
use super::report::count_nodes;
use super::traffic::{fates, networks};
use super::view::network_label;
use super::{adopt, drift, twins};
use crate::clock::Clock;
use crate::drafts::Drafts;
use crate::limits::{self, rules};
use crate::memory::Memory;
use crate::node_migrations::write_spec;
use crate::pass_error::PassError;
use crate::probe;
use crate::snapshot::{Snapshot, node_order};
use crate::steps::step_now;
use crate::summary::summarize;
use crate::traffic::{self, TrafficResult};
use crate::write::{WriteError, describe};
use crate::{evict, stop};

/// One pass over every node. Returns the reasons for which nodes in the rollout wait.
pub(super) async fn advance(
    pass: &Pass<'_>,
    memory: &mut Memory,
    status: &mut MigrationStatus,
) -> Result<Vec<Reason>, PassError> {
    let Pass {
        context,
        migration,
        now,
        ..
    } = *pass;
    let back = rollback::wanted(migration);
    let mut unprepared = adopt_nodes(pass, back.as_ref()).await?;
    let snapshot = pass.snapshot();
    let relabelled = match keep_written(pass, memory, &snapshot, status).await? {
        Kept::Announced => return Ok(Vec::new()),
        Kept::Restored(nodes) => nodes,
    };
    remember(pass, memory, &snapshot);
    let probes = probe::choose(&snapshot, is_untouched, |node| is_served(pass, &snapshot, node));
    probe::delete_spent_probe_pods(context, &snapshot, now, loses_calicos_address).await?;
    let order = node_order(&snapshot, &context.node_name);
    let mut nodes = states(pass, &snapshot, back.as_ref(), &order);
    let next = back.as_ref().map_or_else(Vec::new, |back| {
        rollout::next_rollbacks(&nodes, back, rules(migration).max_unavailable)
    });
    let (watched, mut drafts) = watch(pass, memory, &snapshot, &next, status).await?;
    if is_kept_written(status) {
        drift::record(&snapshot, &mut drafts);
    }
    probe::ask_probers(&snapshot, &probes, &mut drafts);
    let lossy = traffic::stop(context, migration, &watched, status, now).await;
    let policy = policy(pass, &memory.clock);
    // First, so that a node that changes direction takes no further step forward.
    let (turned, held_back) =
        rollback::turn_around(pass, &snapshot, &order, &mut nodes, back.as_ref(), &mut drafts).await?;
    let is_active = |node: &&String| !turned.contains(&node.as_str()) && !relabelled.contains(*node);
    let round = Round {
        pass,
        snapshot: &snapshot,
        probes: &probes,
        policy: &policy,
    };
    let RoundResult { mut waits, blocked } = round
        .work(memory, &mut drafts, order.iter().filter(is_active))
        .await?;
    unprepared.extend(blocked);
    waits.extend(rollback::fallen(&snapshot, &nodes).map(|(node, held)| (node.to_owned(), held)));
    let stop = stop::stop(drift_stop(migration, status), status, lossy);
    let rules = stop::held(
        rules(migration),
        migration,
        status,
        &nodes,
        &watched,
        stop.as_ref(),
    );
    let admission = rollout::admit(&nodes, &rules, now);
    // Nodes that lost their record halfway are in progress already: no rule delays them.
    let without_record = nodes.iter().filter(|node| has_lost_record(node, &snapshot));
    let start: Vec<&str> = without_record
        .map(|node| node.name)
        .chain(admission.start.iter().copied())
        .collect();
    start_nodes(pass, &snapshot, &start, &drafts).await?;
    drafts.write(context).await?;
    let held = match &back {
        Some(Back::All) => held_back,
        Some(Back::InProgress | Back::Named(_)) | None => held_back.or(admission.held),
    };
    summarize(status, &nodes, &waits, held.as_ref(), &unprepared);
    if let Some(stop) = &stop
        && status.phase != MigrationPhase::Halted
    {
        stop::halt(status, stop);
    }
    if back == Some(Back::All) {
        rollback::continue_rollback(pass, memory, &nodes, status).await?;
    }
    count_nodes(context, &snapshot);
    if stop.is_none() && rollback::all_are_there(back.as_ref(), &nodes) {
        let is_prepared = unprepared.is_empty();
        end_rollout(&round, memory, &order, is_prepared, watched.wait, status).await?;
    }
    Ok(waits.values().map(|held| held.reason).collect())
}

/// Updates what outlives the pass: requested evictions, and warnings.
fn remember(pass: &Pass<'_>, memory: &mut Memory, snapshot: &Snapshot) {
    evict::update(pass.context, memory, snapshot.pods());
    twins::warn(memory, pass.migration, snapshot);
}

/// Keeps the traffic pods, and takes the drafts of the nodes' specs with what agents have to measure.
async fn watch(
    pass: &Pass<'_>,
    memory: &mut Memory,
    snapshot: &Snapshot,
    next: &[&str],
    status: &mut MigrationStatus,
) -> Result<(TrafficResult, Drafts), PassError> {
    traffic::watch(
        pass.context,
        &mut memory.traffic,
        pass.migration,
        &networks(),
        fates(pass, snapshot, next),
        snapshot,
        status,
    )
    .await
}

/// Restarts the pods that need it once every node has its network, and decides whether the end begins. `is_prepared`: whether
/// Calico's objects of every node are up to date, `unwatched`: the wait for traffic pods.
async fn end_rollout(
    round: &Round<'_>,
    memory: &mut Memory,
    order: &[String],
    is_prepared: bool,
    unwatched: Option<Wait>,
    status: &mut MigrationStatus,
) -> Result<(), PassError> {
    let pass = round.pass;
    let held = if restarts(pass) {
        restart_pods(round, memory, order).await?
    } else {
        None
    };
    match (is_prepared, pass.kind.strategy) {
        (true, _) => {
            finish_or_stay(round, held, status);
            stop::stay_until_watched(status, unwatched);
        }
        (false, Strategy::InPlace) => status.phase = MigrationPhase::Mixed,
        (false, Strategy::Drain) => {}
    }
    Ok(())
}

/// Whether a node is on flannel and unchanged.
fn is_untouched(object: &NodeMigration) -> bool {
    let phase = object
        .status
        .as_ref()
        .and_then(|status| status.flannel_to_calico.or_empty().phase);
    phase == Some(Phase::Flannel) && !object.spec.started
}

/// Whether the network of a node can be probed: calico-node is Ready. On flannel, the probe pod is created after flannel's own is Ready.
fn is_served(pass: &Pass<'_>, snapshot: &Snapshot, name: &str) -> bool {
    let settings = pass.settings;
    let (namespace, set) = (
        &settings.calico_daemon_set_namespace.value,
        &settings.calico_daemon_set_name.value,
    );
    let node = snapshot.nodes.get(name);
    let is_on_calico = node.is_some_and(|node| network_label(node) == NetworkLabel::Calico);
    !is_on_calico || snapshot.has_ready_daemon(name, namespace, set)
}

/// Whether the probe pod of a node has an address of Calico, and the node is rolled back: the pod is deleted before the host is
/// restored.
fn loses_calicos_address(object: &NodeMigration, node: Option<&Node>) -> bool {
    let on_flannel = node.is_some_and(|node| network_label(node) == NetworkLabel::Flannel);
    object.spec.rolling_back && !on_flannel
}

/// Why drift stops the rollout.
fn drift_stop(migration: &Migration, status: &MigrationStatus) -> Option<String> {
    let rolls_nodes_back = !rollback::rollback_nodes(migration).is_empty();
    crate::drift::stop(migration, status, rolls_nodes_back)
}

/// Result of the check for changes by other writers.
enum Kept {
    /// A new change by another writer: the status has to report it before any other action.
    Announced,
    /// The labels of these nodes were restored.
    Restored(BTreeSet<String>),
}

/// Whether all cluster-wide objects are written, and are not being rolled back.
fn is_kept_written(status: &MigrationStatus) -> bool {
    status.prepared_at.is_some() && status.rollback_started_at.is_none()
}

/// Finds and restores changes by other writers, from the end of the preparation to the rollback of cluster-wide objects.
async fn keep_written(
    pass: &Pass<'_>,
    memory: &mut Memory,
    snapshot: &Snapshot,
    status: &mut MigrationStatus,
) -> Result<Kept, PassError> {
    if !is_kept_written(status) {
        return Ok(Kept::Restored(BTreeSet::new()));
    }
    let (context, migration) = (pass.context, pass.migration);
    let found = drift::observe(pass, memory, snapshot, status).await?;
    let what: Vec<String> = found.iter().map(|found| found.what.clone()).collect();
    if crate::drift::announce(context, migration, &what, status).await {
        if let Some(stop) = stop::stop(drift_stop(migration, status), status, false) {
            stop::halt(status, &stop);
        }
        return Ok(Kept::Announced);
    }
    let restored = drift::restore(context, &mut memory.restores, &found).await?;
    crate::drift::announce(context, migration, &restored.refused, status).await;
    Ok(Kept::Restored(restored.nodes))
}

/// Prepares nodes that joined. Returns those that cannot be started yet, with the reason.
async fn adopt_nodes(pass: &Pass<'_>, back: Option<&Back>) -> Result<BTreeMap<String, String>, PassError> {
    if back != Some(&Back::All) {
        return adopt::adopt_nodes(pass).await;
    }
    // No node is prepared during a rollback, since its objects are removed. But a Node that joins needs flannel.
    adopt::adopt(pass.context, pass.cache, pass.migration).await?;
    adopt::write_settings(pass).await?;
    if selects_nodes(pass) {
        adopt::label_with_flannel(pass.context, &adopt::joined_nodes(pass)).await?;
    }
    Ok(BTreeMap::new())
}

/// The limits and permissions of the spec.
fn policy(pass: &Pass<'_>, clock: &Clock) -> Policy {
    let migration = pass.migration;
    Policy {
        strategy: pass.kind.strategy,
        legacy_pods: pass.kind.legacy_pods,
        step_timeout: limits::step_timeout(migration),
        drain_timeout: limits::drain_timeout(migration),
        on_blocked: limits::on_blocked(migration),
        permissions: limits::permissions(migration),
        grace_period_seconds: migration.spec.drain.grace_period_seconds,
        resumed_at: clock.deadlines_from(migration.spec.resumed_at, pass.now),
    }
}

/// Whether a node that is named for a rollback is not back yet.
pub(super) fn is_rollback_requested(pass: &Pass<'_>) -> bool {
    let names = rollback::rollback_nodes(pass.migration);
    pass.cache.node_migrations.state().iter().any(|object| {
        let spec = &object.spec;
        spec.migration == pass.migration.name_any()
            && names.contains(&spec.node_name)
            && (spec.started || spec.finished_at.is_some())
    })
}

/// Whether a node is in progress by its actual state, although its new `NodeMigration` does not say so.
fn has_lost_record(rollout_node: &RolloutNode<'_>, snapshot: &Snapshot) -> bool {
    let object = snapshot.node_migrations.get(rollout_node.name);
    rollout_node.standing == NodeProgress::Working && object.is_some_and(|object| !object.spec.started)
}

/// Admits these nodes.
async fn start_nodes(
    pass: &Pass<'_>,
    snapshot: &Snapshot,
    nodes: &[&str],
    drafts: &Drafts,
) -> Result<(), WriteError> {
    let (context, now) = (pass.context, pass.now);
    for node in nodes {
        let Some(object) = snapshot.node_migrations.get(*node) else {
            continue;
        };
        // The agent gets its orders first: losses caused by the previous node are then seen before this node changes.
        if drafts.has(node) {
            continue;
        }
        let mut spec = NodeMigrationSpec {
            started: true,
            skipped: false,
            returned_at: None,
            started_at: object.spec.started_at.or(Some(now)),
            step: Some(step_now(Stage::Cordon.as_str(), now)),
            ..object.spec.clone()
        };
        spec.flannel_to_calico.get_or_insert_default().automatic_rollback = None;
        let write = write_spec(context, object, &spec);
        let written = context
            .obstacles
            .attempt(&describe(object.as_ref()), write)
            .await?;
        if written.is_some() {
            crash_point::reach("StartNode", Edge::Recorded, Some(node)).await;
        }
    }
    Ok(())
}
