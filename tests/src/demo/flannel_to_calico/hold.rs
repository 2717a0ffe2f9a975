//! The mixed state for a while: pods come, go and are scaled on every node, while those from before live on.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::cluster::{Cluster, Images};
use crate::demo::ipam;

const STEP: Duration = Duration::from_mins(3);
const NAMESPACE: &str = "sample";

/// What was done meanwhile.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// How long it was.
    pub seconds: f64,
    /// How often all of it was done. After each time blocks, handles and pods agreed.
    pub rounds: u32,
    /// Pods that were created by name, one on each node a round.
    pub created: usize,
    /// Pods from before and since that were deleted, by name or by scaling.
    pub deleted: usize,
}

/// For at least this long. A round that has begun is ended.
pub async fn hold(cluster: &Cluster, time: Duration) -> Result<Held> {
    let started = Instant::now();
    let nodes = cluster.node_names().await;
    let mut held = Held::default();
    while started.elapsed() < time {
        held.rounds += 1;
        round(cluster, &nodes, &mut held)
            .await
            .with_context(|| format!("round {} in the mixed state", held.rounds))?;
    }
    held.seconds = started.elapsed().as_secs_f64();
    Ok(held)
}

async fn round(cluster: &Cluster, nodes: &[String], held: &mut Held) -> Result<()> {
    let number = held.rounds;
    let kubectl = async |arguments: &[&str]| -> Result<String> {
        let arguments = [&["-n", NAMESPACE], arguments].concat();
        cluster.api().kubectl(&arguments).await
    };
    // Up by three and down again: whoever the ReplicaSet takes, of either network.
    kubectl(&["scale", "deployment/web", "--replicas=6"]).await?;
    for node in nodes {
        cluster.api().apply(&bare(node, number)).await?;
        held.created += 1;
    }
    cluster
        .api()
        .rolled_out("deployment/web", NAMESPACE, STEP)
        .await?;
    kubectl(&[
        "wait",
        "pod",
        "-l",
        "app=churn",
        "--for=condition=Ready",
        "--timeout=180s",
    ])
    .await?;
    ipam::agrees(cluster).await?;
    kubectl(&["scale", "deployment/web", "--replicas=3"]).await?;
    held.deleted += 3;
    // One of a DaemonSet on another node each time, and one of a StatefulSet: it comes back under its name.
    let place = usize::try_from(number)? % nodes.len();
    let node = nodes.get(place).context("there is no node")?;
    let selector = format!("spec.nodeName={node}");
    kubectl(&[
        "delete",
        "pod",
        "-l",
        "app=everywhere",
        "--field-selector",
        &selector,
        "--wait",
    ])
    .await?;
    kubectl(&["delete", "pod", &format!("store-{}", number % 2), "--wait"]).await?;
    let said = kubectl(&["delete", "pod", "-l", "app=churn", "--wait"]).await?;
    let gone = said.lines().filter(|line| line.contains("deleted")).count();
    ensure!(
        gone == nodes.len(),
        "{gone} of {} pods were deleted: {said}",
        nodes.len()
    );
    held.deleted += 2 + gone;
    for workload in ["deployment/web", "statefulset/store", "daemonset/everywhere"] {
        cluster.api().rolled_out(workload, NAMESPACE, STEP).await?;
    }
    ipam::agrees(cluster).await
}

fn bare(node: &str, number: u32) -> String {
    let busybox = Images::default().busybox;
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{ name: churn-{node}-{number}, namespace: {NAMESPACE}, labels: {{ app: churn }} }}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  containers:
    - {{ name: churn, image: '{busybox}', imagePullPolicy: Never, command: [sh, -c, 'sleep 86400'] }}
"
    )
}
