//! One `NodeMigration` for each Node: created with the Node, deleted when the Node is gone; also writes their specs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::node_migration::NodeMigrationSpec;
use api::{Migration, NodeMigration};
use k8s_openapi::api::core::v1::Node;
use kube::api::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use crate::cache::Cache;
use crate::context::Context;
use crate::write::{self, WriteError, describe};
use crate::{facts, own_pods};

/// One object for each Node: deletes the objects of Nodes that are gone, then as [`sync`].
///
/// # Errors
///
/// The API server refuses a request for another reason than the object itself, or does not answer.
pub async fn adopt(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    ask: impl Fn(&mut NodeMigrationSpec),
) -> Result<(), WriteError> {
    for object in without_node(cache, migration) {
        delete(context, &object).await?;
    }
    sync(context, cache, migration, &linux_nodes(cache), ask).await
}

/// Creates the missing objects of these `nodes`, and deletes those whose Migration is over or gone. `ask` writes into a new object
/// what its agent needs from the start.
///
/// # Errors
///
/// The API server refuses a request for another reason than the object itself, or does not answer.
pub async fn sync(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    nodes: &BTreeMap<String, Arc<Node>>,
    ask: impl Fn(&mut NodeMigrationSpec),
) -> Result<(), WriteError> {
    let existing: BTreeMap<String, Arc<NodeMigration>> = cache
        .node_migrations
        .state()
        .into_iter()
        .map(|object| (object.name_any(), object))
        .collect();
    for object in existing.values() {
        if !belongs_to(object, migration) && is_over(cache, object) {
            let deletion = delete(context, object);
            context
                .obstacles
                .attempt(&describe(object.as_ref()), deletion)
                .await?;
        }
    }
    let unclear = cache.node_migrations.unreadable();
    let unreadable: BTreeMap<&str, &str> = unclear
        .iter()
        .filter(|unclear| unclear.is_unusable)
        .map(|unclear| (unclear.name.as_str(), unclear.words.as_str()))
        .collect();
    for name in nodes.keys() {
        if existing.contains_key(name) {
            continue;
        }
        if let Some(words) = unreadable.get(name.as_str()) {
            // The object exists but is unreadable. Its node waits as if the object could not be created.
            let object = format!("NodeMigration {name}");
            let message =
                format!("{object}: {words}; correct the object, or delete it so that it is created again");
            context.obstacles.hold(&object, message);
            continue;
        }
        let creation = create(context, migration, name, &ask);
        let object = format!("NodeMigration {name}");
        context.obstacles.attempt(&object, creation).await?;
    }
    Ok(())
}

/// Changes the spec of this object to `spec`, unless it is equal. An object that cannot be written does not block
/// others.
///
/// # Errors
///
/// The API server does not answer, or a reason beyond this object prevents the write.
pub async fn update_spec(
    context: &Context,
    object: &NodeMigration,
    spec: &NodeMigrationSpec,
) -> Result<(), WriteError> {
    if object.spec == *spec {
        return Ok(());
    }
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    let write = write::patch_spec(&api, object, &object.spec, spec);
    context.obstacles.attempt(&describe(object), write).await?;
    Ok(())
}

/// Objects of this Migration whose Node is gone. What else exists of the Node is deleted first: without the object, replumb would
/// not know that it is its own.
pub fn without_node(cache: &Cache, migration: &Migration) -> Vec<Arc<NodeMigration>> {
    let nodes = linux_nodes(cache);
    let mut objects = cache.node_migrations.state();
    objects.retain(|object| {
        belongs_to(object, migration)
            && object.metadata.deletion_timestamp.is_none()
            && !nodes.contains_key(&object.spec.node_name)
    });
    objects
}

/// Linux Nodes by name: networks of other operating systems are not changed.
pub fn linux_nodes(cache: &Cache) -> BTreeMap<String, Arc<Node>> {
    cache
        .nodes
        .state()
        .into_iter()
        .filter(|node| node.metadata.deletion_timestamp.is_none())
        .filter(|node| facts::nodes::is_linux(node))
        .map(|node| (node.name_any(), node))
        .collect()
}

/// By name and UID: a Migration that was deleted and created again under its name is another one.
pub fn belongs_to(object: &NodeMigration, migration: &Migration) -> bool {
    object.spec.migration == migration.name_any()
        && object
            .owner_references()
            .iter()
            .any(|owner| Some(&owner.uid) == migration.metadata.uid.as_ref())
}

/// Whether the Migration of this `NodeMigration` is over or gone.
fn is_over(cache: &Cache, object: &NodeMigration) -> bool {
    let alive: BTreeSet<String> = cache
        .migrations
        .state()
        .iter()
        .filter(|guarded| match &guarded.0 {
            Ok(migration) => migration
                .status
                .as_ref()
                .is_none_or(|status| !status.phase.is_over()),
            // One that does not parse may run under another version of replumb.
            Err(_) => true,
        })
        .filter_map(|guarded| guarded.meta().uid.clone())
        .collect();
    !object
        .owner_references()
        .iter()
        .any(|owner| alive.contains(&owner.uid))
}

async fn create(
    context: &Context,
    migration: &Migration,
    node: &str,
    ask: impl Fn(&mut NodeMigrationSpec),
) -> Result<(), WriteError> {
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    let mut spec: NodeMigrationSpec = serde_json::from_value(json!({
        "nodeName": node,
        "migration": migration.name_any(),
    }))
    .map_err(|source| {
        WriteError::of(
            "building",
            format!("NodeMigration {node}"),
            kube::Error::SerdeError(source),
        )
    })?;
    ask(&mut spec);
    let owner = serde_json::from_value(own_pods::owner(migration)).map_err(|source| {
        WriteError::of(
            "building",
            format!("NodeMigration {node}"),
            kube::Error::SerdeError(source),
        )
    })?;
    let object = NodeMigration {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    };
    write::create(&api, &format!("NodeMigration {node}"), &object).await
}

/// Deletes the object, unless it is being deleted.
///
/// # Errors
///
/// The API server refuses the write or does not answer.
pub async fn delete(context: &Context, object: &NodeMigration) -> Result<(), WriteError> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    write::delete(&api, object, None).await
}

/// Writes the changed fields of the spec, based on the object as read.
///
/// # Errors
///
/// The API server refuses the patch or does not answer.
pub async fn write_spec(
    context: &Context,
    object: &Arc<NodeMigration>,
    spec: &NodeMigrationSpec,
) -> Result<(), WriteError> {
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    match write::patch_spec(&api, object.as_ref(), &object.spec, spec).await {
        // An earlier step of this pass wrote the object: the next pass decides on the new state.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(error @ (WriteError::Refused { .. } | WriteError::Read(_))) => Err(error),
    }
}
