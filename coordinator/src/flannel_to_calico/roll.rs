//! The rollout: which nodes are in work, and the next step of each.

mod mixed;
mod perform;
mod record;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::migration::{Desired, FlannelToCalico, MigrationPhase, Strategy};
use api::node_migration::{LabelRecord, NodeMigrationSpec};
use api::{Migration, MigrationStatus, NodeMigration};
use crash_point::Edge;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mixed::{finish_or_stay, restart_pods, restarts};
use perform::Act;
use plan::decision::{Decision, Wait, WaitReason};
use plan::flannel_to_calico::node::{
    NetworkLabel, NodeStep, NodeView, Policy, Stage, at_deadline, decide, upkeep,
};
use plan::flannel_to_calico::phase::Phase;
use plan::flannel_to_calico::settings::Settings;
use plan::rollout::{self, Back, Seat, Standing};
use record::{count_nodes, record, tell};

use super::node_objects::Outcome;
use super::traffic::{fates, networks};
use super::view::{network_label, view};
use super::{adopt, drift, node_objects, undo};
use crate::cache::Cache;
use crate::clock::Clock;
use crate::context::Context;
use crate::limits::{self, rules};
use crate::memory::Memory;
use crate::node_migrations::{bring_to, write_spec};
use crate::probe::{self, Probes};
use crate::snapshot::{Snapshot, node_order};
use crate::steps::step_now;
use crate::summary::{Held, summarize};
use crate::tell::Tone;
use crate::traffic;
use crate::write::{WriteError, describe};
use crate::{evict, facts, stop};

/// One pass over every node. Returns why each node in work waits.
pub async fn roll(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    kind: &FlannelToCalico,
    settings: &Settings,
    status: &mut MigrationStatus,
) -> Result<Vec<&'static str>, WriteError> {
    let now = Timestamp::now();
    let name = migration.name_any();
    let back = turn::wanted(migration);
    let mut unprepared = adopt_nodes(context, cache, migration, settings, back.as_ref()).await?;
    let snapshot = Snapshot::take(cache, &name, &context.namespace);
    let relabelled =
        match keep_written(context, cache, memory, migration, settings, &snapshot, status).await? {
            Kept::Announced => return Ok(Vec::new()),
            Kept::Restored(nodes) => nodes,
        };
    evict::look(context, memory, |uid| {
        snapshot.pods().iter().any(|pod| pod.uid == uid)
    });
    let probes = probe::choose(&snapshot, is_untouched);
    probe::ask_probers(context, &snapshot, &probes).await?;
    probe::delete_spent_probe_pods(context, &snapshot, goes_with_calico).await?;
    let services = &mut memory.services;
    let fates = fates(context, migration, kind.strategy, &snapshot);
    let watched = traffic::watch(
        context,
        services,
        migration,
        &networks(),
        fates,
        &snapshot,
        status,
    )
    .await?;
    let lossy = traffic::stop(context, migration, &watched, status, now).await;
    let policy = policy(migration, kind.strategy, &memory.clock, now);
    let order = node_order(&snapshot, &context.node_name);
    let mut seats = seats(&snapshot, migration, &order);
    // First of all: a node that turns around does not take one step more on the way there.
    let (turned, held_back) = turn::turn_around(
        context,
        migration,
        &snapshot,
        &order,
        &mut seats,
        back.as_ref(),
        now,
    )
    .await?;
    let goes_on = |node: &&String| !turned.contains(&node.as_str()) && !relabelled.contains(*node);
    let round = Round {
        context,
        migration,
        settings,
        snapshot: &snapshot,
        probes: &probes,
        policy: &policy,
        now,
    };
    let Worked { mut waits, blocked } = round.work(memory, order.iter().filter(goes_on)).await?;
    unprepared.extend(blocked);
    waits.extend(turn::fallen(&snapshot, &seats).map(|(node, held)| (node.to_owned(), held)));
    let stop = stop::stop(crate::drift::stop(migration, status), status, lossy);
    let rules = stop::held(rules(migration), status, &seats, &watched, stop.as_ref());
    let admission = rollout::admit(&seats, &rules, now);
    start_nodes(context, &snapshot, &admission.start, now).await?;
    let held = match &back {
        Some(Back::All) => held_back,
        Some(Back::InWork | Back::Named(_)) | None => held_back.or(admission.held),
    };
    summarize(status, &seats, &waits, held.as_ref(), &unprepared);
    if let Some(stop) = &stop
        && status.phase != MigrationPhase::Halted
    {
        stop::halt(status, stop);
    }
    if back == Some(Back::All) {
        turn::rolling_back(context, cache, memory, migration, settings, &seats, status).await?;
    }
    count_nodes(context, &snapshot);
    if stop.is_none() && turn::all_are_there(back.as_ref(), &seats) {
        let held = if restarts(migration, kind) {
            restart_pods(&round, memory, &order).await?
        } else {
            None
        };
        match (unprepared.is_empty(), kind.strategy) {
            (true, strategy) => {
                finish_or_stay(&snapshot, &context.namespace, strategy, held, status);
                stop::stay_until_watched(status, watched.unwatched);
            }
            (false, Strategy::InPlace) => status.phase = MigrationPhase::Mixed,
            (false, Strategy::Drain) => {}
        }
    }
    Ok(waits.values().map(|held| held.reason).collect())
}

