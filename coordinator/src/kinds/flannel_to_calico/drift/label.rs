//! Network labels of Nodes, compared with the recorded ones.

use std::sync::Arc;

use ::flannel_to_calico::api::LabelRecord;
use ::flannel_to_calico::api::OrEmpty as _;
use api::NodeMigration;
use flannel_to_calico::node::{NetworkLabel, drift};
use k8s_openapi::api::core::v1::Node;

use super::super::view::network_label;
use super::{Fix, Found};
use crate::drafts::Drafts;
use crate::snapshot::Snapshot;

/// Most writes of one pass; further writes are left to the next pass.
const WRITES_AT_ONCE: usize = 100;

/// Records the label of each node without a record: the node was labelled during the preparation, or by a tool whose
/// unfinished migration is taken over.
pub fn record(snapshot: &Snapshot, drafts: &mut Drafts) {
    let unrecorded = snapshot
        .node_migrations
        .iter()
        .filter(|(_, object)| object.spec.flannel_to_calico.or_empty().label.is_empty());
    for (name, object) in unrecorded.take(WRITES_AT_ONCE) {
        let label = snapshot.nodes.get(name).map(|node| network_label(node));
        let written = match &label {
            Some(label @ (NetworkLabel::Flannel | NetworkLabel::Neither | NetworkLabel::Calico)) => {
                label.value()
            }
            Some(NetworkLabel::Missing | NetworkLabel::Other(_)) | None => continue,
        };
        drafts.change(object, |spec| {
            spec.flannel_to_calico.get_or_insert_default().label = LabelRecord {
                current: written.map(str::to_owned),
                pending: None,
            };
        });
    }
}

/// Labels that differ from the record.
pub(super) fn observe(snapshot: &Snapshot) -> Vec<Found> {
    let nodes = snapshot.nodes.iter();
    nodes
        .filter_map(|(name, node)| of_node(node, snapshot.node_migrations.get(name)?))
        .collect()
}

fn of_node(node: &Arc<Node>, object: &NodeMigration) -> Option<Found> {
    let record = &object.spec.flannel_to_calico.or_empty().label;
    let drift = drift(
        &network_label(node),
        record.current.as_deref(),
        record.pending.as_deref(),
    )?;
    let name = &object.spec.node_name;
    let hint = match object.spec.finished_at {
        Some(_) => format!(" (to roll the node back, run `kubectl replumb rollback {name}`)"),
        None => String::new(),
    };
    let label = api::names::NODE_NETWORK_LABEL;
    Some(Found {
        what: format!("Node {name}: label {label} {drift}{hint}"),
        fix: Fix::Label {
            node: Arc::clone(node),
            record: record.clone(),
            needed: drift.needed,
        },
    })
}
