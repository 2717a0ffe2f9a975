//! Nodes that go back to flannel: their change of direction, and the rollback after the last one.

use std::sync::Arc;

use ::flannel_to_calico::api::AutomaticRollback;
use ::flannel_to_calico::api::OrEmpty as _;
use api::migration::{Desired, MigrationPhase};
use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration};
use crash_point::Edge;
use engine::decision::{Halt, HaltReason, Wait};
use engine::rollout::{self, Back, NodeProgress, RolloutNode, is_rolled_back};
use engine::words::cut;
use flannel_to_calico::node::Stage;

use super::super::apply::rollback::roll_back;
use super::super::pass::Pass;
use super::write_spec;
use crate::bounds;
use crate::clock;
use crate::context::Context;
use crate::drafts::Drafts;
use crate::events::EventLevel;
use crate::limits::rules;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::snapshot::Snapshot;
use crate::steps::{finish_stage, step_now};
use crate::summary::WaitReport;
use crate::write::{WriteError, describe};

/// The names of nodes in `rollbackNodes`.
pub(super) fn rollback_nodes(migration: &Migration) -> &[String] {
    let kind = migration.spec.flannel_to_calico.as_ref();
    kind.map_or(&[], |kind| kind.rollback_nodes.as_slice())
}

/// The nodes to roll back, from the Migration's spec; `None` if there are none.
pub(super) fn wanted(migration: &Migration) -> Option<Back> {
    match migration.spec.desired {
        Desired::Rollback => Some(Back::All),
        Desired::Abort => Some(Back::InProgress),
        Desired::Plan | Desired::Run | Desired::Pause => {
            let names = rollback_nodes(migration);
            (!names.is_empty()).then(|| Back::Named(names.to_vec()))
        }
    }
}

/// Whether every node is on Calico and stays there.
pub(super) fn all_are_there(back: Option<&Back>, rollout_nodes: &[RolloutNode<'_>]) -> bool {
    let is_done = |rollout_node: &RolloutNode<'_>| matches!(rollout_node.standing, NodeProgress::Done(_));
    !rollout_nodes.is_empty() && rollout_nodes.iter().all(is_done) && !goes_back(back, rollout_nodes)
}

/// Whether a finished node is to be rolled back: then the rollout is not at its end.
fn goes_back(back: Option<&Back>, rollout_nodes: &[RolloutNode<'_>]) -> bool {
    match back {
        None | Some(Back::InProgress) => false,
        Some(Back::All) => true,
        Some(back @ Back::Named(_)) => rollout_nodes
            .iter()
            .any(|rollout_node| back.selects(rollout_node)),
    }
}

/// Turns around nodes that fell back and nodes to be rolled back, within the limit. Returns the nodes turned in this pass, and
/// the reason for the limit.
pub(super) async fn turn_around<'node>(
    pass: &Pass<'_>,
    snapshot: &Snapshot,
    order: &'node [String],
    rollout_nodes: &mut [RolloutNode<'node>],
    back: Option<&Back>,
    drafts: &mut Drafts,
) -> Result<(Vec<&'node str>, Option<Wait>), WriteError> {
    let mut turned = turn_fallen(pass, snapshot, order, drafts).await?;
    let mut held = None;
    if let Some(back) = back {
        let turn = rollout::admit_rollback(rollout_nodes, back, rules(pass.migration).max_unavailable);
        turned.extend(turn_back(pass.context, snapshot, &turn.now, drafts).await?);
        held = turn.held;
    }
    for rollout_node in rollout_nodes
        .iter_mut()
        .filter(|rollout_node| turned.contains(&rollout_node.name))
    {
        rollout_node.standing = NodeProgress::Returning;
    }
    Ok((turned, held))
}

/// Turns these nodes around, and returns those that were going forward before. The history keeps the stages of the way
/// forward.
async fn turn_back<'node>(
    context: &Context,
    snapshot: &Snapshot,
    nodes: &[&'node str],
    drafts: &mut Drafts,
) -> Result<Vec<&'node str>, WriteError> {
    let mut turned = Vec::new();
    for node in nodes.iter().copied() {
        if let Some(object) = snapshot.node_migrations.get(node)
            && !object.spec.rolling_back
            && turn(context, object, None, drafts).await?
        {
            crash_point::reach("TurnAround", Edge::Recorded, Some(node)).await;
            turned.push(node);
        }
    }
    Ok(turned)
}

/// Turns around nodes whose agents have restored the old network on their own; the remaining objects of the node follow.
async fn turn_fallen<'node>(
    pass: &Pass<'_>,
    snapshot: &Snapshot,
    order: &'node [String],
    drafts: &mut Drafts,
) -> Result<Vec<&'node str>, WriteError> {
    let Pass {
        context,
        migration,
        now,
        ..
    } = *pass;
    let mut turned = Vec::new();
    for node in order {
        let Some(object) = snapshot.node_migrations.get(node) else {
            continue;
        };
        let fell_back = object
            .status
            .as_ref()
            .and_then(|status| status.flannel_to_calico.or_empty().automatic_rollback.as_deref());
        let spec = &object.spec;
        if let Some(why) = fell_back
            && spec.started
            && !spec.rolling_back
        {
            let fell_back = AutomaticRollback {
                at: now,
                reason: cut(why, bounds::REASON).into_owned(),
                resumed_at: migration.spec.resumed_at,
            };
            if !turn(context, object, Some(fell_back), drafts).await? {
                continue;
            }
            if let Some(node) = snapshot.nodes.get(node) {
                let reason = HaltReason::FellBack;
                context.events.node(node, EventLevel::Warning, reason, why).await;
            }
            turned.push(node.as_str());
        }
    }
    Ok(turned)
}

