//! The rollout: which nodes are in work, and the next step of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{Desired, MigrationPhase, OnBlocked as WireOnBlocked};
use api::node_migration::{NodeMigrationSpec, StepDone, StepNow};
use api::{Migration, MigrationStatus, NodeMigration, names};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use plan::decision::{Decision, Halt, Wait, WaitReason};
use plan::flannel_to_calico::node::{NodeStep, OnBlocked, Policy, Stage, decide};
use plan::flannel_to_calico::settings::Settings;
use plan::order::{self, Place};
use plan::rollout::{self, MaxUnavailable, Rules, Seat, Standing};
use serde_json::{Value, json};

use super::view::{Snapshot, is_cordoned_by};
use super::{Memory, adopt, node_objects, probe};
use crate::cache::Cache;
use crate::context::Context;
use crate::evict;
use crate::facts;
use crate::tell::Tone;
use crate::write::{self, WriteError};

/// How long one stage may take when the spec does not say.
const STEP_TIMEOUT_SECONDS: u32 = 600;
/// How long the pods of one node may take to leave when the spec does not say.
const DRAIN_TIMEOUT_SECONDS: u32 = 900;

/// Why a node in work does not go on.
struct Held {
    reason: &'static str,
    message: String,
    needs_a_person: bool,
}

impl Held {
    fn waiting(wait: &Wait) -> Self {
        Self {
            reason: wait.reason.as_str(),
            message: wait.message.clone(),
            needs_a_person: wait.reason.needs_a_person(),
        }
    }

    fn halted(halt: &Halt) -> Self {
        Self {
            reason: halt.reason.as_str(),
            message: halt.message.clone(),
            needs_a_person: true,
        }
    }
}

/// One pass over every node.
pub async fn roll(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    settings: &Settings,
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    let now = Timestamp::now();
    let name = migration.name_any();
    let unprepared = adopt::adopt_nodes(context, cache, migration, settings).await?;
    let snapshot = Snapshot::take(cache, settings, &name, &context.namespace);
    if let Some(malformed) = snapshot.malformed.first() {
        "Malformed".clone_into(&mut status.blocked);
        status.message = format!(
            "{}: {}; nothing is done until it is corrected",
            malformed.object, malformed.problem
        );
        return Ok(());
    }
    evict::forget(&mut memory.refusals, |uid| {
        snapshot.pods.iter().any(|pod| pod.uid == uid)
    });
    let probes = probe::choose(&snapshot);
    ask_probers(context, &snapshot, &probes).await?;
    delete_spent_probe_pods(context, &snapshot).await?;

    let policy = policy(migration);
    let order = order_of(&snapshot, &context.node_name);
    let mut waits: BTreeMap<String, Held> = BTreeMap::new();
    for node in &order {
        let Some(object) = snapshot.node_migrations.get(node) else {
            continue;
        };
        if !object.spec.admitted || object.spec.finished_at.is_some() {
            continue;
        }
        let probers = probes.probers.get(node).cloned().unwrap_or_default();
        let Some(view) = snapshot.view(node, &name, &memory.refusals, probers) else {
            continue;
        };
        let next = decide(&view, &policy, now);
        let mut spec = object.spec.clone();
        record(context, &mut spec, next.stage, &next.decision, now);
        if let Some(node_object) = snapshot.nodes.get(node) {
            tell(context, node_object, &next.decision).await;
            match &next.decision {
                Decision::Run(step) => {
                    perform(context, memory, migration, node_object, step, &mut spec, now).await?;
                }
                Decision::Wait(wait) => {
                    waits.insert(node.clone(), Held::waiting(wait));
                }
                Decision::Halt(halt) => {
                    waits.insert(node.clone(), Held::halted(halt));
                }
                Decision::Settled => {}
            }
        }
        write_spec(context, object, &spec).await?;
    }

    let seats = seats(&snapshot, migration, &order);
    let admission = rollout::admit(&seats, &rules(migration), now);
    for node in &admission.start {
        let Some(object) = snapshot.node_migrations.get(*node) else {
            continue;
        };
        let spec = NodeMigrationSpec {
            admitted: true,
            skipped: false,
            started_at: object.spec.started_at.or(Some(now)),
            step: Some(step_now(Stage::Cordon, now)),
            ..object.spec.clone()
        };
        write_spec(context, object, &spec).await?;
    }
    summarize(status, &seats, &waits, admission.held.as_ref(), &unprepared);
    count(context, &snapshot, &waits);
    if !seats.is_empty()
        && seats
            .iter()
            .all(|seat| matches!(seat.standing, Standing::Done(_)))
    {
        status.phase = MigrationPhase::Finishing;
        "every node is on Calico; the old network's objects are removed".clone_into(&mut status.message);
    }
    Ok(())
}

