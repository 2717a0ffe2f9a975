//! The trap of the controller manager, on the real one: told of the new range too early it ends over the Nodes' podCIDRs; in
//! the order in which replumb asks for it, it lives and works.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Tally;
use crate::cluster::Cluster;
use crate::cluster::control_plane::{CONTROLLER_MANAGER, NodeRanges};
use crate::cluster::state::CONTROL_PLANE;
use crate::cluster::wait::{Observation, until};
use crate::machine::ServiceStatus;

/// From its start to its end over a Node, and to a pod of a Deployment that is scaled.
const LIMIT: Duration = Duration::from_mins(2);
/// What it says at its end.
const LAST_WORDS: &str = "failed to mark cidr";
/// A Deployment of the sample's.
const DEPLOYMENT: [&str; 3] = ["-n", "sample", "deployment/web"];

/// The cases; the Nodes' podCIDRs are in `old`, the pods are in `new`. At the end it is told what it was told before.
pub async fn controller_manager(cluster: &Cluster, old: &str, new: &str) -> Tally {
    let mut tally = Tally::default();
    let told = |allocate: bool, cluster: &str| NodeRanges {
        allocate,
        cluster: cluster.to_owned(),
    };
    tally.count(
        "controller-manager: told of the new range too early, it ends at each start",
        ends(cluster, &told(true, new)).await,
    );
    tally.count(
        "controller-manager: allocates no more, then is told of the new range: it works and is never started again",
        async {
            lives(cluster, Some(&told(false, old))).await?;
            lives(cluster, Some(&told(false, new))).await
        }
        .await,
    );
    tally.count(
        "controller-manager: as it was before, it works",
        lives(cluster, None).await,
    );
    tally
}

async fn ends(cluster: &Cluster, ranges: &NodeRanges) -> Result<()> {
    let before = status(cluster).await?.restarts;
    cluster.restart_controller_manager(Some(ranges)).await?;
    let logs = cluster.directory().logs();
    until("it has ended twice", LIMIT, &logs, async || {
        let status = status(cluster).await?;
        let times = status.restarts - before;
        Ok(if times >= 2 {
            Observation::Done(())
        } else {
            Observation::NotYet(format!("{times} times; its end was {:?}", status.last_exit))
        })
    })
    .await?;
    let file = logs.join(CONTROL_PLANE).join(format!("{CONTROLLER_MANAGER}.log"));
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let told = format!("--cluster-cidr={}", ranges.cluster);
    let (_, since) = text
        .split_once(&told)
        .with_context(|| format!("{} does not say {told}", file.display()))?;
    ensure!(
        since.contains(LAST_WORDS),
        "it has ended, and {LAST_WORDS:?} is not in {} after {told}",
        file.display()
    );
    Ok(())
}

/// Starts it, lets it make a pod and take it away, and sees that it is the same process all the time.
async fn lives(cluster: &Cluster, ranges: Option<&NodeRanges>) -> Result<()> {
    cluster.restart_controller_manager(ranges).await?;
    let began = status(cluster).await?;
    let usual = replicas(cluster).await?;
    for wanted in [usual + 1, usual] {
        let number = format!("--replicas={wanted}");
        cluster
            .api()
            .kubectl(&[&["scale", &number], DEPLOYMENT.as_slice()].concat())
            .await?;
        let logs = cluster.directory().logs();
        until("a Deployment is scaled", LIMIT, &logs, async || {
            let text = get(cluster).await?;
            let ready = text["status"]["readyReplicas"].as_u64().unwrap_or_default();
            let seen = text["status"]["observedGeneration"] == text["metadata"]["generation"];
            Ok(if seen && ready == wanted {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("{ready} of {wanted} pods are Ready"))
            })
        })
        .await
        .with_context(|| format!("the controller manager, told {ranges:?}"))?;
    }
    let now = status(cluster).await?;
    ensure!(
        now.pid == began.pid && now.restarts == began.restarts,
        "it was started again meanwhile: {began:?}, {now:?}"
    );
    Ok(())
}

/// Its process.
pub async fn status(cluster: &Cluster) -> Result<ServiceStatus> {
    cluster.control_plane_service(CONTROLLER_MANAGER).await
}

async fn get(cluster: &Cluster) -> Result<Value> {
    let text = cluster
        .api()
        .kubectl(&[&["get", "-o", "json"], DEPLOYMENT.as_slice()].concat())
        .await?;
    serde_json::from_str(&text).context("parse the Deployment")
}

async fn replicas(cluster: &Cluster) -> Result<u64> {
    get(cluster).await?["spec"]["replicas"]
        .as_u64()
        .context("the Deployment has no number of replicas")
}
