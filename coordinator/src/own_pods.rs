//! Pods of the coordinator, for probes and traffic: names, manifests, owners and deletion.

use api::{Migration, names};
use data_encoding::HEXLOWER;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::context::Context;
use crate::write::{self, WriteError};

/// The node in the name of such a pod: a hash, since a node's name may be longer than a label or a pod's name.
pub fn short(node: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(node.as_bytes())[..5])
}

/// Whether this pod is a probe pod or a traffic pod of the coordinator.
pub fn is_own(pod: &Pod, namespace: &str) -> bool {
    let component = pod.labels().get(names::COMPONENT_LABEL).map(String::as_str);
    pod.namespace().as_deref() == Some(namespace)
        && [Some(names::TRAFFIC_COMPONENT), Some(names::PROBE_COMPONENT)].contains(&component)
}

/// Creates a pod from its manifest; `object` names it in errors.
pub async fn create(context: &Context, object: &str, manifest: Value) -> Result<(), WriteError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &context.namespace);
    let pod: Pod = serde_json::from_value(manifest)
        .map_err(|source| WriteError::of("building", object, kube::Error::SerdeError(source)))?;
    write::create(&pods, object, &pod).await
}

/// Deletes this pod of the coordinator, with the grace period of its spec. A pod that cannot be deleted does not block
/// others.
pub async fn delete(context: &Context, pod: &Pod) -> Result<(), WriteError> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &context.namespace);
    let deletion = write::delete(&pods, pod, None);
    context.obstacles.attempt(&write::describe(pod), deletion).await?;
    Ok(())
}

/// An owner reference to the Migration, so that the object is deleted with it.
pub fn owner(migration: &Migration) -> Value {
    json!({
        "apiVersion": format!("{}/{}", names::GROUP, names::VERSION),
        "kind": "Migration",
        "name": migration.name_any(),
        "uid": migration.uid().unwrap_or_default(),
        "controller": true,
        "blockOwnerDeletion": false,
    })
}
