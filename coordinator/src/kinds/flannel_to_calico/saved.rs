//! State of the cluster before the first change, restored at the end or by a rollback. Cluster-wide state is saved at
//! the start in `status.savedState`, state of one node in its `NodeMigration`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ::calico::family::{IPV4, IPV6};
use ::calico::node_of;
use ::flannel_to_calico::api::OrEmpty as _;
use ::flannel_to_calico::api::SavedNodeState;
use api::{Migration, NodeMigration};
use flannel_to_calico::objects;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::NODES_AT_ONCE;
use crate::cache::Cache;
use crate::calico::{self, Kind};
use crate::context::Context;
use crate::node_migrations::{belongs_to, update_spec};
use crate::pass_error::PassError;
use crate::read_error::ReadError;
use crate::write::WriteError;

/// Key of `status.savedState`: the spec of `IPAMConfig default` as JSON, `null` if it did not exist.
pub const IPAM_CONFIG: &str = "IPAMConfig default";
/// Key: the spec of `FelixConfiguration default` in the same form.
pub const FELIX_CONFIGURATION: &str = "FelixConfiguration default";
/// Key: names of the pools.
pub const IP_POOLS: &str = "IPPool";
/// Key: names of blocks without a node; an earlier version saved those of nodes here, too.
pub const IPAM_BLOCKS: &str = "IPAMBlock";
/// Key: Calico's annotations of Nodes, as an earlier version saved them.
pub const NODE_ANNOTATIONS: &str = "Node annotations";
/// Key: the place where the state of each node is saved.
pub const NODES: &str = "Nodes";
/// The value of that key: in `spec.before` of each `NodeMigration`.
pub const IN_NODE_MIGRATIONS: &str = "\"NodeMigration spec.before\"";

/// Prefix of Calico's annotations of Nodes.
pub const ANNOTATION_PREFIX: &str = "projectcalico.org/";

/// Reads everything that a rollback needs. State of one node is written to its `NodeMigration`, the rest is returned.
pub async fn read(
    context: &Context,
    cache: &Cache,
    migration: &Migration,
) -> Result<BTreeMap<String, String>, PassError> {
    let objects: BTreeMap<String, Arc<NodeMigration>> = cache
        .node_migrations
        .state()
        .into_iter()
        .filter(|object| belongs_to(object, migration))
        .map(|object| (object.spec.node_name.clone(), object))
        .collect();
    let mut of_nodes: BTreeMap<String, SavedNodeState> = objects
        .keys()
        .map(|node| (node.clone(), SavedNodeState::default()))
        .collect();
    for node in cache.nodes.state() {
        if let Some(before) = of_nodes.get_mut(&node.name_any()) {
            before.annotations = node.annotations().clone();
            before
                .annotations
                .retain(|key, _| key.starts_with(ANNOTATION_PREFIX));
        }
    }
    // Every block, once for each migration: a block whose name follows from no node is saved, too, or a rollback would delete it.
    let found = calico::IPAM_BLOCK.each(&context.client, |block| {
        let affinity = block.data["spec"]["affinity"].as_str().unwrap_or_default();
        Some((node_of(affinity).map(ToOwned::to_owned), block.name_any()))
    });
    let mut blocks = Vec::new();
    for (node, block) in found.await? {
        match node.and_then(|node| of_nodes.get_mut(&node)) {
            Some(before) => before.blocks.push(block),
            None => blocks.push(block),
        }
    }
    blocks.sort();
    write_of_nodes(context, objects, of_nodes).await?;
    let felix = spec(
        context,
        calico::FELIX_CONFIGURATION,
        &objects::FELIX_CONFIGURATION_FIELDS,
    );
    let ipam = spec(context, calico::IPAM_CONFIG, &objects::IPAM_CONFIG_FIELDS);
    Ok(BTreeMap::from([
        (IPAM_CONFIG.to_owned(), ipam.await?.to_string()),
        (FELIX_CONFIGURATION.to_owned(), felix.await?.to_string()),
        (
            IP_POOLS.to_owned(),
            json!(names(context, calico::IP_POOL).await?).to_string(),
        ),
        (IPAM_BLOCKS.to_owned(), json!(blocks).to_string()),
        (NODES.to_owned(), IN_NODE_MIGRATIONS.to_owned()),
    ]))
}

