//! Holds the mixed state for a while: pods are created, deleted and scaled on every node, while pods from before continue to run.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cluster::{Cluster, Images};
use crate::demo::ipam;

const LIMIT: Duration = Duration::from_mins(3);
const NAMESPACE: &str = "sample";

/// Changes that were made while the mixed state was held.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// Duration.
    pub seconds: f64,
    /// Number of rounds. After each round blocks, handles and pods agreed.
    pub rounds: u32,
    /// Pods that were created by name, one on each node in each round.
    pub created: usize,
    /// Pods, old and new, that were deleted by name or by scaling.
    pub deleted: usize,
}

/// Holds the mixed state for at least this time. A round that has begun is completed.
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
    // Three more replicas, and three fewer later: the ReplicaSet chooses pods of either network.
    kubectl(&["scale", "deployment/web", "--replicas=6"]).await?;
    for node in nodes {
        cluster.api().apply(&bare_pod(node, number)).await?;
        held.created += 1;
    }
    cluster
        .api()
        .rolled_out("deployment/web", NAMESPACE, LIMIT)
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
    // Delete a pod of the DaemonSet, on another node in each round, and a pod of the StatefulSet, which is recreated under its
    // name.
    let index = usize::try_from(number)? % nodes.len();
    let node = nodes.get(index).context("the cluster has no node")?;
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
    let output = kubectl(&["delete", "pod", "-l", "app=churn", "--wait"]).await?;
    let deleted = output.lines().filter(|line| line.contains("deleted")).count();
    ensure!(
        deleted == nodes.len(),
        "deleted pods with app=churn: found {deleted}, needed {}: {output}",
        nodes.len()
    );
    held.deleted += 2 + deleted;
    for workload in ["deployment/web", "statefulset/store", "daemonset/everywhere"] {
        cluster.api().rolled_out(workload, NAMESPACE, LIMIT).await?;
    }
    ipam::agrees(cluster).await
}

fn bare_pod(node: &str, number: u32) -> String {
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