/// Nodes in the order in which they are worked on.
pub fn order_of(snapshot: &Snapshot, coordinator_node: &str) -> Vec<String> {
    let mut places: Vec<Place<'_>> = snapshot
        .nodes
        .iter()
        .filter(|(name, _)| snapshot.node_migrations.contains_key(*name))
        .map(|(name, node)| Place {
            name,
            control_plane: facts::nodes::is_control_plane(node),
            coordinator: name == coordinator_node,
        })
        .collect();
    order::sort(&mut places);
    places.iter().map(|place| place.name.to_owned()).collect()
}

/// The limits and permissions of the spec.
fn policy(migration: &Migration) -> Policy {
    let drain = &migration.spec.drain;
    let seconds =
        |value: Option<u32>, default: u32| SignedDuration::from_secs(i64::from(value.unwrap_or(default)));
    Policy {
        step_timeout: seconds(migration.spec.rollout.step_timeout_seconds, STEP_TIMEOUT_SECONDS),
        drain_timeout: seconds(drain.timeout_seconds, DRAIN_TIMEOUT_SECONDS),
        on_blocked: match drain.on_blocked {
            WireOnBlocked::Pause => OnBlocked::Pause,
            WireOnBlocked::Wait => OnBlocked::Wait,
            WireOnBlocked::Skip => OnBlocked::Skip,
        },
        permissions: plan::drain::Permissions {
            delete_empty_dir_data: drain.delete_empty_dir_data,
            force: drain.force,
        },
        resumed_at: migration.spec.resumed_at,
    }
}

/// The rules of the spec. A `maxUnavailable` that cannot be meant was refused by a check; 1 is the safe reading.
fn rules(migration: &Migration) -> Rules {
    let rollout = &migration.spec.rollout;
    let canary = rollout.canary.clone().unwrap_or_default();
    Rules {
        max_unavailable: max_unavailable(migration).unwrap_or(MaxUnavailable::Nodes(1)),
        canary_nodes: usize::try_from(canary.nodes).unwrap_or(usize::MAX),
        canary_soak: SignedDuration::from_secs(i64::from(canary.soak_seconds)),
        interval: SignedDuration::from_secs(i64::from(rollout.interval_seconds)),
        paused: migration.spec.desired != Desired::Run,
    }
}

/// `rollout.maxUnavailable`; 1 when it is not set.
pub fn max_unavailable(migration: &Migration) -> Result<MaxUnavailable, rollout::MaxUnavailableError> {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    match &migration.spec.rollout.max_unavailable {
        None => Ok(MaxUnavailable::Nodes(1)),
        Some(IntOrString::Int(nodes)) => MaxUnavailable::parse(&nodes.to_string()),
        Some(IntOrString::String(text)) => MaxUnavailable::parse(text),
    }
}

