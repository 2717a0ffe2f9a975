//! State of each node in the rollout.

use api::migration::Desired;
use engine::rollout::{Back, NodeProgress, RolloutNode};
use kube::ResourceExt;

use super::super::node_objects;
use super::super::pass::Pass;
use super::super::view::is_on_flannel;
use super::rollback;
use super::round::first_step;
use crate::snapshot::Snapshot;
use crate::write::describe;
use crate::{cordon, facts};

/// Every node in the order of the rollout.
pub(super) fn states<'order>(
    pass: &Pass<'_>,
    snapshot: &Snapshot,
    back: Option<&Back>,
    order: &'order [String],
) -> Vec<RolloutNode<'order>> {
    let Pass {
        context,
        migration,
        now,
        ..
    } = *pass;
    order
        .iter()
        .filter_map(|name| {
            let object = snapshot.node_migrations.get(name)?;
            let node = snapshot.nodes.get(name)?;
            let spec = &object.spec;
            let kept = rollback::rollback_nodes(migration).contains(name);
            let fallen = rollback::has_fallen_back(spec, migration);
            let on_old = is_on_flannel(node);
            let has_our_cordon = cordon::is_by(node, &migration.name_any());
            let standing = match (spec.finished_at, spec.started, spec.skipped) {
                (Some(at), _, _) => NodeProgress::Done(at),
                (None, true, _) if spec.step.as_ref().is_some_and(|step| step.halted) => NodeProgress::Halted,
                (None, true, _) if spec.rolling_back => NodeProgress::Returning,
                (None, true, _) => NodeProgress::Working,
                // Its NodeMigration was deleted halfway, and is created again.
                (None, false, _) if has_our_cordon && !on_old => NodeProgress::Working,
                (None, false, _) if fallen => NodeProgress::FellBack,
                (None, false, _) if kept => NodeProgress::KeptOnOld,
                (None, false, true) => NodeProgress::Skipped,
                (None, false, false) => NodeProgress::Waiting,
            };
            // A node without objects of Calico (it joined a moment ago) cannot start either.
            let starts = matches!(standing, NodeProgress::Waiting | NodeProgress::Skipped)
                && migration.spec.desired != Desired::Rollback;
            let prepared = !starts || node_objects::is_prepared(node, migration);
            let in_work = matches!(
                standing,
                NodeProgress::Working | NodeProgress::Halted | NodeProgress::Returning
            );
            // A node with a leftover cordon of the migration is unavailable.
            let is_lifted = in_work || !has_our_cordon;
            let mut rollout_node = RolloutNode {
                name,
                standing,
                ready: facts::nodes::is_ready(node) && prepared && is_lifted,
                on_old,
                is_backing_off: false,
                tries: context.obstacles.failures(&first_step(node)),
            };
            let turns = !in_work && back.is_some_and(|back| back.selects(&rollout_node));
            rollout_node.is_backing_off = (starts || turns) && {
                let obstacles = &context.obstacles;
                let rests = obstacles.reason_to_wait(&first_step(node), now).is_some();
                // Admission and change of direction are written to this object.
                let record = describe(object.as_ref());
                rests || (obstacles.is_held(&record, now) && obstacles.reason_to_wait(&record, now).is_some())
            };
            Some(rollout_node)
        })
        .collect()
}
