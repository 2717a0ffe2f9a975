//! The demo's user: takes the manual steps that the migration requests. Restarts the API server with another flag, and writes the
//! name servers' new address into every kubelet.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Request;
use super::sample::same_offset;
use crate::cluster::Cluster;
use crate::cluster::control_plane::{DNS_SERVICE, KUBERNETES_SERVICE, SERVICE_NETWORK};
use crate::demo::report::ManualStep;
use crate::demo::scene::Scene;
use crate::demo::status;

/// The reasons in `status.reason` while the migration waits for a manual step.
const API_SERVERS: &str = "ApiServers";
const CONFIGURATION: &str = "ConfigurationFollowUp";
/// Time between two reads of the Migration.
const PACE: Duration = Duration::from_millis(500);
const NODES_LIMIT: Duration = Duration::from_mins(2);

/// Takes each requested step once, until dropped, and adds it to `all`.
pub async fn play(scene: &Scene<'_>, request: &Request, all: &mut Vec<ManualStep>) -> Result<Infallible> {
    loop {
        tokio::time::sleep(PACE).await;
        // The API server may be unavailable for a moment.
        let Ok(status) = status(scene.cluster).await else {
            continue;
        };
        let requested = status["message"].as_str().unwrap_or_default().to_owned();
        if all.iter().any(|step| step.requested == requested) {
            continue;
        }
        let is_rollback = status["serviceCidr"]["stage"]["direction"] == "Rollback";
        let range = if is_rollback {
            SERVICE_NETWORK.to_owned()
        } else {
            request.to.to_string()
        };
        let first = same_offset(KUBERNETES_SERVICE, request.to.network());
        let done = match status["reason"].as_str() {
            // A message without the flag requests nothing yet.
            Some(API_SERVERS) if requested.contains("--service-cluster-ip-range=") => {
                scene.say(format_args!("manual step requested: {requested}"));
                scene
                    .cluster
                    .restart_with_services(&range, &[KUBERNETES_SERVICE, first])
                    .await?;
                format!(
                    "started the API server and the controller manager with --service-cluster-ip-range={range}"
                )
            }
            Some(CONFIGURATION) if requested.contains("clusterDNS") => {
                scene.say(format_args!("manual step requested: {requested}"));
                let address = if is_rollback {
                    DNS_SERVICE
                } else {
                    same_offset(DNS_SERVICE, request.to.network())
                };
                set_cluster_dns(scene.cluster, address).await?;
                format!("set clusterDNS {address} in every kubelet")
            }
            _ => continue,
        };
        scene.say(format_args!("manual step taken: {done}"));
        all.push(ManualStep { requested, done });
    }
}

/// Sets this name server in the configuration of every kubelet: new pods receive it.
async fn set_cluster_dns(cluster: &Cluster, address: Ipv4Addr) -> Result<()> {
    let nodes = cluster.node_names().await;
    for node in &nodes {
        let file = cluster.disk(node).join("etc/kubernetes/kubelet.json");
        let what = || format!("the kubelet's configuration {}", file.display());
        let text = std::fs::read_to_string(&file).with_context(what)?;
        let mut configuration: Value = serde_json::from_str(&text).with_context(what)?;
        if configuration["clusterDNS"] == json!([address]) {
            continue;
        }
        configuration["clusterDNS"] = json!([address]);
        std::fs::write(&file, serde_json::to_string_pretty(&configuration)?).with_context(what)?;
        cluster.kill_service(node, "kubelet").await?;
    }
    cluster.api().nodes_ready(&nodes, NODES_LIMIT).await
}