/// Writes to each `NodeMigration` the state of its node. Objects that the pass has no time for, and objects that cannot be
/// written, are obstacles of the pass.
async fn write_of_nodes(
    context: &Context,
    objects: BTreeMap<String, Arc<NodeMigration>>,
    mut of_nodes: BTreeMap<String, SavedNodeState>,
) -> Result<(), WriteError> {
    let writes = objects.into_iter().filter_map(|(node, object)| {
        let mut before = of_nodes.remove(&node)?;
        before.blocks.sort();
        let mut spec = object.spec.clone();
        spec.flannel_to_calico.get_or_insert_default().saved_state = Some(before);
        Some((object, spec))
    });
    futures::stream::iter(writes)
        .map(|(object, spec)| async move { update_spec(context, &object, &spec).await })
        .buffer_unordered(NODES_AT_ONCE)
        .try_collect()
        .await
}

/// State of a node: from its `NodeMigration`, or from where an earlier version saved it. `None` if an even older version
/// saved nothing.
pub fn of_node(
    before: &BTreeMap<String, String>,
    node: &str,
    object: Option<&NodeMigration>,
) -> Option<SavedNodeState> {
    if before.contains_key(NODES) {
        // A node that joined later had no state of Calico; a node outside this migration keeps its own.
        return object.map(|object| {
            object
                .spec
                .flannel_to_calico
                .or_empty()
                .saved_state
                .clone()
                .unwrap_or_default()
        });
    }
    let had = value(before, NODE_ANNOTATIONS)?;
    let annotations = had.get(node).cloned().unwrap_or_else(|| json!({}));
    Some(SavedNodeState {
        annotations: serde_json::from_value(annotations).unwrap_or_default(),
        blocks: Vec::new(),
    })
}

/// Names of blocks that existed before, and are not deleted with the node's other blocks.
pub fn blocks_of(before: &BTreeMap<String, String>, of_node: Option<&SavedNodeState>) -> BTreeSet<String> {
    let mut known = known_names(before, IPAM_BLOCKS).unwrap_or_default();
    known.extend(
        of_node
            .into_iter()
            .flat_map(|before| before.blocks.iter().cloned()),
    );
    known
}

/// The fields of an object that are restored later; null if it does not exist.
async fn spec(context: &Context, kind: Kind, ours: &[&str]) -> Result<Value, ReadError> {
    let found = kind.get(&context.client, objects::DEFAULT).await?;
    Ok(found.map_or(Value::Null, |object| {
        let fields = ours.iter().filter_map(|field| {
            let value = object.data.get("spec")?.get(field)?;
            Some(((*field).to_owned(), value.clone()))
        });
        Value::Object(fields.collect())
    }))
}

/// Names of objects of a kind with few objects.
async fn names(context: &Context, kind: Kind) -> Result<Vec<String>, ReadError> {
    let mut names: Vec<String> = kind
        .list(&context.client)
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    names.sort();
    Ok(names)
}

/// The saved value of this key; `None` if an earlier version of replumb started the migration and saved none.
pub fn value(before: &BTreeMap<String, String>, key: &str) -> Option<Value> {
    // The text was written by `read`.
    before.get(key).and_then(|text| serde_json::from_str(text).ok())
}

/// Restores the spec of `IPAMConfig default`; an object that did not exist is deleted.
pub async fn restore_ipam_config(
    context: &Context,
    before: &BTreeMap<String, String>,
) -> Result<(), WriteError> {
    match value(before, IPAM_CONFIG) {
        Some(spec) => restore(context, calico::IPAM_CONFIG, &spec, &objects::IPAM_CONFIG_FIELDS).await,
        None => Ok(()),
    }
}