/// Whether a node is on flannel as it was before.
fn is_untouched(object: &NodeMigration) -> bool {
    let phase = object.status.as_ref().and_then(|status| status.phase);
    phase == Some(Phase::Flannel) && !object.spec.admitted
}

/// Whether the probe pod of a node has an address of Calico's, and the node is on its way back: it goes before the host is put
/// back.
fn goes_with_calico(object: &NodeMigration, node: Option<&Node>) -> bool {
    let on_flannel = node.is_some_and(|node| network_label(node) == NetworkLabel::Flannel);
    object.spec.returning && !on_flannel
}

/// What became of what the migration has written.
enum Kept {
    /// Somebody else changed something that nobody knew of: the status has to say so before anything else is done.
    Announced,
    /// The labels of these nodes were not what was written.
    Restored(BTreeSet<String>),
}

/// Finds and writes again what somebody else changed, from when all of it is there until it is being taken back.
async fn keep_written(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    settings: &Settings,
    snapshot: &Snapshot,
    status: &mut MigrationStatus,
) -> Result<Kept, WriteError> {
    if status.prepared_at.is_none() || status.undone_since.is_some() {
        return Ok(Kept::Restored(BTreeSet::new()));
    }
    drift::record(context, snapshot).await?;
    let found = drift::look(context, cache, memory, migration, settings, snapshot, status).await?;
    let what: Vec<String> = found.iter().map(|found| found.what.clone()).collect();
    if crate::drift::announce(context, migration, &what, status).await {
        if let Some(stop) = stop::stop(crate::drift::stop(migration, status), status, false) {
            stop::halt(status, &stop);
        }
        return Ok(Kept::Announced);
    }
    let restored = drift::restore(context, &mut memory.restores, &found).await?;
    crate::drift::announce(context, migration, &restored.refused, status).await;
    Ok(Kept::Restored(restored.nodes))
}

/// Nodes that joined get what the others have. Returns those that cannot be started yet, with the reason.
async fn adopt_nodes(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    settings: &Settings,
    back: Option<&Back>,
) -> Result<BTreeMap<String, String>, WriteError> {
    if back != Some(&Back::All) {
        return adopt::adopt_nodes(context, cache, migration, settings).await;
    }
    // Nothing is prepared any more: what was written for the nodes goes, too. But a Node that joins needs flannel.
    adopt::adopt_node_migrations(context, cache, migration).await?;
    adopt::write_settings(context, cache, migration, settings).await?;
    if undo::selects_nodes(cache, settings) {
        adopt::label_with_flannel(context, &adopt::newcomers(cache, migration)).await?;
    }
    Ok(BTreeMap::new())
}

/// The limits and permissions of the spec.
fn policy(migration: &Migration, strategy: Strategy, clock: &Clock, now: Timestamp) -> Policy {
    Policy {
        strategy,
        step_timeout: limits::step_timeout(migration),
        drain_timeout: limits::drain_timeout(migration),
        on_blocked: limits::on_blocked(migration),
        permissions: limits::permissions(migration),
        resumed_at: clock.deadlines_from(migration.spec.resumed_at, now),
    }
}

/// What every node in work, or done, is looked at with.
struct Round<'pass> {
    context: &'pass Context,
    migration: &'pass Migration,
    settings: &'pass Settings,
    snapshot: &'pass Snapshot,
    probes: &'pass Probes,
    policy: &'pass Policy,
    now: Timestamp,
}

/// What became of the nodes that were looked at.
#[derive(Default)]
struct Worked {
    /// Why each of these does not go on.
    waits: BTreeMap<String, Held>,
    /// Those that are done, and of which Calico's objects do not say yet what they have to say.
    blocked: BTreeMap<String, String>,
}

