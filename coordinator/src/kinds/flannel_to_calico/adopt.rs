//! Nodes that join and leave: a node that joins a running migration starts on flannel and is migrated like the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::flannel_to_calico::api::{NodeSpec, NodeStatus, OrEmpty as _};
use api::migration::Desired;
use api::node_migration::NodeMigrationSpec;
use api::{Migration, NodeMigration, names};
use flannel_to_calico::host::HostSettings;
use flannel_to_calico::objects::Pool;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::blocks;
use super::node_objects::{self, Outcome};
use super::pass::Pass;
use crate::cache::Cache;
use crate::clock;
use crate::context::Context;
use crate::node_migrations::{self, belongs_to, linux_nodes};
use crate::pass_error::PassError;
use crate::write::{self, WriteError, describe};

/// Creates and deletes `NodeMigration`s to match the Nodes.
pub async fn adopt(context: &Context, cache: &Cache, migration: &Migration) -> Result<(), PassError> {
    for object in node_migrations::without_node(cache, migration) {
        let removal = async {
            let node = &object.spec.node_name;
            let ranges = blocks::by_node(context).await?.remove(node).unwrap_or_default();
            node_objects::remove(context, node, &ranges, &BTreeSet::new()).await?;
            node_migrations::delete(context, &object).await?;
            Ok::<_, PassError>(())
        };
        context
            .obstacles
            .attempt(&describe(object.as_ref()), removal)
            .await?;
    }
    let nodes = nodes(cache, migration);
    for object in outside(cache, migration, &nodes) {
        let removal = node_migrations::delete(context, &object);
        context
            .obstacles
            .attempt(&describe(object.as_ref()), removal)
            .await?;
    }
    // Without settings, an agent only observes its host.
    // From the start: the agent reports about flannel and Calico, which the checks need.
    let ask = |spec: &mut NodeMigrationSpec| spec.flannel_to_calico = Some(NodeSpec::default());
    Ok(node_migrations::sync(context, cache, migration, &nodes, ask).await?)
}

/// The Nodes that the migration changes, by name: Linux Nodes that flannel's `DaemonSet` selected before it, or joined since. A Node
/// that is prepared stays one, whatever becomes of its labels.
pub(super) fn nodes(cache: &Cache, migration: &Migration) -> BTreeMap<String, Arc<Node>> {
    let mut nodes = linux_nodes(cache);
    let status = migration.status.as_ref();
    let known = status.and_then(|status| status.flannel_to_calico.as_ref());
    if let Some(selection) = known.and_then(|known| known.nodes.as_ref()) {
        nodes.retain(|name, node| {
            selection.selects(name, node.labels()) || node_objects::is_prepared(node, migration)
        });
    }
    nodes
}

/// Objects of Nodes that exist and that the migration does not change. They were created before flannel's `DaemonSet` was known.
fn outside(
    cache: &Cache,
    migration: &Migration,
    nodes: &BTreeMap<String, Arc<Node>>,
) -> Vec<Arc<NodeMigration>> {
    let all = linux_nodes(cache);
    let mut objects = cache.node_migrations.state();
    objects.retain(|object| {
        let name = &object.spec.node_name;
        let is_untouched = !object.spec.started && object.spec.finished_at.is_none();
        belongs_to(object, migration) && is_untouched && all.contains_key(name) && !nodes.contains_key(name)
    });
    objects
}

/// The same while the migration runs; a Node that joined is prepared like the others at the start. Returns the Nodes
/// that cannot be started yet, with the reason.
pub(super) async fn adopt_nodes(pass: &Pass<'_>) -> Result<BTreeMap<String, String>, PassError> {
    let Pass {
        context,
        cache,
        migration,
        settings,
        ..
    } = *pass;
    adopt(context, cache, migration).await?;
    let nodes = nodes(cache, migration);
    write_settings(pass).await?;
    label_with_flannel(context, &joined_nodes(pass)).await?;
    let joined: Vec<&Arc<Node>> = nodes
        .values()
        .filter(|node| !node_objects::is_prepared(node, migration))
        .collect();
    if joined.is_empty() {
        return Ok(BTreeMap::new());
    }
    let pools = node_objects::pools(context, settings).await?.and_then(|pools| {
        flannel_to_calico::objects::pools(settings, &pools).map_err(|conflict| conflict.to_string())
    });
    let mut unprepared = BTreeMap::new();
    for node in joined {
        let outcome = match &pools {
            Ok(pools) => prepare_node(pass, pools, node).await?,
            Err(message) => Some(Outcome::Blocked(message.clone())),
        };
        match outcome {
            Some(Outcome::Written) => {}
            None => {
                unprepared.insert(node.name_any(), "will be prepared in the next pass".to_owned());
            }
            // Perhaps flannel has not reached the node yet: it is read again, and not started before.
            Some(Outcome::Blocked(message)) => {
                unprepared.insert(node.name_any(), message);
            }
        }
    }
    Ok(unprepared)
}

