//! The Node condition for the network.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tracing::info;

use super::environment::Environment;
use crate::datastore;

/// Reports that the node has a network, or that it is shutting down.
pub async fn set(environment: &Environment, up: bool) -> Result<()> {
    if environment.backend() == "none" {
        return Ok(());
    }
    let name = environment
        .get("CALICO_K8S_NODE_REF")
        .map_or_else(|| environment.node_name(), |it| Ok(it.into()))?;
    let (status, reason, message) = if up {
        ("False", "CalicoIsUp", "Calico is running on this node")
    } else {
        ("True", "CalicoIsDown", "Calico is shutting down on this node")
    };
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let patch = json!({"status": {"conditions": [{
        "type": "NetworkUnavailable", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": now, "lastHeartbeatTime": now
    }]}});
    let nodes: Api<Node> = Api::all(datastore::client(environment.kubeconfig().as_deref()).await?);
    nodes
        .patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .with_context(|| format!("set the condition NetworkUnavailable of Node {name} to {status}"))?;
    info!("set NetworkUnavailable to {status}");
    Ok(())
}