impl Round<'_> {
    /// Takes the next step of each of these nodes that was ever taken into work.
    async fn work(
        &self,
        memory: &mut Memory,
        nodes: impl Iterator<Item = &String>,
    ) -> Result<Worked, WriteError> {
        let mut worked = Worked::default();
        // As they are now: an eviction below adds to them.
        let refusals = memory.refusals.clone();
        for node in nodes {
            let (Some(object), Some(node_object)) = (
                self.snapshot.node_migrations.get(node),
                self.snapshot.nodes.get(node),
            ) else {
                continue;
            };
            // Most nodes wait: nothing is made for them.
            if !object.spec.admitted && !object.spec.skipped {
                continue;
            }
            let key = describe(node_object.as_ref());
            if !object.spec.admitted {
                // Set aside, perhaps for a refusal: that is told until it has been tried again.
                self.context.obstacles.holds(&key, self.now);
                continue;
            }
            let probers = self.probes.probers.get(node).cloned().unwrap_or_default();
            if let Some(message) = self.context.obstacles.holds(&key, self.now) {
                worked
                    .waits
                    .insert(node.clone(), Held::waiting(&refusal(message)));
                continue;
            }
            let name = self.migration.name_any();
            let view = view(self.snapshot, self.settings, node, &name, &refusals, probers);
            let Some(view) = view else {
                continue;
            };
            let mut act = Act {
                context: self.context,
                memory,
                migration: self.migration,
                settings: self.settings,
                node: node_object,
                object: Arc::clone(object),
                policy: self.policy,
                now: self.now,
            };
            match work_on(&mut act, &view, object).await {
                Ok(Looked::Held(held)) => worked.waits.extend(held.map(|held| (node.clone(), held))),
                Ok(Looked::Blocked(message)) => {
                    worked.blocked.insert(node.clone(), message);
                }
                Err(error) => {
                    let refused = self.context.obstacles.note(&key, error, self.now)?;
                    let Some(message) = refused else { continue };
                    let held = self.refused(object, &view, message).await?;
                    worked.waits.insert(node.clone(), held);
                    continue;
                }
            }
            self.context.obstacles.clear(&key);
        }
        Ok(worked)
    }
}

impl Round<'_> {
    /// Writes down that the API server refuses a write of this node: a wait like any other, with the deadline of its stage. A node
    /// of which nothing has changed is set aside: it takes no other's place.
    async fn refused(
        &self,
        object: &Arc<NodeMigration>,
        view: &NodeView<'_>,
        message: String,
    ) -> Result<Held, WriteError> {
        if view.can_be_set_aside() {
            let spec = NodeMigrationSpec {
                admitted: false,
                skipped: true,
                step: None,
                ..object.spec.clone()
            };
            bring_to(self.context, object, &spec).await?;
            if let Some(node) = self.snapshot.nodes.get(&object.spec.node_name) {
                let reason = WaitReason::RequestRefused.as_str();
                let note = format!("node {} is set aside and tried again: {message}", view.name);
                self.context.teller.node(node, Tone::Warning, reason, &note).await;
            }
            return Ok(Held::waiting(&refusal(message)));
        }
        let stage = decide(view, self.policy, self.now).stage;
        let decision = at_deadline(view, self.policy, stage, refusal(message), self.now);
        let mut spec = object.spec.clone();
        record(self.context, &mut spec, stage, &decision, self.policy, self.now);
        if let Some(node) = self.snapshot.nodes.get(&object.spec.node_name) {
            tell(self.context, node, &decision).await;
        }
        // Where this one is refused, too, the status of the Migration says so.
        bring_to(self.context, object, &spec).await?;
        Ok(Held::of(&decision).unwrap_or_else(|| Held::waiting(&refusal(String::new()))))
    }
}

/// The wait for an API server that refuses.
fn refusal(message: String) -> Wait {
    Wait {
        reason: WaitReason::RequestRefused,
        message,
        until: None,
    }
}

/// What became of one look at a node.
enum Looked {
    /// Why it does not go on, if it does not.
    Held(Option<Held>),
    /// It is done, and Calico's objects do not say yet what they have to say of it.
    Blocked(String),
}

/// The next step of one node, or what a node that is done needs still.
async fn work_on(
    act: &mut Act<'_>,
    view: &NodeView<'_>,
    object: &Arc<NodeMigration>,
) -> Result<Looked, WriteError> {
    let mut spec = object.spec.clone();
    settle_label(&mut spec, &view.network);
    if let Some(step) = &mut spec.step {
        step.since = act.memory.clock.since(step.since);
    }
    let kept_up = upkeep(view).filter(|_| act.policy.strategy == Strategy::InPlace);
    let mut made = None;
    let worked = match (kept_up, object.spec.finished_at) {
        (Some(step), Some(_)) => match act.perform(&step, &mut spec).await? {
            Outcome::Written => {
                made = Some(step.name());
                Looked::Held(None)
            }
            Outcome::Blocked(message) => Looked::Blocked(message),
        },
        (Some(step), None) => {
            let stage = view.stage.map_or(Stage::Import, |(stage, _)| stage);
            let decision = act.decided(view, stage, Decision::Run(step), &mut spec).await?;
            made = name_of(&decision);
            Looked::Held(Held::of(&decision))
        }
        (None, Some(_)) => Looked::Held(None),
        (None, None) => {
            let next = decide(view, act.policy, act.now);
            record(
                act.context,
                &mut spec,
                next.stage,
                &next.decision,
                act.policy,
                act.now,
            );
            tell(act.context, act.node, &next.decision).await;
            let decision = act.decided(view, next.stage, next.decision, &mut spec).await?;
            made = name_of(&decision);
            Looked::Held(Held::of(&decision).or_else(|| refused_still(&decision, &spec)))
        }
    };
    // A label is announced in between.
    write_spec(act.context, &act.object, &spec).await?;
    if let Some(step) = made {
        crash_point::reach(step, Edge::Recorded, Some(&object.spec.node_name)).await;
    }
    Ok(worked)
}

