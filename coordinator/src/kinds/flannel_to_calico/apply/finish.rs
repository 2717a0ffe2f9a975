//! The end after the last node: removes flannel's `DaemonSet`, the node selector and the labels; then verifies the result.

use std::collections::BTreeMap;

use ::flannel_to_calico::api::{NodeStatus, OrEmpty as _};
use api::migration::Direction;
use api::node_migration::NodeMigrationSpec;
use api::{MigrationStatus, names};
use engine::decision::WaitReason;
use engine::words;
use flannel_to_calico::host::SUBNET_TABLE;
use flannel_to_calico::phase::{Goal, Phase};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::api::PropagationPolicy;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::super::observe::daemon_set;
use super::super::pass::Pass;
use super::super::{drift, saved};
use crate::clock;
use crate::context::Context;
use crate::drift::announce;
use crate::facts;
use crate::memory::Memory;
use crate::node_migrations::update_spec;
use crate::pass_error::PassError;
use crate::snapshot::Snapshot;
use crate::waits::{is_written, wait};
use crate::write::{self, WriteError};
use crate::{own_pods, staged, traffic};

/// One pass of the end: each step is finished when the object that it removes does not exist.
pub(in super::super) async fn finish(
    pass: &Pass<'_>,
    memory: &mut Memory,
    status: &mut MigrationStatus,
) -> Result<(), PassError> {
    let context = pass.context;
    let snapshot = pass.snapshot();
    for pod in snapshot.probe_pods.values() {
        own_pods::delete(context, pod).await?;
    }
    traffic::end(context, &mut memory.traffic, &snapshot, status).await?;
    if selects_nodes(pass) && keep_calicos_objects(pass, memory, status).await? {
        return Ok(());
    }
    if forget_flannels_pods(context, &snapshot).await? {
        let message = "informing all agents that no pod of flannel remains";
        wait(status, WaitReason::Leftovers, message.to_owned());
        return Ok(());
    }
    if let Some(message) = remaining(&snapshot) {
        wait(status, WaitReason::Leftovers, message);
        return Ok(());
    }
    if replace_daemon_sets(pass, status).await? {
        return Ok(());
    }
    if let Some(held) = traffic::ending(&memory.traffic, &snapshot) {
        wait(status, held.reason, held.message);
        return Ok(());
    }
    release_agents(context, &snapshot).await?;
    remove_labels(context, &snapshot.nodes).await?;
    if !is_written(context, status) {
        return Ok(());
    }
    saved::restore_ipam_config(context, &status.saved_state).await?;
    let message = format!(
        "Nodes on Calico: {}. No part of flannel remains on them. replumb does not delete flannel's namespace, ConfigMap, RBAC \
         and node annotations",
        snapshot.node_migrations.len()
    );
    let now = clock::now();
    staged::complete(context, pass.migration, Direction::Forward, now, message, status).await;
    Ok(())
}

/// Deletes flannel's `DaemonSet`, and then lets Calico's run on every node. Returns whether the status has a wait for one of
/// them.
async fn replace_daemon_sets(pass: &Pass<'_>, status: &mut MigrationStatus) -> Result<bool, WriteError> {
    let Pass {
        context,
        cache,
        settings,
        ..
    } = *pass;
    let flannel = (
        &settings.flannel_daemon_set_namespace.value,
        &settings.flannel_daemon_set_name.value,
    );
    if let Some(set) = daemon_set(cache, flannel.0, flannel.1) {
        delete_daemon_set(context, &set).await?;
        wait(
            status,
            WaitReason::DaemonSetRollout,
            format!("deleting DaemonSet {}/{} and its pods", flannel.0, flannel.1),
        );
        return Ok(true);
    }
    let calico = (
        &settings.calico_daemon_set_namespace.value,
        &settings.calico_daemon_set_name.value,
    );
    let Some(set) = daemon_set(cache, calico.0, calico.1) else {
        wait(
            status,
            WaitReason::DaemonSetRollout,
            format!(
                "DaemonSet {}/{} not found: Calico was removed from the cluster; apply its manifest again",
                calico.0, calico.1
            ),
        );
        return Ok(true);
    };
    let read = facts::daemon_sets::daemon_set(&set);
    if read.selection.labels.contains_key(names::NODE_NETWORK_LABEL) {
        let change = json!({ "spec": { "template": { "spec": {
            "nodeSelector": { names::NODE_NETWORK_LABEL: null } } } } });
        let sets: Api<DaemonSet> = Api::namespaced(context.client.clone(), calico.0);
        write::patch(&sets, set.as_ref(), "removing the node selector of", &change).await?;
        wait(
            status,
            WaitReason::DaemonSetRollout,
            format!("DaemonSet {}/{}: rollout started", calico.0, calico.1),
        );
        return Ok(true);
    }
    if !read.rolled_out || read.ready < read.desired {
        let message = format!(
            "DaemonSet {}/{}: {} of {} pods Ready",
            calico.0, calico.1, read.ready, read.desired
        );
        wait(status, WaitReason::DaemonSetRollout, message);
        return Ok(true);
    }
    Ok(false)
}

