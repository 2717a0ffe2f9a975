//! Ends the traffic generators, and reads their reports from the nodes' disks.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use traffic::report::Report;

use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};

const NAMESPACE: &str = "traffic";
const LIMIT: Duration = Duration::from_mins(1);
/// The folder on its node's disk into which a prober writes its report.
const FOLDER: &str = "var/log/traffic";

const PROBERS: &str = "app in (traffic, traffic-host, traffic-crowd)";

/// Replaces every prober and discards the reports: the counts start from zero.
pub async fn replace_probers(cluster: &Cluster) -> Result<()> {
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
        "the new probers run",
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
                Observation::Done(())
            } else {
                Observation::NotYet(format!("{running} of {} run", ended.len()))
            })
        },
    )
    .await?;
    for name in &ended {
        take(cluster, name).await?;
    }
    Ok(())
}

/// Ends every prober and reads all reports, those of evicted probers included.
pub async fn end(cluster: &Cluster) -> Result<Vec<Report>> {
    let delete = async |options: &[&str]| {
        let whole = [
            "-n",
            NAMESPACE,
            "delete",
            "daemonset",
            "--cascade=foreground",
            "--wait=false",
        ];
        let arguments = [&whole, options].concat();
        cluster.api().kubectl(&arguments).await.context("end the traffic")
    };
    delete(&["traffic", "traffic-host"]).await?;
    delete(&["traffic-crowd", "--ignore-not-found"]).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let probers = ListParams::default().labels(PROBERS);
    until(
        "the probers have ended",
        LIMIT,
        &cluster.directory().logs(),
        async || {
            let remaining = pods.list(&probers).await?.items.len();
            Ok(if remaining == 0 {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("probers that still run: {remaining}"))
            })
        },
    )
    .await?;
    so_far(cluster).await
}

/// The reports that all probers have written so far: each writes one every second.
pub async fn so_far(cluster: &Cluster) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for node in cluster.node_names().await {
        reports.extend(Report::read_all(&cluster.disk(&node).join(FOLDER))?);
    }
    Ok(reports)
}

/// Removes and returns the reports of the ended probers whose names start with this: they do not count later.
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
