//! What only Calico's objects in the Kubernetes API need.

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

/// As Calico deletes objects of its IPAM: they say that they are deleted, and then they are.
pub(super) async fn delete_marked(
    client: &Client,
    kind: Kind,
    read: &DynamicObject,
) -> Result<(), WriteError> {
    // A text in a claim, and a truth value in a block: so are Calico's own types.
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
