//! A node that does not take its first step is released: another node takes its place, and the node is retried later.

use api::NodeMigration;
use api::node_migration::NodeMigrationSpec;
use flannel_to_calico::node::NodeView;

use super::round::{Round, first_step};
use crate::cordon;
use crate::events::EventLevel;
use crate::failure::Failure as _;
use crate::node_migrations::update_spec;
use crate::obstacles::refusal;
use crate::summary::WaitReport;
use crate::write::WriteError;

impl Round<'_> {
    /// Releases a node of which only the cordon has changed, and removes the cordon if it is the migration's. If that fails, the
    /// node counts as unavailable, and keeps its place with the deadline of its stage. `draft` is the pending spec. Returns the
    /// wait to report.
    pub(super) async fn release(
        &self,
        object: &NodeMigration,
        draft: NodeMigrationSpec,
        view: &NodeView<'_>,
        held: WaitReport,
    ) -> Result<WaitReport, WriteError> {
        let Some(node) = self.snapshot.nodes.get(view.name) else {
            return Ok(held);
        };
        let obstacles = &self.pass.context.obstacles;
        let key = first_step(node);
        if view.cordoned_by_replumb
            && let Err(error) = cordon::uncordon(self.pass.context, self.pass.migration, node).await
        {
            if !error.concerns_one_object() {
                return Err(error);
            }
            if error.is_conflict() {
                return Ok(held);
            }
            let message = format!(
                "{}. The node keeps its place in the rollout, because its cordon cannot be removed: {}",
                held.message,
                error.message()
            );
            let kept = WaitReport::waiting(&refusal(message.clone()));
            obstacles.postpone(&key, &kept, self.pass.now);
            return self.refused(object, draft, view, message).await;
        }
        obstacles.postpone(&key, &held, self.pass.now);
        update_spec(self.pass.context, object, &given_back(draft)).await?;
        let note = format!("node {}: released, will be retried: {}", view.name, held.message);
        self.pass
            .context
            .events
            .node(node, EventLevel::Warning, held.reason, &note)
            .await;
        Ok(held)
    }
}

/// The spec before the node was admitted; on the way forward the node then comes after all others.
fn given_back(spec: NodeMigrationSpec) -> NodeMigrationSpec {
    let spec = NodeMigrationSpec { step: None, ..spec };
    if spec.rolling_back {
        NodeMigrationSpec {
            rolling_back: false,
            finished_at: spec.finished_before_rollback,
            finished_before_rollback: None,
            ..spec
        }
    } else {
        NodeMigrationSpec {
            started: false,
            skipped: true,
            ..spec
        }
    }
}
