//! Rollback of cluster-wide objects after the last node is back on flannel, in reverse order.

use std::collections::{BTreeMap, BTreeSet};

use ::flannel_to_calico::api::SavedNodeState;
use api::migration::Direction;
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

use super::super::observe::{daemon_set, required_daemon_set};
use super::super::pass::Pass;
use super::super::{NODES_AT_ONCE, blocks, node_objects, saved};
use super::finish::{release_agents, remove_labels};
use super::prepare::rolled;
use crate::clock;
use crate::context::Context;
use crate::facts;
use crate::kind_memory::KindMemory;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::read_error::ReadError;
use crate::snapshot::Snapshot;
use crate::waits::{is_written, wait};
use crate::write::{self, WriteError};
use crate::{own_pods, staged, traffic};

/// Facts about the rollback. Lost at a restart: then they are read again.
#[derive(Default)]
pub struct RollbackFacts {
    /// UID of the Migration, and the start of its rollback.
    of: Option<(String, Timestamp)>,
    /// Ranges of the nodes' blocks in Calico's IPAM.
    blocks: BTreeMap<String, BTreeSet<IpNet>>,
    /// Nodes whose blocks are all removed.
    forgotten: BTreeSet<String>,
}

impl KindMemory for RollbackFacts {}

impl RollbackFacts {
    /// The facts about this Migration's rollback.
    async fn of(
        &mut self,
        context: &Context,
        migration: &Migration,
        status: &MigrationStatus,
    ) -> Result<&mut Self, ReadError> {
        let of = migration.uid().zip(status.rollback_started_at);
        if self.of != of || of.is_none() {
            *self = Self {
                of,
                // Calico may have created more blocks for a node than its subnet implies.
                blocks: blocks::by_node(context).await?,
                forgotten: BTreeSet::new(),
            };
        }
        Ok(self)
    }

