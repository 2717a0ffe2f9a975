//! The demo's operator: restarts the API server with another flag when the migration asks for it, and writes the name servers' new
//! address into every kubelet.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::sample::at_the_same_place;
use super::{Wanted, status};
use crate::cluster::Cluster;
use crate::cluster::control_plane::{DNS_SERVICE, KUBERNETES_SERVICE, SERVICE_NETWORK};
use crate::demo::scene::Scene;

/// The Migration's words for it.
const API_SERVERS: &str = "ApiServers";
const CONFIGURATION: &str = "ConfigurationFollowUp";
/// Between two looks at the Migration.
const PACE: Duration = Duration::from_millis(500);
const NODES_LIMIT: Duration = Duration::from_mins(2);

/// One thing that was asked for and done.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowUp {
    /// What the Migration said.
    pub asked: String,
    /// What the operator did.
    pub done: String,
}

/// Does what the migration asks for, as often as it asks, until somebody drops this. What was done is added to `all`.
pub async fn play(scene: &Scene<'_>, wanted: &Wanted, all: &mut Vec<FollowUp>) -> Result<Infallible> {
    loop {
        tokio::time::sleep(PACE).await;
        // The API server may be away for a moment.
        let Ok(status) = status(scene.cluster).await else {
            continue;
        };
        let asked = status["message"].as_str().unwrap_or_default().to_owned();
        if all.iter().any(|follow_up| follow_up.asked == asked) {
            continue;
        }
        let goes_back = status["serviceCidr"]["stage"]["direction"] == "Rollback";
        let range = if goes_back {
            SERVICE_NETWORK.to_owned()
        } else {
            wanted.to.to_string()
        };
        let first = at_the_same_place(KUBERNETES_SERVICE, wanted.to.network());
        let done = match status["reason"].as_str() {
            // One that is on its way has said nothing yet.
            Some(API_SERVERS) if asked.contains("--service-cluster-ip-range=") => {
                scene.say(format_args!("the migration asks a person: {asked}"));
                scene
                    .cluster
                    .restart_with_services(&range, &[KUBERNETES_SERVICE, first])
                    .await?;
                format!(
                    "the API server and the controller manager run with --service-cluster-ip-range={range}"
                )
            }
            Some(CONFIGURATION) if asked.contains("clusterDNS") => {
                scene.say(format_args!("the migration asks a person: {asked}"));
                let address = if goes_back {
                    DNS_SERVICE
                } else {
                    at_the_same_place(DNS_SERVICE, wanted.to.network())
                };
                cluster_dns(scene.cluster, address).await?;
                format!("every kubelet runs with clusterDNS {address}")
            }
            _ => continue,
        };
        scene.say(format_args!("the person: {done}"));
        all.push(FollowUp { asked, done });
    }
}

/// Lets every kubelet tell new pods this name server.
async fn cluster_dns(cluster: &Cluster, address: Ipv4Addr) -> Result<()> {
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
