//! Operations that only Calico's objects in the Kubernetes API need.

use crash_point::Edge;
use kube::api::DynamicObject;
use kube::{Client, ResourceExt};
use serde_json::json;

use super::{BLOCK_AFFINITY, Kind};
use crate::write::WriteError;

/// The name of an object.
pub(super) fn name(read: &DynamicObject) -> String {
    read.name_any()
}

/// Deletes an object of the IPAM as Calico does: first marked as deleted, then deleted.
pub(super) async fn delete_marked(
    client: &Client,
    kind: Kind,
    read: &DynamicObject,
) -> Result<(), WriteError> {
    // A string in a BlockAffinity and a boolean in an IPAMBlock, as in Calico's types.
    let mark = if kind == BLOCK_AFFINITY {
        json!({ "deleted": "true" })
    } else {
        json!({ "deleted": true })
    };
    kind.patch_spec(client, read, &mark).await?;
    if kind != BLOCK_AFFINITY {
        crash_point::reach("BlockDeleted", Edge::Changed, None).await;
    }
    kind.delete(client, &read.name_any()).await
}
