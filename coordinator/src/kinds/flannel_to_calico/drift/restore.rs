//! Restores announced changes by other writers.

use std::collections::BTreeSet;
use std::time::Instant;

use ::flannel_to_calico::api::LabelRecord;
use ::flannel_to_calico::api::OrEmpty as _;
use api::{NodeMigration, names};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{Fix, Found, selector};
use crate::calico;
use crate::context::Context;
use crate::drift::Restores;
use crate::failure::{Cause, Failure as _};
use crate::lenient_requests;
use crate::read_error::ReadError;
use crate::write::{self, WriteError};

/// Most writes of one pass; further writes are left to the next pass.
const WRITES_AT_ONCE: usize = 100;

/// Result of the restore.
#[derive(Debug, Default)]
pub struct Restored {
    /// Nodes whose label was changed: no other decision about them is made in this pass.
    pub nodes: BTreeSet<String>,
    /// Refusals of the API server, as messages.
    pub refused: Vec<String>,
}

/// Restores all changes. A refusal of the API server is reported, and does not block the others.
pub async fn restore(
    context: &Context,
    restores: &mut Restores,
    found: &[Found],
) -> Result<Restored, WriteError> {
    let mut restored = Restored::default();
    let mut written = 0;
    for found in found {
        if let Fix::Label { node, .. } = &found.fix {
            restored.nodes.insert(node.name_any());
        }
        let Some(object) = object(&found.fix) else {
            continue;
        };
        if written >= WRITES_AT_ONCE || !restores.allows(&object, Instant::now()) {
            continue;
        }
        written += 1;
        let Err(error) = restore_one(context, &found.fix).await else {
            continue;
        };
        match error.root_cause() {
            // The object changed again: the next read finds that.
            Cause::Changed => {}
            Cause::Api(kube::Error::Api(_)) => {
                let words = runtime::error::chain(&error);
                restored
                    .refused
                    .push(format!("{}; restoring it failed: {words}", found.what));
            }
            Cause::Api(_) | Cause::Etcd(_) => return Err(error),
        }
    }
    Ok(restored)
}

/// The object to be written; `None` if that is left to its owner.
fn object(fix: &Fix) -> Option<String> {
    match fix {
        Fix::Label { node, .. } => Some(write::describe(node.as_ref())),
        Fix::Selector { set, .. } => Some(write::describe(set.as_ref())),
        Fix::Create { kind, object } => Some(format!("{} {}", kind.0, object["metadata"]["name"])),
        Fix::Patch { kind, found, .. } => Some(format!("{} {}", kind.0, found.name_any())),
        Fix::ByItsOwner => None,
    }
}

async fn restore_one(context: &Context, fix: &Fix) -> Result<(), WriteError> {
    match fix {
        Fix::Label { node, record, needed } => restore_label(context, node, record, needed).await,
        Fix::Selector { set, network } => {
            let namespace = set.namespace().unwrap_or_default();
            let sets: Api<DaemonSet> = Api::namespaced(context.client.clone(), &namespace);
            let attempt = "restoring the node selector of";
            write::patch(&sets, set.as_ref(), attempt, &selector(network))
                .await
                .map(|_| ())
        }
        Fix::Create { kind, object } => match kind.create(&context.client, object).await? {
            calico::Created::Now | calico::Created::Before => Ok(()),
        },
        Fix::Patch { kind, found, change } => kind.patch_spec(&context.client, found, change).await,
        Fix::ByItsOwner => Ok(()),
    }
}

/// Two caches may have different ages: the record of the label is read again before the Node is written.
async fn restore_label(
    context: &Context,
    node: &Node,
    record: &LabelRecord,
    needed: &str,
) -> Result<(), WriteError> {
    let name = node.name_any();
    let migrations: Api<NodeMigration> = Api::all(context.client.clone());
    let now = lenient_requests::get_opt(&migrations, &name)
        .await
        .map_err(|source| ReadError::of("reading", format!("NodeMigration {name}"), source))?;
    if now.is_none_or(|now| now.spec.flannel_to_calico.or_empty().label != *record) {
        return Ok(());
    }
    let nodes: Api<Node> = Api::all(context.client.clone());
    let change = json!({ "metadata": { "labels": { names::NODE_NETWORK_LABEL: needed } } });
    write::patch(&nodes, node, "restoring the label of", &change)
        .await
        .map(|_| ())
}
