//! Makes the crashes.

use std::time::Duration;

use anyhow::{Context, Result};
use crash_point::Point;

use super::matrix::{Owner, Victim};
use super::point::AdminPort;
use crate::cluster::Cluster;
use crate::cluster::processes::{AGENT, CALICO_NODE, COORDINATOR, FLANNELD};
use crate::cluster::state::CONTROL_PLANE;
use crate::end_to_end::MigrationReader;

/// Duration of an API server outage before the restart, which takes some seconds more. The length of the outage is the case.
const OUTAGE: Duration = Duration::from_secs(2);
const NODE_LIMIT: Duration = Duration::from_mins(3);

/// Makes the crash while the step's owner has stopped there, and releases the owner if it still runs.
///
/// `node` is the step's node; for a step of the whole cluster, any node. `port` belongs to the owner. `next` is the
/// coordinator's next stop: a restarted coordinator has lost it.
pub async fn strike(
    cluster: &Cluster,
    reader: &MigrationReader,
    (victim, owner): (Victim, Owner),
    node: &str,
    port: AdminPort,
    next: Option<&Point>,
) -> Result<()> {
    let (_, home, _) = reader.coordinator().await?;
    let coordinator = AdminPort::of_coordinator(cluster, &home).await?;
    let to = next.filter(|_| owner == Owner::Coordinator);
    let advance = async || port.run_to(cluster, to).await;
    match victim {
        Victim::Agent => {
            cluster.kill_process(node, &AGENT).await?;
            if owner == Owner::Coordinator {
                advance().await?;
            }
        }
        Victim::Coordinator => {
            cluster.kill_process(&home, &COORDINATOR).await?;
            if owner == Owner::Agent {
                advance().await?;
            }
            arm_again(cluster, coordinator, next).await?;
        }
        Victim::ApiServer => {
            cluster.stop_api_server().await?;
            advance().await?;
            tokio::time::sleep(OUTAGE).await;
            cluster.start_api_server().await?;
        }
        Victim::Node => {
            cluster.node_power_off(node).await?;
            if owner == Owner::Coordinator && home != node {
                advance().await?;
            }
            cluster.node_power_on(node).await?;
            if home == node {
                arm_again(cluster, coordinator, next).await?;
            }
            cluster
                .api()
                .nodes_ready(&[node.to_owned()], NODE_LIMIT)
                .await
                .with_context(|| format!("node {node} after its power came back"))?;
        }
        // The supervisor of these programs restarts them: the machine's process 1, or the kubelet.
        Victim::Etcd => {
            cluster.kill_service(CONTROL_PLANE, "etcd").await?;
            advance().await?;
        }
        Victim::Containerd => {
            cluster.kill_service(node, "containerd").await?;
            advance().await?;
        }
        Victim::Kubelet => {
            cluster.kill_service(node, "kubelet").await?;
            advance().await?;
        }
        Victim::CalicoNode => {
            cluster.kill_process(node, &CALICO_NODE).await?;
            advance().await?;
        }
        Victim::Flanneld => {
            cluster.kill_process(node, &FLANNELD).await?;
            advance().await?;
        }
    }
    Ok(())
}

/// A restarted coordinator does nothing before it leads again: there is time to arm it.
async fn arm_again(cluster: &Cluster, coordinator: AdminPort, next: Option<&Point>) -> Result<()> {
    match next {
        Some(next) => coordinator.run_to(cluster, Some(next)).await,
        None => Ok(()),
    }
}