fn seats<'order>(snapshot: &Snapshot, migration: &Migration, order: &'order [String]) -> Vec<Seat<'order>> {
    order
        .iter()
        .filter_map(|name| {
            let object = snapshot.node_migrations.get(name)?;
            let node = snapshot.nodes.get(name)?;
            let spec = &object.spec;
            let standing = match (spec.finished_at, spec.admitted, spec.skipped) {
                (Some(at), _, _) => Standing::Done(at),
                (None, true, _) if spec.step.as_ref().is_some_and(|step| step.halted) => Standing::Halted,
                (None, true, _) => Standing::Working,
                (None, false, true) => Standing::Skipped,
                (None, false, false) => Standing::Waiting,
            };
            // A node that Calico does not know yet (it joined a moment ago) cannot start either.
            let prepared =
                matches!(standing, Standing::Done(_)) || node_objects::is_prepared(node, migration);
            Some(Seat {
                name,
                standing,
                ready: facts::nodes::is_ready(node) && prepared,
            })
        })
        .collect()
}

/// Writes what the node does now into its spec; a stage that is over goes to the history.
fn record(
    context: &Context,
    spec: &mut NodeMigrationSpec,
    stage: Stage,
    decision: &Decision<NodeStep>,
    now: Timestamp,
) {
    let mut step = match spec.step.take() {
        Some(step) if step.name == stage.as_str() => step,
        Some(over) => {
            finish_stage(context, spec, over, now);
            step_now(stage, now)
        }
        None => step_now(stage, now),
    };
    let (reason, message, halted) = match decision {
        Decision::Run(_) | Decision::Settled => (String::new(), String::new(), false),
        Decision::Wait(wait) => (wait.reason.as_str().to_owned(), wait.message.clone(), false),
        Decision::Halt(halt) => (halt.reason.as_str().to_owned(), halt.message.clone(), true),
    };
    // An eviction that is under way keeps the words of the last refusal: they say who blocks.
    if !matches!(decision, Decision::Run(NodeStep::Evict(_))) {
        step.reason = reason;
        step.message = message;
    }
    step.halted = halted;
    spec.step = Some(step);
}

fn finish_stage(context: &Context, spec: &mut NodeMigrationSpec, over: StepNow, now: Timestamp) {
    let seconds = now.duration_since(over.since).as_secs_f64();
    context
        .metrics
        .step_duration
        .with_label_values(&[over.name.as_str()])
        .observe(seconds);
    spec.history.push(StepDone {
        name: over.name,
        started_at: over.since,
        finished_at: now,
    });
}

fn step_now(stage: Stage, now: Timestamp) -> StepNow {
    StepNow {
        name: stage.as_str().to_owned(),
        since: now,
        reason: String::new(),
        message: String::new(),
        halted: false,
    }
}

async fn tell(context: &Context, node: &Node, decision: &Decision<NodeStep>) {
    match decision {
        Decision::Run(_) | Decision::Settled => {}
        Decision::Wait(wait) => {
            context
                .teller
                .node(node, Tone::Normal, wait.reason.as_str(), &wait.message)
                .await;
        }
        Decision::Halt(halt) => {
            context
                .teller
                .node(node, Tone::Warning, halt.reason.as_str(), &halt.message)
                .await;
        }
    }
}

