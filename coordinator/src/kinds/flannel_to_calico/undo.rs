//! After the last node is back: what was written for the cluster is taken back, in the reverse order.

use std::collections::{BTreeMap, BTreeSet};

use api::migration::MigrationPhase;
use api::node_migration::NodeBefore;
use api::{Migration, MigrationStatus, names};
use crash_point::Edge;
use engine::decision::WaitReason;
use flannel_to_calico::settings::Settings;
use futures::{StreamExt as _, TryStreamExt as _};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::finish::{release_agents, remove_labels};
use super::prepare::{NODES_AT_ONCE, daemon_set, rolled};
use super::{blocks, node_objects, saved};
use crate::cache::Cache;
use crate::context::Context;
use crate::facts;
use crate::lifecycle::{is_written, wait};
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::write::{self, WriteError};
use crate::{own_pods, traffic};

/// What is known of the way back, and lost at a restart: then it is looked at anew.
#[derive(Default)]
pub struct Undone {
    /// UID of the Migration, and since when it is taken back.
    of: Option<(String, Timestamp)>,
    /// Ranges of the blocks that nodes have in Calico's IPAM.
    blocks: BTreeMap<String, BTreeSet<IpNet>>,
    /// Nodes of which nothing is left there.
    forgotten: BTreeSet<String>,
}

impl Undone {
    /// What is known of this Migration's way back.
    async fn of(
        &mut self,
        context: &Context,
        migration: &Migration,
        status: &MigrationStatus,
    ) -> Result<&mut Self, WriteError> {
        let of = migration.uid().zip(status.undone_since);
        if self.of != of || of.is_none() {
            *self = Self {
                of,
                // Calico may have made more for a node than follows from its subnet.
                blocks: blocks::by_node(context).await?,
                forgotten: BTreeSet::new(),
            };
        }
        Ok(self)
    }

    /// Ranges of which this node may have blocks; `None` when nothing is left of it.
    fn left_of(&self, node: &Node, settings: &Settings) -> Option<BTreeSet<IpNet>> {
        let name = node.name_any();
        if self.forgotten.contains(&name) {
            return None;
        }
        let mut ranges = blocks::of_node(node, settings);
        ranges.extend(self.blocks.get(&name).into_iter().flatten());
        Some(ranges)
    }

    fn forget(&mut self, node: String) {
        self.blocks.remove(&node);
        self.forgotten.insert(node);
    }
}

/// One pass of it: each step is done when what it removes is not there.
pub async fn undo(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    settings: &Settings,
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    // Known before anything is taken back: who turns around later has to write all of it anew.
    if status.undone_since.is_none() {
        status.undone_since = Some(Timestamp::now());
        status.prepared_at = None;
        "every node is back; what was written for the cluster is taken back".clone_into(&mut status.message);
        return Ok(());
    }
    let snapshot = Snapshot::take(cache, &migration.name_any(), &context.namespace);
    for pod in snapshot.probe_pods.values() {
        own_pods::delete(context, pod).await?;
    }
    traffic::end(context, &mut memory.traffic, &snapshot, status).await?;
    let undone = memory.undone.of(context, migration, status).await?;
    let forgotten: Vec<(String, Option<Vec<String>>)> =
        futures::stream::iter(snapshot.nodes.values().cloned())
            .map(|node| {
                let before = &status.before;
                let object = snapshot.node_migrations.get(&node.name_any());
                let saved = saved::of_node(before, &node.name_any(), object.map(AsRef::as_ref));
                let known = saved::blocks_of(before, saved.as_ref());
                let ranges = undone.left_of(&node, settings);
                async move {
                    let forgotten = forget_node(context, &node, saved.as_ref(), ranges.as_ref(), &known);
                    let kept = context
                        .obstacles
                        .attempt(&write::describe(node.as_ref()), forgotten)
                        .await?;
                    crash_point::reach("ForgetNode", Edge::Recorded, Some(&node.name_any())).await;
                    Ok::<_, WriteError>((node.name_any(), kept))
                }
            })
            .buffer_unordered(NODES_AT_ONCE)
            .try_collect()
            .await?;
    let mut kept = Vec::new();
    for (node, of_node) in forgotten {
        match of_node {
            Some(none) if none.is_empty() => undone.forget(node),
            Some(some) => kept.extend(some),
            // It was refused, and is an obstacle.
            None => {}
        }
    }
    if !is_written(context, status) {
        return Ok(());
    }
    if let Some(first) = kept.first() {
        wait(
            status,
            WaitReason::CalicoObjects,
            format!(
                "{} IPAMBlocks hold addresses that are not this migration's and are not deleted; the first is {first}. See \
                 whose they are with `kubectl get ipamblocks.crd.projectcalico.org {first} -o yaml`, and delete it",
                kept.len()
            ),
        );
        return Ok(());
    }
    saved::restore_felix_configuration(context, &status.before).await?;
    crash_point::reach("RestoreFelixConfiguration", Edge::Recorded, None).await;
    saved::delete_new_pools(context, &status.before).await?;
    crash_point::reach("DeletePools", Edge::Recorded, None).await;
    saved::restore_ipam_config(context, &status.before).await?;
    crash_point::reach("RestoreIpamConfig", Edge::Recorded, None).await;
    if let Some(message) = deselect_nodes(context, cache, settings, &snapshot).await? {
        wait(status, WaitReason::DaemonSetRollout, message);
        return Ok(());
    }
    if let Some(held) = traffic::ending(&memory.traffic, &snapshot) {
        wait(status, held.reason, held.message);
        return Ok(());
    }
    release_agents(context, &snapshot).await?;
    crash_point::reach("ReleaseAgents", Edge::Recorded, None).await;
    remove_labels(context, &snapshot.nodes).await?;
    if !is_written(context, status) {
        return Ok(());
    }
    crash_point::reach("RemoveLabels", Edge::Recorded, None).await;
    status.phase = MigrationPhase::RolledBack;
    status.completed_at = Some(Timestamp::now());
    status.blocked = String::new();
    status.message = format!(
        "{} nodes are on flannel, as they were before. Calico's DaemonSet, its ClusterInformation and Tiers are not ours to \
         delete",
        snapshot.node_migrations.len()
    );
    context
        .teller
        .migration(
            migration,
            crate::tell::Tone::Normal,
            "RolledBack",
            &status.message,
        )
        .await;
    Ok(())
}

