//! Writing what is asked of one node.

use std::sync::Arc;

use api::NodeMigration;
use api::node_migration::NodeMigrationSpec;
use kube::Api;

use crate::context::Context;
use crate::write::{self, WriteError};

/// Writes what has changed of the spec, on the object as it was seen.
pub async fn write_spec(
    context: &Context,
    object: &Arc<NodeMigration>,
    spec: &NodeMigrationSpec,
) -> Result<(), WriteError> {
    let api: Api<NodeMigration> = Api::all(context.client.clone());
    match write::patch_spec(&api, object.as_ref(), &object.spec, spec).await {
        // Written by an earlier step of this very pass: the next pass decides on the new state.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
