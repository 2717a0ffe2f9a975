//! One `NodeMigration` for each Node: made when the Node appears, removed when it is gone. A Node that joins while
//! the migration runs starts on flannel and is migrated like the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::node_migration::NodeMigrationSpec;
use api::{Migration, NodeMigration, names};
use k8s_openapi::api::core::v1::Node;
use kube::api::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use plan::flannel_to_calico::host::HostSettings;
use plan::flannel_to_calico::settings::Settings;
use serde_json::json;

use super::node_objects::{self, Outcome};
use super::own_pods;
use crate::cache::Cache;
use crate::context::Context;
use crate::write::{self, WriteError};

/// Creates what is missing, removes what has no Node or no Migration any more.
pub async fn adopt_node_migrations(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
) -> Result<(), WriteError> {
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    let nodes = linux_nodes(cache);
    let existing: BTreeMap<String, Arc<NodeMigration>> = cache
        .node_migrations
        .state()
        .into_iter()
        .map(|object| (object.name_any(), object))
        .collect();
    for object in existing.values() {
        if object.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if !belongs_to(object, migration) {
            if is_over(cache, object) {
                write::delete(&api, object.as_ref(), None).await?;
            }
        } else if !nodes.contains_key(&object.spec.node_name) {
            // Calico's objects first: once the NodeMigration is gone, nobody remembers that the Node was ours.
            node_objects::remove(context, &object.spec.node_name, &BTreeSet::new()).await?;
            write::delete(&api, object.as_ref(), None).await?;
        }
    }
    for name in nodes.keys().filter(|name| !existing.contains_key(*name)) {
        create(context, migration, name).await?;
    }
    Ok(())
}

/// The same while the migration runs; a Node that joined gets what the others got at the start. Returns the Nodes
/// that cannot be started yet, with the reason.
pub async fn adopt_nodes(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    settings: &Settings,
) -> Result<BTreeMap<String, String>, WriteError> {
    adopt_node_migrations(context, cache, migration).await?;
    let nodes = linux_nodes(cache);
    write_settings(context, cache, migration, settings).await?;
    label_with_flannel(context, &newcomers(cache, migration)).await?;
    let joined: Vec<&Arc<Node>> = nodes
        .values()
        .filter(|node| !node_objects::is_prepared(node, migration))
        .collect();
    if joined.is_empty() {
        return Ok(BTreeMap::new());
    }
    let pools = node_objects::pools(context).await?.and_then(|pools| {
        plan::flannel_to_calico::objects::pools(settings, &pools).map_err(|conflict| conflict.to_string())
    });
    let mut unprepared = BTreeMap::new();
    for node in joined {
        let outcome = match &pools {
            Ok(pools) => node_objects::write(context, migration, settings, pools, node).await?,
            Err(message) => Outcome::Blocked(message.clone()),
        };
        match outcome {
            Outcome::Written => {}
            // flannel has not reached it yet, perhaps: it is looked at again, and not started before.
            Outcome::Blocked(message) => {
                unprepared.insert(node.name_any(), message);
            }
        }
    }
    Ok(unprepared)
}

/// Gives every agent the settings, where it has others: of an earlier version, or of a migration that was about to end.
pub async fn write_settings(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
    settings: &Settings,
) -> Result<(), WriteError> {
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    let wanted = Some(HostSettings::of(settings));
    for object in cache.node_migrations.state() {
        if belongs_to(&object, migration) && object.spec.flannel_to_calico != wanted {
            let spec = NodeMigrationSpec {
                flannel_to_calico: wanted.clone(),
                ..object.spec.clone()
            };
            write::patch_spec(&api, object.as_ref(), &object.spec, &spec).await?;
        }
    }
    Ok(())
}

/// Nodes that joined: the label of any other says where it is, and one that is missing there was taken away.
pub fn newcomers(cache: &Cache, migration: &Migration) -> BTreeMap<String, Arc<Node>> {
    let mut newcomers = linux_nodes(cache);
    newcomers.retain(|_, node| !node_objects::is_prepared(node, migration));
    for object in cache.node_migrations.state() {
        if belongs_to(&object, migration) && object.spec.admitted {
            newcomers.remove(&object.spec.node_name);
        }
    }
    newcomers
}

/// Labels the Nodes that have no network label: flannel's node selector then keeps its pods there.
pub async fn label_with_flannel(
    context: &Context,
    nodes: &BTreeMap<String, Arc<Node>>,
) -> Result<(), WriteError> {
    let api: Api<Node> = Api::all(context.client.clone());
    for node in nodes
        .values()
        .filter(|node| !node.labels().contains_key(names::NODE_NETWORK_LABEL))
    {
        let change =
            json!({ "metadata": { "labels": { names::NODE_NETWORK_LABEL: names::NETWORK_FLANNEL } } });
        write::patch(&api, node.as_ref(), "labelling", change).await?;
    }
    Ok(())
}

/// Nodes by name, without those of another operating system: flannel and Calico's VXLAN are not ours to move there.
pub fn linux_nodes(cache: &Cache) -> BTreeMap<String, Arc<Node>> {
    cache
        .nodes
        .state()
        .into_iter()
        .filter(|node| node.metadata.deletion_timestamp.is_none())
        .filter(|node| {
            let system = node.status.as_ref().and_then(|status| status.node_info.as_ref());
            system.is_none_or(|info| info.operating_system.is_empty() || info.operating_system == "linux")
        })
        .map(|node| (node.name_any(), node))
        .collect()
}

/// By name and by UID: a Migration that was deleted and made again under its name is another one.
fn belongs_to(object: &NodeMigration, migration: &Migration) -> bool {
    object.spec.migration == migration.name_any()
        && object
            .owner_references()
            .iter()
            .any(|owner| Some(&owner.uid) == migration.metadata.uid.as_ref())
}

/// Whether the Migration of this `NodeMigration` is over or not there any more.
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
            // One that does not parse may well be running under another version of this tool.
            Err(_) => true,
        })
        .filter_map(|guarded| guarded.meta().uid.clone())
        .collect();
    !object
        .owner_references()
        .iter()
        .any(|owner| alive.contains(&owner.uid))
}

async fn create(context: &Context, migration: &Migration, node: &str) -> Result<(), WriteError> {
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    let spec: NodeMigrationSpec = serde_json::from_value(json!({
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
