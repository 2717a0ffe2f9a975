//! The order of flags of the real controller manager: with the new range too early it exits because of the Nodes' podCIDRs; in
//! the order that replumb requests, it runs and works.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Tally;
use crate::cluster::Cluster;
use crate::cluster::control_plane::{CONTROLLER_MANAGER, NodeRanges};
use crate::cluster::state::CONTROL_PLANE;
use crate::cluster::wait::{Observation, until};
use crate::machine::ServiceStatus;

/// Longest time from its start until it exits because of a Node, or until a scaled Deployment has its pods.
const LIMIT: Duration = Duration::from_mins(2);
/// Fragment of its last log lines before that exit.
const EXIT_MESSAGE: &str = "failed to mark cidr";
/// A Deployment of the sample.
const DEPLOYMENT: [&str; 3] = ["-n", "sample", "deployment/web"];

/// The cases; the Nodes' podCIDRs are in `old`, the pods are in `new`. At the end it has its original flags.
pub async fn controller_manager(cluster: &Cluster, old: &str, new: &str) -> Tally {
    let mut tally = Tally::default();
    let ranges = |allocate: bool, cluster: &str| NodeRanges {
        allocate,
        cluster: cluster.to_owned(),
    };
    tally.count(
        "controller-manager: with the new range too early it exits at each start",
        verify_exits(cluster, &ranges(true, new)).await,
    );
    tally.count(
        "controller-manager: without allocation, and then with the new range, it works and never restarts",
        async {
            verify_runs(cluster, Some(&ranges(false, old))).await?;
            verify_runs(cluster, Some(&ranges(false, new))).await
        }
        .await,
    );
    tally.count(
        "controller-manager: with its original flags it works",
        verify_runs(cluster, None).await,
    );
    tally
}

async fn verify_exits(cluster: &Cluster, ranges: &NodeRanges) -> Result<()> {
    let before = status(cluster).await?.restarts;
    cluster.restart_controller_manager(Some(ranges)).await?;
    let logs = cluster.directory().logs();
    until(
        "the controller manager has exited twice",
        LIMIT,
        &logs,
        async || {
            let status = status(cluster).await?;
            let times = status.restarts - before;
            Ok(if times >= 2 {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("exits: {times}, the last one {:?}", status.last_exit))
            })
        },
    )
    .await?;
    let file = logs.join(CONTROL_PLANE).join(format!("{CONTROLLER_MANAGER}.log"));
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let flag = format!("--cluster-cidr={}", ranges.cluster);
    let (_, since) = text
        .split_once(&flag)
        .with_context(|| format!("{} does not contain {flag}", file.display()))?;
    ensure!(
        since.contains(EXIT_MESSAGE),
        "the controller manager has exited, but {} does not contain {EXIT_MESSAGE:?} after {flag}",
        file.display()
    );
    Ok(())
}

/// Starts it, scales a Deployment up and down, and checks that it is the same process all the time.
async fn verify_runs(cluster: &Cluster, ranges: Option<&NodeRanges>) -> Result<()> {
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
                Observation::NotYet(format!("Ready pods: {ready} of {wanted}"))
            })
        })
        .await
        .with_context(|| format!("the controller manager with {ranges:?}"))?;
    }
    let now = status(cluster).await?;
    ensure!(
        now.pid == began.pid && now.restarts == began.restarts,
        "the controller manager has restarted: {began:?}, {now:?}"
    );
    Ok(())
}

/// The status of its process.
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
