//! A node that does not take its first step is given back: it takes no other's place, and is tried again after a while.

use api::NodeMigration;
use api::node_migration::NodeMigrationSpec;
use flannel_to_calico::node::NodeView;
use k8s_openapi::api::core::v1::Node;

use super::round::Round;
use crate::cordon;
use crate::node_migrations::bring_to;
use crate::obstacles::refusal;
use crate::summary::Held;
use crate::tell::Tone;
use crate::write::{WriteError, describe};

/// What is tried again of a node that was given back: it rests under this name.
pub(super) fn first_step(node: &Node) -> String {
    format!("first step of {}", describe(node))
}

impl Round<'_> {
    /// Gives a node back of which nothing but its cordon has changed: without the cordon, if it is ours. Where that cannot be lifted the
    /// node is out of work, and keeps its place with the deadline of its stage. `draft` is what is about to be written. Returns what has to be
    /// told.
    pub(super) async fn give_back(
        &self,
        object: &NodeMigration,
        draft: NodeMigrationSpec,
        view: &NodeView<'_>,
        held: Held,
    ) -> Result<Held, WriteError> {
        let Some(node) = self.snapshot.nodes.get(view.name) else {
            return Ok(held);
        };
        let obstacles = &self.context.obstacles;
        let key = first_step(node);
        if view.cordoned_by_us
            && let Err(error) = cordon::uncordon(self.context, self.migration, node).await
        {
            if !error.is_of_the_object() {
                return Err(error);
            }
            if error.is_conflict() {
                return Ok(held);
            }
            let message = format!(
                "{}. The node keeps its place, since its cordon cannot be lifted: {}",
                held.message,
                error.words()
            );
            let kept = Held::waiting(&refusal(message.clone()));
            obstacles.rest(&key, &kept, self.now);
            return self.refused(object, draft, view, message).await;
        }
        obstacles.rest(&key, &held, self.now);
        bring_to(self.context, object, &given_back(draft)).await?;
        let note = format!(
            "node {} is given back and tried again: {}",
            view.name, held.message
        );
        self.context
            .teller
            .node(node, Tone::Warning, held.reason, &note)
            .await;
        Ok(held)
    }
}

/// The spec as it was before the node was taken into work; on the way there the node comes after all others.
fn given_back(spec: NodeMigrationSpec) -> NodeMigrationSpec {
    let spec = NodeMigrationSpec { step: None, ..spec };
    if spec.returning {
        NodeMigrationSpec {
            returning: false,
            finished_at: spec.done_before,
            done_before: None,
            ..spec
        }
    } else {
        NodeMigrationSpec {
            admitted: false,
            skipped: true,
            ..spec
        }
    }
}
