//! The rollout: which nodes are in work, and the next step of each.

mod mixed;
mod perform;
mod record;
mod summary;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{
    Desired, FlannelToCalico, LegacyPods, MigrationPhase, OnBlocked as WireOnBlocked, Strategy,
};
use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration, names};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use mixed::{finish_or_stay, restart_pods};
use perform::Act;
use plan::decision::Decision;
use plan::flannel_to_calico::node::{NetworkLabel, NodeView, OnBlocked, Policy, Stage, decide, upkeep};
use plan::flannel_to_calico::settings::Settings;
use plan::order::{self, Place};
use plan::rollout::{self, Back, MaxUnavailable, Rules, Seat, Standing};
use record::{record, step_now, tell};
use summary::{Held, count_nodes, summarize};

use super::node_objects::Outcome;
use super::view::Snapshot;
use super::{Memory, adopt, node_objects, probe, undo};
use crate::cache::Cache;
use crate::context::Context;
use crate::evict;
use crate::facts;
use crate::write::{self, WriteError};

/// How long one stage may take when the spec does not say.
const STEP_TIMEOUT_SECONDS: u32 = 600;
/// How long the pods of one node may take to leave when the spec does not say.
const DRAIN_TIMEOUT_SECONDS: u32 = 900;

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
    let snapshot = Snapshot::take(cache, settings, &name, &context.namespace);
    if let Some(message) = malformed(&snapshot) {
        "Malformed".clone_into(&mut status.blocked);
        status.message = message;
        return Ok(Vec::new());
    }
    evict::forget(&mut memory.refusals, |uid| {
        snapshot.pods.iter().any(|pod| pod.uid == uid)
    });
    let probes = probe::choose(&snapshot);
    ask_probers(context, &snapshot, &probes).await?;
    delete_spent_probe_pods(context, &snapshot).await?;

    let policy = policy(migration, kind.strategy);
    let order = order_of(&snapshot, &context.node_name);
    let mut seats = seats(&snapshot, migration, &order);
    // First of all: a node that turns around does not take one step more on the way there.
    let limit = rules(migration).max_unavailable;
    let mut turned = turn::turn_fallen(context, migration, &snapshot, &order, now).await?;
    let mut held_back = None;
    if let Some(back) = &back {
        let turn = rollout::turn_back(&seats, back, limit);
        turned.extend(turn::turn_back(context, &snapshot, &turn.now, now).await?);
        held_back = turn.held;
    }
    for seat in seats.iter_mut().filter(|seat| turned.contains(&seat.name)) {
        seat.standing = Standing::Returning;
    }
    let mut waits: BTreeMap<String, Held> = BTreeMap::new();
    for node in order.iter().filter(|node| !turned.contains(&node.as_str())) {
        let Some(object) = snapshot.node_migrations.get(node) else {
            continue;
        };
        if !object.spec.admitted {
            continue;
        }
        let probers = probes.probers.get(node).cloned().unwrap_or_default();
        // As they are now: an eviction below adds to them.
        let refusals = memory.refusals.clone();
        let Some(view) = snapshot.view(node, &name, &refusals, probers) else {
            continue;
        };
        let Some(node_object) = snapshot.nodes.get(node) else {
            continue;
        };
        let mut act = Act {
            context,
            memory,
            migration,
            node: node_object,
            policy: &policy,
            now,
        };
        match work_on(&mut act, &view, object).await? {
            Worked::Held(held) => waits.extend(held.map(|held| (node.clone(), held))),
            Worked::Unprepared(message) => {
                unprepared.insert(node.clone(), message);
            }
        }
    }

    waits.extend(turn::fallen(&snapshot, &seats).map(|(node, held)| (node.to_owned(), held)));
    let admission = rollout::admit(&seats, &rules(migration), now);
    start_nodes(context, &snapshot, &admission.start, now).await?;
    let held = match &back {
        Some(Back::All) => held_back,
        Some(Back::InWork | Back::Named(_)) | None => held_back.or(admission.held),
    };
    summarize(status, &seats, &waits, held.as_ref(), &unprepared);
    if back == Some(Back::All) {
        turn::rolling_back(context, cache, migration, settings, &seats, status).await?;
    }
    count_nodes(context, &snapshot);
    let all_done = !turn::goes_back(back.as_ref(), &seats)
        && !seats.is_empty()
        && seats
            .iter()
            .all(|seat| matches!(seat.standing, Standing::Done(_)));
    if all_done {
        let wanted = kind.legacy_pods == LegacyPods::Restart && migration.spec.desired == Desired::Run;
        let restarting = if kind.strategy == Strategy::InPlace && wanted {
            restart_pods(context, memory, migration, &snapshot, &order, &policy, now).await?
        } else {
            None
        };
        match (unprepared.is_empty(), kind.strategy) {
            (true, strategy) => finish_or_stay(&snapshot, strategy, restarting, status),
            (false, Strategy::InPlace) => status.phase = MigrationPhase::Mixed,
            (false, Strategy::Drain) => {}
        }
    }
    Ok(waits.values().map(|held| held.reason).collect())
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
    if undo::selects_nodes(cache, settings) {
        adopt::label_with_flannel(context, &adopt::linux_nodes(cache)).await?;
    }
    Ok(BTreeMap::new())
}

