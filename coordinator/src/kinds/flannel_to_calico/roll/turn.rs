//! Nodes that go back to flannel: which of them turn around, and what follows the last.

use std::sync::Arc;

use api::migration::{Desired, MigrationPhase};
use api::node_migration::{FellBack, NodeMigrationSpec};
use api::{Migration, MigrationStatus, NodeMigration};
use crash_point::Edge;
use engine::decision::{Halt, HaltReason, Wait};
use engine::rollout::{self, Back, Seat, Standing, is_back};
use engine::words::cut;
use flannel_to_calico::node::Stage;
use flannel_to_calico::settings::Settings;
use jiff::Timestamp;

use super::super::undo;
use super::write_spec;
use crate::bounds;
use crate::cache::Cache;
use crate::context::Context;
use crate::drafts::Drafts;
use crate::limits::rules;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::steps::{finish_stage, step_now};
use crate::summary::Held;
use crate::tell::Tone;
use crate::write::{WriteError, describe};

/// Which nodes are to go back, by the Migration's spec; `None` when none is.
pub(super) fn wanted(migration: &Migration) -> Option<Back> {
    let spec = &migration.spec;
    match spec.desired {
        Desired::Rollback => Some(Back::All),
        Desired::Abort => Some(Back::InWork),
        Desired::Plan | Desired::Run | Desired::Pause => {
            (!spec.rollback_nodes.is_empty()).then(|| Back::Named(spec.rollback_nodes.clone()))
        }
    }
}

/// Whether every node is on Calico and is to stay there.
pub(super) fn all_are_there(back: Option<&Back>, seats: &[Seat<'_>]) -> bool {
    let done = |seat: &Seat<'_>| matches!(seat.standing, Standing::Done(_));
    !seats.is_empty() && seats.iter().all(done) && !goes_back(back, seats)
}

/// Whether a node is to go back that is done: then not every node is at its end.
fn goes_back(back: Option<&Back>, seats: &[Seat<'_>]) -> bool {
    match back {
        None | Some(Back::InWork) => false,
        Some(Back::All) => true,
        Some(back @ Back::Named(_)) => seats.iter().any(|seat| back.means(seat)),
    }
}

/// Turns around who fell back and who is to go back, as many as may be. Returns who turned in this pass, and why no more.
pub(super) async fn turn_around<'node>(
    context: &Context,
    migration: &Migration,
    snapshot: &Snapshot,
    order: &'node [String],
    seats: &mut [Seat<'node>],
    back: Option<&Back>,
    drafts: &mut Drafts,
) -> Result<(Vec<&'node str>, Option<Wait>), WriteError> {
    let mut turned = turn_fallen(context, migration, snapshot, order, drafts).await?;
    let mut held = None;
    if let Some(back) = back {
        let turn = rollout::turn_back(seats, back, rules(migration).max_unavailable);
        turned.extend(turn_back(context, snapshot, &turn.now, drafts).await?);
        held = turn.held;
    }
    for seat in seats.iter_mut().filter(|seat| turned.contains(&seat.name)) {
        seat.standing = Standing::Returning;
    }
    Ok((turned, held))
}

/// Turns these around, and names those that were not on their way back yet. What was recorded of the way there stays in
/// the history.
async fn turn_back<'node>(
    context: &Context,
    snapshot: &Snapshot,
    nodes: &[&'node str],
    drafts: &mut Drafts,
) -> Result<Vec<&'node str>, WriteError> {
    let mut turned = Vec::new();
    for node in nodes.iter().copied() {
        if let Some(object) = snapshot.node_migrations.get(node)
            && !object.spec.returning
            && turn(context, object, None, drafts).await?
        {
            crash_point::reach("TurnAround", Edge::Recorded, Some(node)).await;
            turned.push(node);
        }
    }
    Ok(turned)
}

/// Turns those around whose agents have put the old network back by themselves: everything else of the node follows.
async fn turn_fallen<'node>(
    context: &Context,
    migration: &Migration,
    snapshot: &Snapshot,
    order: &'node [String],
    drafts: &mut Drafts,
) -> Result<Vec<&'node str>, WriteError> {
    let now = Timestamp::now();
    let mut turned = Vec::new();
    for node in order {
        let Some(object) = snapshot.node_migrations.get(node) else {
            continue;
        };
        let fell_back = object
            .status
            .as_ref()
            .and_then(|status| status.fell_back.as_deref());
        let spec = &object.spec;
        if let Some(why) = fell_back
            && spec.admitted
            && !spec.returning
        {
            let fell_back = FellBack {
                at: now,
                why: cut(why, bounds::REASON).into_owned(),
                resumed_at: migration.spec.resumed_at,
            };
            if !turn(context, object, Some(fell_back), drafts).await? {
                continue;
            }
            if let Some(node) = snapshot.nodes.get(node) {
                let reason = HaltReason::FellBack.as_str();
                context.teller.node(node, Tone::Warning, reason, why).await;
            }
            turned.push(node.as_str());
        }
    }
    Ok(turned)
}