    /// Ranges of possible blocks of this node; `None` when all are removed.
    fn remaining_of(&self, node: &Node, settings: &Settings) -> Option<BTreeSet<IpNet>> {
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

/// One pass of the rollback: each step is finished when the object that it removes does not exist.
///
/// # Errors
///
/// An object changed since it was read, or the API server refuses a request or does not answer. The next pass continues.
pub(in super::super) async fn roll_back(
    pass: &Pass<'_>,
    memory: &mut Memory,
    status: &mut MigrationStatus,
) -> Result<(), PassError> {
    let context = pass.context;
    // Recorded before the first restore: after a change of direction everything must be written again.
    if status.rollback_started_at.is_none() {
        status.rollback_started_at = Some(clock::now());
        status.prepared_at = None;
        "every node is back on flannel; restoring cluster-wide objects".clone_into(&mut status.message);
        return Ok(());
    }
    let snapshot = pass.snapshot();
    for pod in snapshot.probe_pods.values() {
        own_pods::delete(context, pod).await?;
    }
    traffic::end(context, &mut memory.traffic, &snapshot, status).await?;
    let kept = forget_nodes(pass, memory, &snapshot, status).await?;
    if !is_written(context, status) {
        return Ok(());
    }
    if let Some(first) = kept.first() {
        wait(
            status,
            WaitReason::CalicoObjects,
            format!(
                "IPAMBlocks with addresses of other owners, not deleted: {}; first: {first}. Find the owner with \
                 `kubectl get ipamblocks.crd.projectcalico.org {first} -o yaml`, and delete the block",
                kept.len()
            ),
        );
        return Ok(());
    }
    saved::restore_felix_configuration(context, &status.saved_state).await?;
    crash_point::reach("RestoreFelixConfiguration", Edge::Recorded, None).await;
    saved::delete_new_pools(context, &status.saved_state).await?;
    crash_point::reach("DeletePools", Edge::Recorded, None).await;
    saved::restore_ipam_config(context, &status.saved_state).await?;
    crash_point::reach("RestoreIpamConfig", Edge::Recorded, None).await;
    if let Some(message) = deselect_nodes(pass, &snapshot).await? {
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
    let message = format!(
        "Nodes on flannel as before: {}. replumb does not delete Calico's DaemonSet, ClusterInformation and Tiers",
        snapshot.node_migrations.len()
    );
    let now = clock::now();
    staged::complete(context, pass.migration, Direction::Rollback, now, message, status).await;
    Ok(())
}

/// Removes what Calico's datastore has of each node. Returns the blocks with addresses of other owners: they stay.
async fn forget_nodes(
    pass: &Pass<'_>,
    memory: &mut Memory,
    snapshot: &Snapshot,
    status: &MigrationStatus,
) -> Result<Vec<String>, PassError> {
    let context = pass.context;
    let undone = memory
        .kinds
        .of::<RollbackFacts>()
        .of(context, pass.migration, status)
        .await?;
    let forgotten: Vec<(String, Option<Vec<String>>)> =
        futures::stream::iter(snapshot.nodes.values().cloned())
            .map(|node| {
                let before = &status.saved_state;
                let object = snapshot.node_migrations.get(&node.name_any());
                let saved = saved::of_node(before, &node.name_any(), object.map(AsRef::as_ref));
                let known = saved::blocks_of(before, saved.as_ref());
                let ranges = undone.remaining_of(&node, pass.settings);
                async move {
                    let forgotten = forget_node(context, &node, saved.as_ref(), ranges.as_ref(), &known);
                    let kept = context
                        .obstacles
                        .attempt(&write::describe(node.as_ref()), forgotten)
                        .await?;
                    crash_point::reach("ForgetNode", Edge::Recorded, Some(&node.name_any())).await;
                    Ok::<_, PassError>((node.name_any(), kept))
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
            // The write was refused, and is kept as an obstacle.
            None => {}
        }
    }
    Ok(kept)
}

/// Removes Calico's data of one node, including its blocks of these ranges (`None` if they are removed already). Returns the
/// names of blocks that hold addresses of other owners.
async fn forget_node(
    context: &Context,
    node: &Node,
    before: Option<&SavedNodeState>,
    ranges: Option<&BTreeSet<IpNet>>,
    known: &BTreeSet<String>,
) -> Result<Vec<String>, PassError> {
    // First: a node without the annotation is prepared again, whatever else has been removed by then.
    let mut change = before
        .and_then(|before| saved::annotations_change(node.annotations(), &before.annotations))
        .unwrap_or_default();
    if node.annotations().contains_key(names::PREPARED_BY_ANNOTATION) {
        change.insert(names::PREPARED_BY_ANNOTATION.to_owned(), Value::Null);
    }
    if !change.is_empty() {
        let api: Api<Node> = Api::all(context.client.clone());
        let change = json!({ "metadata": { "annotations": change } });
        write::patch(&api, node, "removing Calico's annotations from", &change).await?;
    }
    match ranges {
        Some(ranges) => node_objects::remove(context, &node.name_any(), ranges, known).await,
        None => Ok(Vec::new()),
    }
}

/// Whether flannel's `DaemonSet` still has the node selector.
pub(in super::super) fn selects_nodes(pass: &Pass<'_>) -> bool {
    let settings = pass.settings;
    let set = daemon_set(
        pass.cache,
        &settings.flannel_daemon_set_namespace.value,
        &settings.flannel_daemon_set_name.value,
    );
    set.is_some_and(|set| {
        facts::daemon_sets::daemon_set(&set)
            .selection
            .labels
            .contains_key(names::NODE_NETWORK_LABEL)
    })
}

/// Removes the node selector of flannel's `DaemonSet` and waits for its rollout; `None` once every Ready node has the new pod.
async fn deselect_nodes(pass: &Pass<'_>, snapshot: &Snapshot) -> Result<Option<String>, WriteError> {
    let Pass {
        context,
        cache,
        settings,
        ..
    } = *pass;
    let namespace = &settings.flannel_daemon_set_namespace.value;
    let name = &settings.flannel_daemon_set_name.value;
    let set = match required_daemon_set(cache, namespace, name) {
        Ok(set) => set,
        Err(message) => return Ok(Some(message)),
    };
    let read = facts::daemon_sets::daemon_set(&set);
    if read.selection.labels.contains_key(names::NODE_NETWORK_LABEL) {
        let change = json!({ "spec": { "template": { "spec": {
            "nodeSelector": { names::NODE_NETWORK_LABEL: null } } } } });
        let api: Api<DaemonSet> = Api::namespaced(context.client.clone(), namespace);
        write::patch(&api, set.as_ref(), "removing the node selector of", &change).await?;
        crash_point::reach("DeselectNodes", Edge::Recorded, None).await;
        return Ok(Some(format!(
            "DaemonSet {namespace}/{name}: rollout without the node selector started"
        )));
    }
    Ok(rolled(&set, &snapshot.nodes))
}
