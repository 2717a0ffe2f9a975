//! The end of the traffic: the generators are told to end, and their last words are read off the nodes' disks.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use traffic::report::Report;

use crate::cluster::Cluster;
use crate::cluster::wait::{Look, until};

const NAMESPACE: &str = "traffic";
const LIMIT: Duration = Duration::from_mins(1);
/// Where a prober writes its report on its node's disk.
const FOLDER: &str = "var/log/traffic";

const PROBERS: &str = "app in (traffic, traffic-host)";

/// Ends every prober, forgets what it has seen, and waits until others run: what follows is counted anew.
pub async fn begin_anew(cluster: &Cluster) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let probers = ListParams::default().labels(PROBERS);
    let ended: Vec<String> = pods
        .list(&probers)
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    cluster
        .api()
        .kubectl(&["-n", NAMESPACE, "delete", "pods", "--selector", PROBERS, "--wait"])
        .await
        .context("end the probers")?;
    until(
        "other probers run",
        LIMIT,
        &cluster.directory().logs(),
        async || {
            let now = pods.list(&probers).await?.items;
            let running = now
                .iter()
                .filter(|pod| !ended.contains(&pod.name_any()))
                .filter(|pod| {
                    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
                })
                .count();
            Ok(if running == ended.len() {
                Look::Done(())
            } else {
                Look::NotYet(format!("{running} of {}", ended.len()))
            })
        },
    )
    .await?;
    for name in &ended {
        take(cluster, name).await?;
    }
    Ok(())
}

/// Ends every prober and reads what all of them have seen, those included that were evicted on the way.
pub async fn end(cluster: &Cluster) -> Result<Vec<Report>> {
    cluster
        .api()
        .kubectl(&[
            "-n",
            NAMESPACE,
            "delete",
            "daemonset",
            "traffic",
            "traffic-host",
            "--cascade=foreground",
            "--wait=false",
        ])
        .await
        .context("end the traffic")?;
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let probers = ListParams::default().labels(PROBERS);
    until(
        "the probers have ended",
        LIMIT,
        &cluster.directory().logs(),
        async || {
            let left = pods.list(&probers).await?.items.len();
            Ok(if left == 0 {
                Look::Done(())
            } else {
                Look::NotYet(format!("{left} still run"))
            })
        },
    )
    .await?;
    so_far(cluster).await
}

/// What all probers have seen, as far as they have written it: each does every second.
pub async fn so_far(cluster: &Cluster) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for node in cluster.node_names().await {
        reports.extend(Report::read_all(&cluster.disk(&node).join(FOLDER))?);
    }
    Ok(reports)
}

/// What the probers whose names begin so have seen; they have ended. Their reports are taken away: they are no part of what follows.
pub async fn take(cluster: &Cluster, name: &str) -> Result<Vec<Report>> {
    let mut taken = Vec::new();
    for node in cluster.node_names().await {
        let folder = cluster.disk(&node).join(FOLDER);
        for report in Report::read_all(&folder)? {
            if report.prober.starts_with(name) {
                let file = folder.join(format!("{}.json", report.prober));
                std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
                taken.push(report);
            }
        }
    }
    Ok(taken)
}