/// Makes one change. Idempotent: a crash before the spec is written repeats it.
async fn perform(
    context: &Context,
    memory: &mut Memory,
    migration: &Migration,
    node: &Node,
    step: &NodeStep,
    spec: &mut NodeMigrationSpec,
    now: Timestamp,
) -> Result<(), WriteError> {
    let name = node.name_any();
    let nodes: Api<Node> = Api::all(context.client.clone());
    match step {
        NodeStep::Cordon => {
            write::patch(&nodes, node, "cordoning", cordon(migration, node)).await?;
            context
                .teller
                .node(
                    node,
                    Tone::Normal,
                    "Cordoned",
                    &format!("node {name} is cordoned by replumb"),
                )
                .await;
        }
        NodeStep::Evict(pods) => {
            let grace = migration.spec.drain.grace_period_seconds;
            evict::evict(
                &context.client,
                &context.metrics,
                pods,
                grace,
                &mut memory.refusals,
            )
            .await;
        }
        NodeStep::Label(value) => {
            let change = json!({ "metadata": { "labels": { names::NODE_NETWORK_LABEL: value } } });
            write::patch(&nodes, node, "labelling", change).await?;
        }
        NodeStep::Goal(goal) => spec.goal = *goal,
        NodeStep::CreateProbePod => probe::create(context, migration, node).await?,
        NodeStep::Uncordon => {
            write::patch(&nodes, node, "uncordoning", uncordon(migration, node)).await?;
        }
        NodeStep::Complete => {
            release_scale_down(context, migration, node).await?;
            if let Some(step) = spec.step.take() {
                finish_stage(context, spec, step, now);
            }
            spec.finished_at = Some(now);
            context
                .teller
                .node(
                    node,
                    Tone::Normal,
                    "Migrated",
                    &format!("node {name} is on Calico"),
                )
                .await;
        }
        NodeStep::Skip => {
            write::patch(&nodes, node, "uncordoning", uncordon(migration, node)).await?;
            spec.admitted = false;
            spec.skipped = true;
            spec.step = None;
            let note = format!("node {name} is set aside: its drain was blocked past drain.timeoutSeconds");
            context.teller.node(node, Tone::Warning, "Skipped", &note).await;
        }
    }
    Ok(())
}

/// `unschedulable`, and in the same write whose cordon it is; the cluster autoscaler keeps its hands off.
fn cordon(migration: &Migration, node: &Node) -> Value {
    let name = migration.name_any();
    let mut annotations = json!({ names::CORDONED_BY_ANNOTATION: name });
    if !node
        .annotations()
        .contains_key(names::SCALE_DOWN_DISABLED_ANNOTATION)
    {
        annotations[names::SCALE_DOWN_DISABLED_ANNOTATION] = json!("true");
        annotations[names::SCALE_DOWN_OURS_ANNOTATION] = json!(name);
    }
    json!({ "spec": { "unschedulable": true }, "metadata": { "annotations": annotations } })
}

/// The reverse of [`cordon`], for what is ours: somebody else's cordon stays.
pub fn uncordon(migration: &Migration, node: &Node) -> Value {
    let mut change = json!({ "metadata": { "annotations": { names::CORDONED_BY_ANNOTATION: null } } });
    if is_cordoned_by(node, &migration.name_any()) {
        change["spec"] = json!({ "unschedulable": null });
    }
    if node.annotations().contains_key(names::SCALE_DOWN_OURS_ANNOTATION) {
        change["metadata"]["annotations"][names::SCALE_DOWN_OURS_ANNOTATION] = Value::Null;
        change["metadata"]["annotations"][names::SCALE_DOWN_DISABLED_ANNOTATION] = Value::Null;
    }
    change
}

async fn release_scale_down(context: &Context, migration: &Migration, node: &Node) -> Result<(), WriteError> {
    if node.annotations().contains_key(names::SCALE_DOWN_OURS_ANNOTATION) {
        let nodes: Api<Node> = Api::all(context.client.clone());
        write::patch(&nodes, node, "releasing", uncordon(migration, node)).await?;
    }
    Ok(())
}

/// Gives every agent the targets that it should probe now, and takes back the others.
async fn ask_probers(
    context: &Context,
    snapshot: &Snapshot,
    probes: &probe::Probes,
) -> Result<(), WriteError> {
    for (node, object) in &snapshot.node_migrations {
        let wanted = probes.wanted.get(node).cloned().unwrap_or_default();
        if object.spec.probes != wanted {
            write_spec(
                context,
                object,
                &NodeMigrationSpec {
                    probes: wanted,
                    ..object.spec.clone()
                },
            )
            .await?;
        }
    }
    Ok(())
}