/// Whether the node fell back, and the user has not resumed the rollout since. Any different time counts as a new request, from
/// any clock.
pub(super) fn has_fallen_back(spec: &NodeMigrationSpec, migration: &Migration) -> bool {
    spec.flannel_to_calico
        .or_empty()
        .automatic_rollback
        .as_ref()
        .is_some_and(|fell| fell.resumed_at == migration.spec.resumed_at)
}

/// Halts for nodes that fell back, for the user.
pub(super) fn fallen<'node>(
    snapshot: &Snapshot,
    rollout_nodes: &[RolloutNode<'node>],
) -> impl Iterator<Item = (&'node str, WaitReport)> {
    rollout_nodes
        .iter()
        .filter(|rollout_node| rollout_node.standing == NodeProgress::FellBack)
        .filter_map(|rollout_node| {
            let fell = snapshot.node_migrations.get(rollout_node.name)?.spec.flannel_to_calico.or_empty().automatic_rollback.clone()?;
            let halt = Halt {
                reason: HaltReason::FellBack,
                message: format!(
                    "node {}: its agent restored the old network on its own before {:.0}: {}. The node works as before. Fix \
                     the cause, then run `kubectl replumb resume`",
                    rollout_node.name, fell.at, fell.reason
                ),
            };
            Some((rollout_node.name, WaitReport::halted(&halt)))
        })
}

/// Records the change of direction of a node. Returns whether it was written: a failed write does not block other nodes.
async fn turn(
    context: &Context,
    object: &Arc<NodeMigration>,
    fell_back: Option<AutomaticRollback>,
    drafts: &mut Drafts,
) -> Result<bool, WriteError> {
    let now = clock::now();
    let mut spec = drafts.take(object).into_owned();
    let mut stage = step_now(Stage::StopCalico.as_str(), now);
    if let Some(step) = spec.step.take() {
        // The agent uses the old limit until the next write: without it the host would wait without end.
        stage.time_limit.clone_from(&step.time_limit);
        finish_stage(context, &mut spec, step, now);
    }
    spec.flannel_to_calico.get_or_insert_default().automatic_rollback = fell_back;
    let spec = NodeMigrationSpec {
        started: true,
        skipped: false,
        rolling_back: true,
        finished_at: None,
        finished_before_rollback: spec.finished_at,
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

/// Rolls the whole migration back: once no node is in progress or on Calico, cluster-wide objects are restored.
pub(super) async fn continue_rollback(
    pass: &Pass<'_>,
    memory: &mut Memory,
    rollout_nodes: &[RolloutNode<'_>],
    status: &mut MigrationStatus,
) -> Result<(), PassError> {
    if status.phase == MigrationPhase::Rolling {
        status.phase = MigrationPhase::RollingBack;
    }
    // Nodes that are back count as done.
    let back = rollout_nodes
        .iter()
        .filter(|rollout_node| is_rolled_back(rollout_node))
        .count();
    status.progress.done = u32::try_from(back).unwrap_or(u32::MAX);
    status.progress.text = format!("{back}/{}", rollout_nodes.len());
    if rollout_nodes.iter().all(is_rolled_back) {
        roll_back(pass, memory, status).await?;
    }
    Ok(())
}