/// Writes everything for one node. A refusal of the API server affects this node only. `None` if the next pass writes it.
pub(super) async fn prepare_node(
    pass: &Pass<'_>,
    pools: &[Pool],
    node: &Node,
) -> Result<Option<Outcome>, PassError> {
    let context = pass.context;
    let object = describe(node);
    let write = node_objects::write(pass, pools, node);
    Ok(match context.obstacles.attempt(&object, write).await? {
        Some(outcome) => Some(outcome),
        None => match context.obstacles.reason_to_wait(&object, clock::now()) {
            Some(message) => Some(Outcome::Blocked(message)),
            None if context.obstacles.postponed() > 0 => None,
            None => Some(Outcome::Blocked(format!(
                "{object} changed since it was read; the coordinator retries"
            ))),
        },
    })
}

/// Updates the settings of every agent that has others: of an earlier version, or of a migration that was about to end.
pub(super) async fn write_settings(pass: &Pass<'_>) -> Result<(), WriteError> {
    let kind = pass.kind;
    let settings = HostSettings::for_agents(
        pass.settings,
        kind.strategy,
        kind.legacy_pods,
        kind.firewall_twins,
    );
    for object in pass.cache.node_migrations.state() {
        let of_kind = object.spec.flannel_to_calico.or_empty();
        let mut wanted = settings.clone();
        wanted.adoption.resumed_at = attempt(&object, pass.migration);
        if belongs_to(&object, pass.migration) && of_kind.host.as_ref() != Some(&wanted) {
            let mut spec = object.spec.clone();
            spec.flannel_to_calico.get_or_insert_default().host = Some(wanted);
            node_migrations::update_spec(pass.context, &object, &spec).await?;
        }
    }
    Ok(())
}

/// The resume that an agent has last been told of, for the adoption of pods. A later one is only told to an agent that has returned
/// pods: for the others it changes nothing, and a large cluster has many of them.
fn attempt(object: &NodeMigration, migration: &Migration) -> Option<Timestamp> {
    let status = object
        .status
        .as_ref()
        .map(|status| status.flannel_to_calico.or_empty());
    let kind = migration.spec.flannel_to_calico.as_ref();
    let goes_forward =
        migration.spec.desired == Desired::Run && kind.is_none_or(|kind| kind.rollback_nodes.is_empty());
    if goes_forward && status.is_some_and(NodeStatus::has_returned_pods) {
        return migration.spec.resumed_at;
    }
    let host = object.spec.flannel_to_calico.or_empty().host.as_ref();
    host.and_then(|host| host.adoption.resumed_at)
}

/// Nodes that joined and need the network label. On any other node, a missing label was removed by another writer.
pub(super) fn joined_nodes(pass: &Pass<'_>) -> BTreeMap<String, Arc<Node>> {
    let (cache, migration) = (pass.cache, pass.migration);
    let mut newcomers = nodes(cache, migration);
    newcomers.retain(|_, node| !node_objects::is_prepared(node, migration));
    for object in cache.node_migrations.state() {
        if belongs_to(&object, migration) && object.spec.started {
            newcomers.remove(&object.spec.node_name);
        }
    }
    newcomers
}

/// Labels the Nodes without a network label: flannel's node selector then keeps its pods there.
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
        let write = write::patch(&api, node.as_ref(), "labelling", &change);
        context.obstacles.attempt(&describe(node.as_ref()), write).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