/// What became of one look at a node.
enum Worked {
    /// Why it does not go on, if it does not.
    Held(Option<Held>),
    /// It is done, and Calico's objects do not say yet what they have to say of it.
    Unprepared(String),
}

/// The next step of one node, or what a node that is done needs still.
async fn work_on(
    act: &mut Act<'_>,
    view: &NodeView<'_>,
    object: &Arc<NodeMigration>,
) -> Result<Worked, WriteError> {
    let mut spec = object.spec.clone();
    let kept_up = upkeep(view).filter(|_| act.policy.strategy == Strategy::InPlace);
    let worked = match (kept_up, object.spec.finished_at) {
        (Some(step), Some(_)) => match act.perform(&step, &mut spec).await? {
            Outcome::Written => Worked::Held(None),
            Outcome::Blocked(message) => Worked::Unprepared(message),
        },
        (Some(step), None) => {
            let stage = view.stage.map_or(Stage::Import, |(stage, _)| stage);
            let decision = act.decided(view, stage, Decision::Run(step), &mut spec).await?;
            Worked::Held(Held::of(&decision))
        }
        (None, Some(_)) => return Ok(Worked::Held(None)),
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
            Worked::Held(Held::of(&decision))
        }
    };
    write_spec(act.context, object, &spec).await?;
    Ok(worked)
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

/// The first object that was not understood: nobody knows what may be done then.
fn malformed(snapshot: &Snapshot) -> Option<String> {
    let first = snapshot.malformed.first()?;
    Some(format!(
        "{}: {}; nothing is done until it is corrected",
        first.object, first.problem
    ))
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
            step: Some(step_now(Stage::Cordon, now)),
            ..object.spec.clone()
        };
        write_spec(context, object, &spec).await?;
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

/// How long one stage of a node, or a wait of the whole migration without progress, may take.
pub fn step_timeout(migration: &Migration) -> SignedDuration {
    seconds(migration.spec.rollout.step_timeout_seconds, STEP_TIMEOUT_SECONDS)
}

fn seconds(value: Option<u32>, default: u32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(value.unwrap_or(default)))
}

/// The limits and permissions of the spec.
fn policy(migration: &Migration, strategy: Strategy) -> Policy {
    let drain = &migration.spec.drain;
    Policy {
        strategy,
        step_timeout: step_timeout(migration),
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
fn is_on_flannel(node: &Node) -> bool {
    let label = node.labels().get(names::NODE_NETWORK_LABEL);
    match NetworkLabel::read(label.map(String::as_str)) {
        NetworkLabel::Missing | NetworkLabel::Flannel => true,
        NetworkLabel::Neither | NetworkLabel::Calico | NetworkLabel::Other(_) => false,
    }
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
        let label = snapshot
            .nodes
            .get(node)
            .and_then(|node| node.labels().get(names::NODE_NETWORK_LABEL));
        let spent = snapshot.node_migrations.get(node).is_none_or(|object| {
            let spec = &object.spec;
            // On the way back one with Calico's address goes before the host is put back.
            let of_calico = spec.returning && label.is_none_or(|label| label != names::NETWORK_FLANNEL);
            spec.finished_at.is_some() || !spec.admitted || of_calico
        });
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
