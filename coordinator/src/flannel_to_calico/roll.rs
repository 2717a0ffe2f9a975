//! The rollout: which nodes are in work, and the next step of each.

mod mixed;
mod perform;
mod record;
mod summary;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{
    Desired, FlannelToCalico, LegacyPods, MigrationPhase, OnBlocked as WireOnBlocked, Strategy,
};
use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration};
use jiff::{SignedDuration, Timestamp};
use kube::{Api, ResourceExt};
use mixed::{finish_or_stay, restart_pods};
use perform::perform;
use plan::decision::{Decision, Wait, WaitReason};
use plan::flannel_to_calico::node::{
    NodeStep, NodeView, OnBlocked, Policy, Stage, at_deadline, decide, upkeep,
};
use plan::flannel_to_calico::settings::Settings;
use plan::order::{self, Place};
use plan::rollout::{self, MaxUnavailable, Rules, Seat, Standing};
use record::{record, step_now, tell};
use summary::{Held, count_nodes, summarize};

use super::node_objects::Outcome;
use super::view::Snapshot;
use super::{Memory, adopt, node_objects, probe};
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
    let mut unprepared = adopt::adopt_nodes(context, cache, migration, settings).await?;
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
    let mut waits: BTreeMap<String, Held> = BTreeMap::new();
    for node in &order {
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
        let mut spec = object.spec.clone();
        if let (Strategy::InPlace, Some(step), Some(node_object)) =
            (policy.strategy, upkeep(&view), snapshot.nodes.get(node))
        {
            let outcome = perform(context, memory, migration, node_object, &step, &mut spec, now).await?;
            match (outcome, spec.finished_at) {
                (Outcome::Written, _) => {}
                (Outcome::Blocked(message), Some(_)) => {
                    unprepared.insert(node.clone(), message);
                }
                (Outcome::Blocked(message), None) => {
                    let stage = view.stage.map_or(Stage::Import, |(stage, _)| stage);
                    let decision = blocked(&view, &policy, stage, message, now);
                    record(context, &mut spec, stage, &decision, now);
                    waits.extend(Held::of(&decision).map(|held| (node.clone(), held)));
                }
            }
            write_spec(context, object, &spec).await?;
            continue;
        }
        if object.spec.finished_at.is_some() {
            continue;
        }
        let mut next = decide(&view, &policy, now);
        record(context, &mut spec, next.stage, &next.decision, now);
        if let Some(node_object) = snapshot.nodes.get(node) {
            tell(context, node_object, &next.decision).await;
            if let Decision::Run(step) = &next.decision {
                let outcome = perform(context, memory, migration, node_object, step, &mut spec, now).await?;
                if let Outcome::Blocked(message) = outcome {
                    next.decision = blocked(&view, &policy, next.stage, message, now);
                    record(context, &mut spec, next.stage, &next.decision, now);
                }
            }
            waits.extend(Held::of(&next.decision).map(|held| (node.clone(), held)));
        }
        write_spec(context, object, &spec).await?;
    }

    let seats = seats(&snapshot, migration, &order);
    let admission = rollout::admit(&seats, &rules(migration), now);
    start_nodes(context, &snapshot, &admission.start, now).await?;
    summarize(status, &seats, &waits, admission.held.as_ref(), &unprepared);
    count_nodes(context, &snapshot);
    let all_done = !seats.is_empty()
        && seats
            .iter()
            .all(|seat| matches!(seat.standing, Standing::Done(_)));
    if all_done {
        let wanted = kind.legacy_pods == LegacyPods::Restart && migration.spec.desired == Desired::Run;
        let restarting = if kind.strategy == Strategy::InPlace && wanted {
            restart_pods(context, memory, migration, &snapshot, &order, &policy).await?
        } else {
            None
        };
        if unprepared.is_empty() {
            finish_or_stay(&snapshot, kind.strategy, restarting, status);
        } else {
            status.phase = MigrationPhase::Mixed;
        }
    }
    Ok(waits.values().map(|held| held.reason).collect())
}

/// A write that an object of Calico's is in the way of: a wait of the node like any other, with its deadline.
fn blocked(
    view: &NodeView<'_>,
    policy: &Policy,
    stage: Stage,
    message: String,
    now: Timestamp,
) -> Decision<NodeStep> {
    let wait = Wait {
        reason: WaitReason::CalicoObjects,
        message,
        until: None,
    };
    at_deadline(view, policy, stage, wait, now)
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
