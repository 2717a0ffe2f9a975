//! Cluster-wide objects that both networks need, written before the first node. No packet is affected.
//!
//! Order: labels, so that flannel's node selector keeps its pods on their nodes; the selector; the pool and Calico's
//! settings; then each node's blocks and annotations. Each part is written only if something is missing, so an
//! interrupted pass continues with the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::MigrationPhase;
use api::{MigrationStatus, names};
use crash_point::Edge;
use engine::decision::WaitReason;
use flannel_to_calico::objects::{self, Pool};
use flannel_to_calico::settings::Settings;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::super::node_objects::{self, Outcome};
use super::super::observe::required_daemon_set;
use super::super::pass::Pass;
use super::super::{NODES_AT_ONCE, adopt};
use crate::calico;
use crate::clock;
use crate::context::Context;
use crate::facts;
use crate::pass_error::PassError;
use crate::waits::{is_written, wait};
use crate::write::{self, WriteError};

/// One pass of the preparation.
pub(in super::super) async fn prepare(
    pass: &Pass<'_>,
    status: &mut MigrationStatus,
) -> Result<(), PassError> {
    let Pass {
        context,
        cache,
        migration,
        ..
    } = *pass;
    adopt::adopt(context, cache, migration).await?;
    let nodes = adopt::nodes(cache, migration);
    adopt::label_with_flannel(context, &nodes).await?;
    if !is_written(context, status) {
        // Without the label, the node selector would take flannel off a node.
        return Ok(());
    }
    crash_point::reach("LabelNodes", Edge::Recorded, None).await;
    if let Some(message) = select_nodes(pass, &nodes).await? {
        wait(status, WaitReason::DaemonSetRollout, message);
        return Ok(());
    }
    let pools = match write_settings(context, pass.settings).await? {
        Ok(pools) => pools,
        Err(message) => {
            wait(status, WaitReason::CalicoObjects, message);
            return Ok(());
        }
    };
    let outcomes: Vec<Option<Outcome>> = futures::stream::iter(
        nodes
            .values()
            .filter(|node| !node_objects::is_prepared(node, migration))
            .cloned(),
    )
    .map(|node| {
        let pools = &pools;
        async move {
            let outcome = adopt::prepare_node(pass, pools, &node).await?;
            crash_point::reach("WriteNode", Edge::Recorded, Some(&node.name_any())).await;
            Ok::<_, PassError>(outcome)
        }
    })
    .buffer_unordered(NODES_AT_ONCE)
    .try_collect()
    .await?;
    let mut blocked: Vec<String> = outcomes
        .into_iter()
        .filter_map(|outcome| match outcome {
            Some(Outcome::Written) | None => None,
            Some(Outcome::Blocked(message)) => Some(message),
        })
        .collect();
    blocked.sort();
    if let Some(first) = blocked.first() {
        wait(
            status,
            WaitReason::CalicoObjects,
            format!("blocked nodes: {}; first: {first}", blocked.len()),
        );
        return Ok(());
    }
    if !is_written(context, status) {
        return Ok(());
    }
    status.phase = MigrationPhase::Rolling;
    status.rollback_started_at = None;
    status.prepared_at = status.prepared_at.or(Some(clock::now()));
    status.clear_reason("cluster-wide objects are ready; starting with nodes".to_owned());
    Ok(())
}

/// Sets the node selector of flannel's `DaemonSet` and waits for its rollout; `None` once every Ready node has the new pod.
async fn select_nodes(
    pass: &Pass<'_>,
    nodes: &BTreeMap<String, Arc<Node>>,
) -> Result<Option<String>, WriteError> {
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
    if read
        .selection
        .labels
        .get(names::NODE_NETWORK_LABEL)
        .map(String::as_str)
        != Some(names::NETWORK_FLANNEL)
    {
        let change = json!({ "spec": { "template": { "spec": {
            "nodeSelector": { names::NODE_NETWORK_LABEL: names::NETWORK_FLANNEL } } } } });
        let api: Api<DaemonSet> = Api::namespaced(context.client.clone(), namespace);
        write::patch(&api, set.as_ref(), "adding the node selector to", &change).await?;
        crash_point::reach("SelectNodes", Edge::Recorded, None).await;
        return Ok(Some(format!(
            "DaemonSet {namespace}/{name}: rollout of the new node selector started"
        )));
    }
    Ok(rolled(&set, nodes))
}

/// Progress of the last change of a `DaemonSet` towards every Ready node; `None` when it is complete.
pub fn rolled(set: &DaemonSet, nodes: &BTreeMap<String, Arc<Node>>) -> Option<String> {
    if facts::daemon_sets::daemon_set(set).on_delete {
        // Its pods keep the old template until they are deleted; the controller already uses the new one.
        return None;
    }
    let status = set.status.clone().unwrap_or_default();
    let observed =
        status.observed_generation.unwrap_or_default() >= set.metadata.generation.unwrap_or_default();
    let updated = status.updated_number_scheduled.unwrap_or_default();
    let available = status.number_available.unwrap_or_default();
    // An unready node keeps its old pod until it is Ready again, and must not delay the others.
    let unready = i32::try_from(
        nodes
            .values()
            .filter(|node| !facts::nodes::is_ready(node))
            .count(),
    )
    .unwrap_or(i32::MAX);
    let needed = status.desired_number_scheduled.saturating_sub(unready);
    if observed && updated >= needed && available >= needed {
        return None;
    }
    Some(format!(
        "DaemonSet {}/{}: {updated} of {needed} pods updated, {available} available",
        set.namespace().unwrap_or_default(),
        set.name_any()
    ))
}

/// Writes pools and the settings of Felix and IPAM; returns the pools, or the obstacle.
async fn write_settings(
    context: &Context,
    settings: &Settings,
) -> Result<Result<Vec<Pool>, String>, PassError> {
    let pools = match node_objects::pools(context, settings).await? {
        Ok(pools) => pools,
        Err(message) => return Ok(Err(message)),
    };
    let pools = match objects::pools(settings, &pools) {
        Ok(pools) => pools,
        Err(conflict) => return Ok(Err(conflict.to_string())),
    };
    // IPAM first: once a pool exists, a node may request a block from it.
    calico::IPAM_CONFIG
        .ensure(
            &context.client,
            &objects::ipam_config(),
            objects::ipam_config_change,
        )
        .await?;
    crash_point::reach("WriteIpamConfig", Edge::Recorded, None).await;
    for pool in &pools {
        let Some(object) = &pool.create else { continue };
        // A pool that another writer created a moment ago is compared in the next pass.
        if calico::IP_POOL.create(&context.client, object).await? == calico::Created::Before {
            return Ok(Err(format!(
                "IPPool {} was created a moment ago by another writer; the coordinator retries",
                pool.name
            )));
        }
        crash_point::reach("CreatePool", Edge::Recorded, None).await;
    }
    let felix = objects::felix_configuration(settings);
    calico::FELIX_CONFIGURATION
        .ensure(&context.client, &felix, |found| {
            objects::felix_configuration_change(settings, found)
        })
        .await?;
    crash_point::reach("WriteFelixConfiguration", Edge::Recorded, None).await;
    Ok(Ok(pools))
}
