//! Cordons set by a migration, kept apart from those of users.

use api::{Announcement, Migration, names};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::context::Context;
use crate::events::EventLevel;
use crate::write::{self, WriteError};

/// Whether the Node is cordoned, by any writer.
pub fn is_unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}

/// Whether this Migration cordoned the Node.
pub fn is_by(node: &Node, migration: &str) -> bool {
    node.annotations()
        .get(names::CORDONED_BY_ANNOTATION)
        .is_some_and(|by| by == migration)
}

/// Cordons the Node and records the owner of the cordon in the same write. The annotation for the cluster autoscaler disables
/// scale-down.
///
/// # Errors
///
/// The Node changed since it was read, or the API server refuses the patch or does not answer.
pub async fn cordon(context: &Context, migration: &Migration, node: &Node) -> Result<(), WriteError> {
    let name = migration.name_any();
    let mut annotations = json!({ names::CORDONED_BY_ANNOTATION: name });
    if !node
        .annotations()
        .contains_key(names::SCALE_DOWN_DISABLED_ANNOTATION)
    {
        annotations[names::SCALE_DOWN_DISABLED_ANNOTATION] = json!("true");
        annotations[names::SCALE_DOWN_DISABLED_BY_ANNOTATION] = json!(name);
    }
    let change = json!({ "spec": { "unschedulable": true }, "metadata": { "annotations": annotations } });
    let nodes: Api<Node> = Api::all(context.client.clone());
    write::patch(&nodes, node, "cordoning", &change).await?;
    let note = format!("Node {}: cordoned by replumb", node.name_any());
    context
        .events
        .node(node, EventLevel::Normal, Announcement::Cordoned, &note)
        .await;
    Ok(())
}

/// Removes this Migration's cordon; a cordon of another writer stays.
///
/// # Errors
///
/// The Node changed since it was read, or the API server refuses the patch or does not answer.
pub async fn uncordon(context: &Context, migration: &Migration, node: &Node) -> Result<(), WriteError> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    write::patch(&nodes, node, "uncordoning", &without_cordon(migration, node)).await?;
    Ok(())
}

/// Enables scale-down of the Node again, if a migration disabled it.
///
/// # Errors
///
/// The Node changed since it was read, or the API server refuses the patch or does not answer.
pub async fn release_scale_down(
    context: &Context,
    migration: &Migration,
    node: &Node,
) -> Result<(), WriteError> {
    if node
        .annotations()
        .contains_key(names::SCALE_DOWN_DISABLED_BY_ANNOTATION)
    {
        let nodes: Api<Node> = Api::all(context.client.clone());
        write::patch(&nodes, node, "releasing", &without_cordon(migration, node)).await?;
    }
    Ok(())
}

fn without_cordon(migration: &Migration, node: &Node) -> Value {
    let mut change = json!({ "metadata": { "annotations": { names::CORDONED_BY_ANNOTATION: null } } });
    if is_by(node, &migration.name_any()) {
        change["spec"] = json!({ "unschedulable": null });
    }
    if node
        .annotations()
        .contains_key(names::SCALE_DOWN_DISABLED_BY_ANNOTATION)
    {
        change["metadata"]["annotations"][names::SCALE_DOWN_DISABLED_BY_ANNOTATION] = Value::Null;
        change["metadata"]["annotations"][names::SCALE_DOWN_DISABLED_ANNOTATION] = Value::Null;
    }
    change
}