/// A probe pod whose node is done, or not in work any more, has served.
async fn delete_spent_probe_pods(context: &Context, snapshot: &Snapshot) -> Result<(), WriteError> {
    for (node, pod) in &snapshot.probe_pods {
        let spent = snapshot
            .node_migrations
            .get(node)
            .is_none_or(|object| object.spec.finished_at.is_some() || !object.spec.admitted);
        if spent {
            probe::delete(context, pod).await?;
        }
    }
    Ok(())
}

async fn write_spec(
    context: &Context,
    object: &Arc<NodeMigration>,
    spec: &NodeMigrationSpec,
) -> Result<(), WriteError> {
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    match write::patch_spec(&api, object.as_ref(), &object.spec, spec).await {
        // Written by an earlier step of this very pass: the next pass decides on the new state.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn summarize(
    status: &mut MigrationStatus,
    seats: &[Seat<'_>],
    waits: &BTreeMap<String, Held>,
    held: Option<&Wait>,
    unprepared: &BTreeMap<String, String>,
) {
    let named = |wanted: fn(&Standing) -> bool| -> Vec<String> {
        seats
            .iter()
            .filter(|seat| wanted(&seat.standing))
            .map(|seat| seat.name.to_owned())
            .collect()
    };
    let done = named(|standing| matches!(standing, Standing::Done(_))).len();
    let halted = named(|standing| *standing == Standing::Halted);
    let working = named(|standing| matches!(standing, Standing::Working | Standing::Halted));
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    status.progress = api::migration::Progress {
        text: format!("{done}/{}", seats.len()),
        nodes: count(seats.len()),
        done: count(done),
        working: working.clone(),
        deferred: seats
            .iter()
            .filter(|seat| {
                seat.standing == Standing::Skipped || (seat.standing == Standing::Waiting && !seat.ready)
            })
            .map(|seat| seat.name.to_owned())
            .collect(),
    };
    status.phase = if halted.is_empty() {
        MigrationPhase::Rolling
    } else {
        MigrationPhase::Halted
    };
    let held_up = || halted.iter().chain(&working).filter_map(|node| waits.get(node));
    let first = held_up()
        .find(|held| held.needs_a_person)
        .or_else(|| held_up().next())
        .map(|held| (held.reason.to_owned(), held.message.clone()));
    let held = held.map(|wait| (wait.reason.as_str().to_owned(), wait.message.clone()));
    let unprepared = unprepared
        .values()
        .next()
        .map(|message| (WaitReason::CalicoObjects.as_str().to_owned(), message.clone()));
    // What a node in work waits for says more than why the next one does not start.
    let (blocked, message) = match (first, held) {
        (Some(first), _) => first,
        (None, held) if working.is_empty() && unprepared.is_some() => unprepared.or(held).unwrap_or_default(),
        (None, Some(held)) if working.is_empty() => held,
        (None, _) if working.is_empty() => (String::new(), String::new()),
        (None, _) => (String::new(), format!("in work: {}", working.join(", "))),
    };
    status.blocked = blocked;
    status.message = message;
}

fn count(context: &Context, snapshot: &Snapshot, waits: &BTreeMap<String, Held>) {
    let mut by_stage: BTreeMap<&str, i64> = Stage::ALL.iter().map(|stage| (stage.as_str(), 0)).collect();
    by_stage.extend([("Waiting", 0), ("Skipped", 0), ("Done", 0)]);
    for object in snapshot.node_migrations.values() {
        let spec = &object.spec;
        let phase = match (&spec.step, spec.finished_at) {
            (_, Some(_)) => "Done",
            (Some(step), None) if spec.admitted => Stage::read(&step.name).map_or("Waiting", Stage::as_str),
            (_, None) if spec.skipped => "Skipped",
            (_, None) => "Waiting",
        };
        *by_stage.entry(phase).or_default() += 1;
    }
    for (phase, nodes) in by_stage {
        context.metrics.nodes.with_label_values(&[phase]).set(nodes);
    }
    context.metrics.blocked.reset();
    for Held { reason, .. } in waits.values() {
        context.metrics.blocked.with_label_values(&[*reason]).inc();
    }
}