/// The same for `FelixConfiguration default`.
pub async fn restore_felix_configuration(
    context: &Context,
    before: &BTreeMap<String, String>,
) -> Result<(), WriteError> {
    match value(before, FELIX_CONFIGURATION) {
        Some(spec) => {
            restore(
                context,
                calico::FELIX_CONFIGURATION,
                &spec,
                &objects::FELIX_CONFIGURATION_FIELDS,
            )
            .await
        }
        None => Ok(()),
    }
}

/// Restores the fields that replumb writes; other fields written since then stay.
async fn restore(context: &Context, kind: Kind, before: &Value, ours: &[&str]) -> Result<(), WriteError> {
    let Some(read) = kind.get(&context.client, objects::DEFAULT).await? else {
        return Ok(());
    };
    let found = read.data.get("spec").cloned().unwrap_or_else(|| json!({}));
    let is_others = |field: &str, value: &Value| !ours.contains(&field) && !objects::is_default(field, value);
    let others = found
        .as_object()
        .is_some_and(|fields| fields.iter().any(|(field, value)| is_others(field, value)));
    // The object did not exist, and no other writer has added a field since.
    if before.is_null() && !others {
        return kind.delete(&context.client, objects::DEFAULT).await;
    }
    let change: Map<String, Value> = ours
        .iter()
        .map(|field| {
            (
                (*field).to_owned(),
                before.get(*field).cloned().unwrap_or(Value::Null),
            )
        })
        .filter(|(field, value)| found.get(field).unwrap_or(&Value::Null) != value)
        .collect();
    if change.is_empty() {
        return Ok(());
    }
    kind.patch_spec(&context.client, &read, &Value::Object(change))
        .await
}

/// Deletes pools that did not exist before. Pools stay if no names were saved.
pub async fn delete_new_pools(
    context: &Context,
    before: &BTreeMap<String, String>,
) -> Result<(), WriteError> {
    let Some(known) = known_names(before, IP_POOLS) else {
        return Ok(());
    };
    for name in objects::family::ALL.iter().map(|family| family.pool) {
        if !known.contains(name) && calico::IP_POOL.get(&context.client, name).await?.is_some() {
            calico::IP_POOL.delete(&context.client, name).await?;
        }
    }
    Ok(())
}

/// Names saved under this key.
pub fn known_names(before: &BTreeMap<String, String>, key: &str) -> Option<BTreeSet<String>> {
    serde_json::from_value(value(before, key)?).ok()
}

/// The patch that restores Calico's annotations of a Node; `None` if they are equal. A saved address that other nodes would send
/// to, and that differs from the Node's present one, is not restored: calico-node writes its own at its start, unless
/// autodetection is off.
pub fn annotations_change(
    found: &BTreeMap<String, String>,
    had: &BTreeMap<String, String>,
) -> Option<Map<String, Value>> {
    let address = |text: &String| {
        text.split('/')
            .next()
            .and_then(|text| text.parse::<IpAddr>().ok())
    };
    let is_restored = |key: &str, value: &String| {
        let is_address = [&IPV4, &IPV6]
            .iter()
            .any(|family| family.address_annotation == key);
        !is_address || found.get(key).is_some_and(|now| address(now) == address(value))
    };
    let had: BTreeMap<&String, &String> = had
        .iter()
        .filter(|(key, value)| is_restored(key, value))
        .collect();
    let new = found
        .keys()
        .filter(|key| key.starts_with(ANNOTATION_PREFIX) && !had.contains_key(key))
        .map(|key| (key.clone(), Value::Null));
    let change: Map<String, Value> = had
        .iter()
        .filter(|(key, value)| found.get(**key) != Some(**value))
        .map(|(key, value)| ((*key).clone(), json!(value)))
        .chain(new)
        .collect();
    (!change.is_empty()).then_some(change)
}

#[cfg(test)]
mod tests;
