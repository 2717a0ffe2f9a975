//! The writes: the label of the ConfigMap. Each step is idempotent.

use api::MigrationStatus;
use example::LABEL;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::json;

use crate::context::Context;
use crate::write::{self, WriteError, describe};

/// Sets or removes the label.
pub(super) async fn label(
    context: &Context,
    object: &ConfigMap,
    value: serde_json::Value,
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    let objects: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let change = json!({ "metadata": { "labels": { LABEL: value } } });
    write::patch_as_read(&objects, object, "labelling", change).await?;
    status.clear_reason(format!("label {LABEL} of {} is written", describe(object)));
    Ok(())
}