/// Whether Calico's `DaemonSet` still has the node selector: no cluster-wide object has been restored yet.
fn selects_nodes(pass: &Pass<'_>) -> bool {
    let settings = pass.settings;
    let set = daemon_set(
        pass.cache,
        &settings.calico_daemon_set_namespace.value,
        &settings.calico_daemon_set_name.value,
    );
    set.is_some_and(|set| {
        facts::daemon_sets::daemon_set(&set)
            .selection
            .labels
            .contains_key(names::NODE_NETWORK_LABEL)
    })
}

/// Restores changes of Calico's objects, since all traffic depends on them. Returns whether the status has to report a change
/// first.
async fn keep_calicos_objects(
    pass: &Pass<'_>,
    memory: &mut Memory,
    status: &mut MigrationStatus,
) -> Result<bool, PassError> {
    let (context, migration) = (pass.context, pass.migration);
    let found = drift::observe_calico_objects(pass, memory, status).await?;
    let what: Vec<String> = found.iter().map(|found| found.what.clone()).collect();
    if announce(context, migration, &what, status).await {
        return Ok(true);
    }
    let restored = drift::restore(context, &mut memory.restores, &found).await?;
    announce(context, migration, &restored.refused, status).await;
    Ok(false)
}

/// Informs every agent that no pod of flannel remains: whole IPv6 subnets need no routes any more. Returns
/// whether an agent was not informed yet.
async fn forget_flannels_pods(context: &Context, snapshot: &Snapshot) -> Result<bool, WriteError> {
    let mut wrote = false;
    for object in snapshot.node_migrations.values() {
        let mut spec = object.spec.clone();
        let Some(ipv6) = spec
            .flannel_to_calico
            .as_mut()
            .and_then(|of_kind| of_kind.host.as_mut())
            .and_then(|host| host.ipv6.as_mut())
        else {
            continue;
        };
        if std::mem::take(&mut ipv6.flannel_pods) {
            update_spec(context, object, &spec).await?;
            wrote = true;
        }
    }
    Ok(wrote)
}

/// Parts of flannel that remain on hosts, as reported by their agents; `None` when every agent proves that
/// none remains.
fn remaining(snapshot: &Snapshot) -> Option<String> {
    let mut lines = Vec::new();
    for (node, object) in &snapshot.node_migrations {
        if !snapshot.nodes.contains_key(node) {
            continue;
        }
        let report = object.status.clone().unwrap_or_default();
        let subnets = report
            .flannel_to_calico
            .or_empty()
            .facts
            .as_ref()
            .map(|facts| facts.calico.subnet_routes);
        if !report.flannel_to_calico.or_empty().leftovers.is_empty() {
            lines.push(format!(
                "node {node}: {}",
                words::names(&report.flannel_to_calico.or_empty().leftovers)
            ));
        } else if report.flannel_to_calico.or_empty().phase != Some(Phase::Calico) {
            lines.push(format!(
                "node {node}: its agent does not report phase Calico: {}",
                report.message
            ));
        } else if subnets.is_some_and(|subnets| !subnets.is_gone()) {
            // From the last report: the agent may not have read yet that the routes are to be removed.
            lines.push(format!(
                "node {node}: routes to whole IPv6 subnets (`ip -6 route show table {SUBNET_TABLE}`) or their rule"
            ));
        }
    }
    (!lines.is_empty()).then(|| words::lines(&lines))
}

async fn delete_daemon_set(context: &Context, set: &DaemonSet) -> Result<(), WriteError> {
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let sets: Api<DaemonSet> = Api::namespaced(context.client.clone(), &set.namespace().unwrap_or_default());
    write::delete(&sets, set, Some(PropagationPolicy::Foreground)).await
}

/// Ends all orders of the agents: a network installed later does not concern them. The agent of a node with adopted pods keeps its
/// goal: when such a pod ends, it removes what flannel's CNI plugins have left.
pub(super) async fn release_agents(context: &Context, snapshot: &Snapshot) -> Result<(), WriteError> {
    for object in snapshot.node_migrations.values() {
        let mut spec = NodeMigrationSpec {
            probes: Vec::new(),
            ..object.spec.clone()
        };
        let status = object.status.as_ref();
        let report = status.and_then(|status| status.flannel_to_calico.as_ref());
        if !report.is_some_and(NodeStatus::has_adopted_pods) {
            spec.flannel_to_calico.get_or_insert_default().goal = Goal::Hold;
        }
        update_spec(context, object, &spec).await?;
    }
    Ok(())
}

pub(super) async fn remove_labels(
    context: &Context,
    nodes: &BTreeMap<String, std::sync::Arc<Node>>,
) -> Result<(), WriteError> {
    let api: Api<Node> = Api::all(context.client.clone());
    let is_marked = |node: &&std::sync::Arc<Node>| {
        node.labels().contains_key(names::NODE_NETWORK_LABEL)
            || node.annotations().contains_key(names::PREPARED_BY_ANNOTATION)
    };
    for node in nodes.values().filter(is_marked) {
        let change = json!({ "metadata": {
            "labels": { names::NODE_NETWORK_LABEL: null },
            "annotations": { names::PREPARED_BY_ANNOTATION: null },
        } });
        let write = write::patch(&api, node.as_ref(), "removing the network label of", &change);
        context
            .obstacles
            .attempt(&write::describe(node.as_ref()), write)
            .await?;
    }
    Ok(())
}
