//! The Nodes' network labels, written again when somebody else wrote them: at once, since a network's daemon follows its label.

use std::collections::BTreeMap;

use api::{Migration, names};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use plan::decision::HaltReason;
use plan::flannel_to_calico::node::{LabelDrift, Station, drift};
use plan::flannel_to_calico::settings::Strategy;
use serde_json::json;

use super::super::node_objects;
use super::super::view::{Snapshot, network_label};
use crate::context::Context;
use crate::evict::Refusals;
use crate::tell::Tone;
use crate::write::{self, WriteError};

/// Writes each label as it has to be where its node stands. Returns by node what somebody else had written.
pub(super) async fn restore(
    context: &Context,
    migration: &Migration,
    snapshot: &Snapshot,
    strategy: Strategy,
) -> Result<BTreeMap<String, String>, WriteError> {
    let mut restored = BTreeMap::new();
    for (name, node) in &snapshot.nodes {
        if let Some(drift) = drift_of(migration, snapshot, strategy, name, node) {
            restored.insert(name.clone(), write(context, node, &drift).await?);
        }
    }
    Ok(restored)
}

fn drift_of(
    migration: &Migration,
    snapshot: &Snapshot,
    strategy: Strategy,
    name: &str,
    node: &Node,
) -> Option<LabelDrift> {
    let label = network_label(node);
    let spec = &snapshot.node_migrations.get(name)?.spec;
    match (spec.admitted, spec.finished_at) {
        (true, Some(_)) => drift(&label, Station::Done),
        (true, None) => {
            let refusals = Refusals::new();
            let view = snapshot.view(name, &migration.name_any(), &refusals, Vec::new())?;
            drift(&label, Station::Working(&view, strategy))
        }
        // One that joined has no label yet.
        (false, _) if !node_objects::is_prepared(node, migration) => None,
        (false, _) => drift(&label, Station::Waiting),
    }
}

async fn write(context: &Context, node: &Node, drift: &LabelDrift) -> Result<String, WriteError> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let label = names::NODE_NETWORK_LABEL;
    let change = json!({ "metadata": { "labels": { label: drift.needed } } });
    write::patch(&nodes, node, "restoring the label of", change).await?;
    let name = node.name_any();
    let what = format!("Node {name}: label {label} {drift}; it is set again");
    let note = format!("{what}. To take the node back use `kubectl replumb rollback {name}`");
    context
        .teller
        .node(node, Tone::Warning, HaltReason::Drift.as_str(), &note)
        .await;
    Ok(what)
}