/// Whether the node fell back, and nobody has said since that it should go there again. Any other time is a new word: whose
/// clock it was does not matter.
pub(super) fn has_fallen(spec: &NodeMigrationSpec, migration: &Migration) -> bool {
    spec.fell_back
        .as_ref()
        .is_some_and(|fell| fell.resumed_at == migration.spec.resumed_at)
}

/// What a person has to know of those that fell back.
pub(super) fn fallen<'node>(
    snapshot: &Snapshot,
    seats: &[Seat<'node>],
) -> impl Iterator<Item = (&'node str, Held)> {
    seats
        .iter()
        .filter(|seat| seat.standing == Standing::Fallen)
        .filter_map(|seat| {
            let fell = snapshot.node_migrations.get(seat.name)?.spec.fell_back.clone()?;
            let halt = Halt {
                reason: HaltReason::FellBack,
                message: format!(
                    "the agent of node {} put the old network back by itself before {:.0}: {}. The node works as before. Mend \
                     what was in the way, then `kubectl replumb resume`",
                    seat.name, fell.at, fell.why
                ),
            };
            Some((seat.name, Held::halted(&halt)))
        })
}

/// Writes down that the node goes back. Says whether it was written: what cannot be written keeps no other node from it.
async fn turn(
    context: &Context,
    object: &Arc<NodeMigration>,
    fell_back: Option<FellBack>,
    drafts: &mut Drafts,
) -> Result<bool, WriteError> {
    let now = Timestamp::now();
    let mut spec = drafts.take(object).into_owned();
    let mut stage = step_now(Stage::StopCalico.as_str(), now);
    if let Some(step) = spec.step.take() {
        // Until the next write the agent goes by it: without it the host would wait for ever.
        stage.patience.clone_from(&step.patience);
        finish_stage(context, &mut spec, step, now);
    }
    let spec = NodeMigrationSpec {
        admitted: true,
        skipped: false,
        returning: true,
        finished_at: None,
        done_before: spec.finished_at,
        fell_back,
        step: Some(stage),
        ..spec
    };
    let write = write_spec(context, object, &spec);
    let written = context
        .obstacles
        .attempt(&describe(object.as_ref()), write)
        .await?;
    Ok(written.is_some())
}

/// The whole migration is taken back: once no node is in work or on Calico, what was written for the cluster goes.
pub(super) async fn rolling_back(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    settings: &Settings,
    seats: &[Seat<'_>],
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    if status.phase == MigrationPhase::Rolling {
        status.phase = MigrationPhase::RollingBack;
    }
    // Done is who is back.
    let back = seats.iter().filter(|seat| is_back(seat)).count();
    status.progress.done = u32::try_from(back).unwrap_or(u32::MAX);
    status.progress.text = format!("{back}/{}", seats.len());
    if seats.iter().all(is_back) {
        undo::undo(context, cache, memory, migration, settings, status).await?;
    }
    Ok(())
}