/// A label that was announced and is there was written, whatever came in between.
fn settle_label(spec: &mut NodeMigrationSpec, label: &NetworkLabel) {
    if spec.label.next.is_some() && spec.label.next.as_deref() == label.value() {
        spec.label = LabelRecord {
            written: spec.label.next.take(),
            next: None,
        };
    }
}

/// Why an eviction that is under way again was refused before: the words stay until it is answered.
fn refused_still(decision: &Decision<NodeStep>, spec: &NodeMigrationSpec) -> Option<Held> {
    let step = spec.step.as_ref().filter(|step| !step.reason.is_empty())?;
    let reason = WaitReason::read(&step.reason)?;
    let is_eviction = matches!(decision, Decision::Run(NodeStep::Evict(_)));
    is_eviction.then(|| {
        Held::waiting(&Wait {
            reason,
            message: step.message.clone(),
            until: None,
        })
    })
}

/// The step that was made, if one was.
fn name_of(decision: &Decision<NodeStep>) -> Option<&'static str> {
    match decision {
        Decision::Run(step) => Some(step.name()),
        Decision::Wait(_) | Decision::Settled | Decision::Halt(_) => None,
    }
}

/// Whether a node that was named is to go back and is not back.
pub fn is_asked_back(cache: &Cache, migration: &Migration) -> bool {
    let names = &migration.spec.rollback_nodes;
    cache.node_migrations.state().iter().any(|object| {
        let spec = &object.spec;
        spec.migration == migration.name_any()
            && names.contains(&spec.node_name)
            && (spec.admitted || spec.finished_at.is_some())
    })
}

/// Takes these nodes into work.
async fn start_nodes(
    context: &Context,
    snapshot: &Snapshot,
    nodes: &[&str],
    now: Timestamp,
) -> Result<(), WriteError> {
    for node in nodes {
        let Some(object) = snapshot.node_migrations.get(*node) else {
            continue;
        };
        let spec = NodeMigrationSpec {
            admitted: true,
            skipped: false,
            returned_at: None,
            fell_back: None,
            started_at: object.spec.started_at.or(Some(now)),
            step: Some(step_now(Stage::Cordon.as_str(), now)),
            ..object.spec.clone()
        };
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

fn seats<'order>(snapshot: &Snapshot, migration: &Migration, order: &'order [String]) -> Vec<Seat<'order>> {
    order
        .iter()
        .filter_map(|name| {
            let object = snapshot.node_migrations.get(name)?;
            let node = snapshot.nodes.get(name)?;
            let spec = &object.spec;
            let kept = migration.spec.rollback_nodes.contains(name);
            let fallen = turn::has_fallen(spec, migration);
            let standing = match (spec.finished_at, spec.admitted, spec.skipped) {
                (Some(at), _, _) => Standing::Done(at),
                (None, true, _) if spec.step.as_ref().is_some_and(|step| step.halted) => Standing::Halted,
                (None, true, _) if spec.returning => Standing::Returning,
                (None, true, _) => Standing::Working,
                (None, false, _) if fallen => Standing::Fallen,
                (None, false, _) if kept => Standing::Kept,
                (None, false, true) => Standing::Skipped,
                (None, false, false) => Standing::Waiting,
            };
            // A node that Calico does not know yet (it joined a moment ago) cannot start either.
            let starts = matches!(standing, Standing::Waiting | Standing::Skipped)
                && migration.spec.desired != Desired::Rollback;
            let prepared = !starts || node_objects::is_prepared(node, migration);
            Some(Seat {
                name,
                standing,
                ready: facts::nodes::is_ready(node) && prepared,
                on_old: is_on_flannel(node),
            })
        })
        .collect()
}

/// Whether the Node's label says that flannel runs on it.
pub fn is_on_flannel(node: &Node) -> bool {
    match network_label(node) {
        NetworkLabel::Missing | NetworkLabel::Flannel => true,
        NetworkLabel::Neither | NetworkLabel::Calico | NetworkLabel::Other(_) => false,
    }
}