/// Takes back what Calico was told of one node, its blocks of these ranges included; none where they are gone. Returns the names of blocks
/// that hold addresses of others.
async fn forget_node(
    context: &Context,
    node: &Node,
    before: Option<&NodeBefore>,
    ranges: Option<&BTreeSet<IpNet>>,
    known: &BTreeSet<String>,
) -> Result<Vec<String>, WriteError> {
    // First: a node without it is prepared anew, whatever of the rest is gone by then.
    let mut change = before
        .and_then(|before| saved::annotations_change(node.annotations(), &before.annotations))
        .unwrap_or_default();
    if node.annotations().contains_key(names::PREPARED_BY_ANNOTATION) {
        change.insert(names::PREPARED_BY_ANNOTATION.to_owned(), Value::Null);
    }
    if !change.is_empty() {
        let api: Api<Node> = Api::all(context.client.clone());
        let change = json!({ "metadata": { "annotations": change } });
        write::patch(&api, node, "taking Calico's annotations off", &change).await?;
    }
    match ranges {
        Some(ranges) => node_objects::remove(context, &node.name_any(), ranges, known).await,
        None => Ok(Vec::new()),
    }
}

/// Whether flannel's `DaemonSet` still goes by the label of the Nodes.
pub fn selects_nodes(cache: &Cache, settings: &Settings) -> bool {
    let set = daemon_set(
        cache,
        &settings.flannel_daemon_set_namespace.value,
        &settings.flannel_daemon_set_name.value,
    );
    set.is_some_and(|set| {
        facts::daemon_sets::daemon_set(&set)
            .node_selector
            .contains_key(names::NODE_NETWORK_LABEL)
    })
}

/// Takes the node selector off flannel's `DaemonSet` and waits for its roll; `None` once every Ready node has the new pod.
async fn deselect_nodes(
    context: &Context,
    cache: &Cache,
    settings: &Settings,
    snapshot: &Snapshot,
) -> Result<Option<String>, WriteError> {
    let namespace = &settings.flannel_daemon_set_namespace.value;
    let name = &settings.flannel_daemon_set_name.value;
    let Some(set) = daemon_set(cache, namespace, name) else {
        return Ok(Some(format!(
            "DaemonSet {namespace}/{name} is not there: flannel was removed from the cluster; apply its manifest again"
        )));
    };
    let read = facts::daemon_sets::daemon_set(&set);
    if read.node_selector.contains_key(names::NODE_NETWORK_LABEL) {
        let change = json!({ "spec": { "template": { "spec": {
            "nodeSelector": { names::NODE_NETWORK_LABEL: null } } } } });
        let api: Api<DaemonSet> = Api::namespaced(context.client.clone(), namespace);
        write::patch(&api, set.as_ref(), "removing the node selector of", &change).await?;
        crash_point::reach("DeselectNodes", Edge::Recorded, None).await;
        return Ok(Some(format!(
            "DaemonSet {namespace}/{name} is rolled without its node selector"
        )));
    }
    Ok(rolled(&set, &snapshot.nodes))
}
