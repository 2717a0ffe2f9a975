//! In place: no pod is moved and no probe is lost. Then pods of both networks run side by side, until the last pod of flannel is
//! deleted.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::fair::is_completed;
use super::migration_reader::MigrationReader;
use super::{Tally, bundle};
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::flannel_to_calico::report::Report;
use crate::demo::flannel_to_calico::{Request, Run, manifest};
use crate::demo::host::Host;
use crate::demo::watch::Watch;
use crate::demo::{Tools, ipam};

const STEP: Duration = Duration::from_mins(3);
/// One of this many probes may be lost: single packets are lost on a busy machine without any migration, while an interrupted
/// path loses hundreds (docs/limits.md).
const LOST_OF: u64 = 10_000;
/// Time for which the mixed state is held; `cargo lab demo --hold` holds it for hours.
const HELD: Duration = Duration::from_secs(20);
/// Host port of a pod of flannel, and then of its successor of Calico.
const HOST_PORT: &str = "18080";
/// The node of this pod.
const NODE: &str = "lab-worker-1";

async fn verify_rehearsal(run: &mut Run<'_>) -> Result<()> {
    let comparison = run.compare().await?.context("the migration was not rehearsed")?;
    ensure!(comparison.differences.is_empty(), "{:#?}", comparison.differences);
    Ok(())
}

/// Migrates three nodes, with traffic all the time.
pub async fn in_place(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let Some(mut run) = tally.count("in place: begin", Run::begin(cluster, tools).await) else {
        return tally;
    };
    tally.count(
        "in place: a pod of flannel has a host port",
        host_port(cluster, "before").await,
    );
    let request = Request {
        strategy: api::migration::Strategy::InPlace,
        spec: serde_json::json!({ "flannelToCalico": { "legacyPods": "Keep" } }),
        ..Request::default()
    };
    tally.count(
        "in place: a bundle without secrets is judged as the cluster, with the same plan",
        bundle::judged_offline(cluster, &run.scene.operator, &manifest(&request)).await,
    );
    tally.count(
        "in place: the migration is rehearsed",
        run.rehearse(&request).await,
    );
    let Some(watch) = tally.count("in place: every node is on Calico", run.migrate(&request).await) else {
        return tally;
    };
    tally.count(
        "in place: nodes, steps and pods as in the rehearsal",
        verify_rehearsal(&mut run).await,
    );
    tally.count(
        "in place: Calico's IPAM has exactly the existing pods",
        ipam::agrees(cluster).await,
    );
    tally.count("in place: the host port still answers", answers(cluster).await);
    tally.count(
        "in place: the mixed state is held, pods are created and deleted, and the IPAM agrees each time",
        run.hold(HELD).await,
    );
    let mixed = async {
        replace(cluster, "statefulset/store", "sample").await?;
        replace(cluster, "deployment/web", "sample").await?;
        cluster
            .api()
            .kubectl(&["-n", "sample", "delete", "pod", "port-before", "--wait"])
            .await?;
        host_port(cluster, "after").await
    };
    tally.count(
        "in place: pods of flannel are replaced by pods of Calico, in a StatefulSet and with a host port",
        mixed.await,
    );
    tally.count(
        "in place: Calico's IPAM agrees with the pods of both networks",
        ipam::agrees(cluster).await,
    );
    // The case itself has replaced pods: these count as created again, but no container restarted.
    let replaced = ["container restarts: 0"];
    tally.count(
        "in place: traffic has no interruption, and flannel's tunnel and conflist are removed",
        verify_no_disruption(&run, watch, &replaced).await,
    );
    tally.count(
        "in place: the Migration is completed after the last pod of flannel is deleted",
        replace_last_pods(cluster).await,
    );
    tally.count(
        "in place: nothing of flannel remains on any node",
        verify_no_flannel(cluster).await,
    );
    tally.count(
        "in place: Calico's IPAM has no leaked address",
        ipam::agrees(cluster).await,
    );
    tally
}

/// Makes the report, and checks that almost no probe was lost and that it has no fault except those that contain `allowed`.
pub(super) async fn verify_no_disruption(run: &Run<'_>, watch: Watch, allowed: &[&str]) -> Result<()> {
    let report = run.report(watch).await?;
    println!("{}", report.text());
    check_no_disruption(&report, allowed)
}

/// Checks that almost no probe was lost, and that the report has no fault except those that contain `allowed`.
pub(super) fn check_no_disruption(report: &Report, allowed: &[&str]) -> Result<()> {
    let (sent, lost) = (report.probes.all.sent, report.probes.all.lost);
    ensure!(sent > 20_000, "probes sent: found {sent}, needed more than 20000");
    ensure!(
        lost.saturating_mul(LOST_OF) <= sent,
        "lost probes: found {lost} of {sent}, needed at most one of {LOST_OF}"
    );
    // Lost probes are checked above, by their number.
    let is_allowed =
        |problem: &str| problem.contains("lost probes") || allowed.iter().any(|part| problem.contains(part));
    let others: Vec<&String> = report
        .problems
        .iter()
        .filter(|problem| !is_allowed(problem))
        .collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

/// Replaces every pod of flannel, and waits until the Migration is completed.
async fn replace_last_pods(cluster: &Cluster) -> Result<()> {
    for (workload, namespace) in [
        ("deployment/coredns", "kube-system"),
        ("deployment/echo", "traffic"),
        ("daemonset/everywhere", "sample"),
    ] {
        replace(cluster, workload, namespace).await?;
    }
    cluster
        .api()
        .kubectl(&["-n", "sample", "delete", "pod", "lonely", "--wait"])
        .await?;
    MigrationReader::new(cluster)
        .until_migration("the Migration is completed", STEP, is_completed)
        .await
        .map(|_| ())
}

/// Creates a web server on the pod network with a host port, and waits until it answers.
async fn host_port(cluster: &Cluster, name: &str) -> Result<()> {
    let image = cluster
        .api()
        .kubectl(&[
            "-n",
            "sample",
            "get",
            "deployment",
            "web",
            "-o",
            "jsonpath={.spec.template.spec.containers[0].image}",
        ])
        .await?;
    cluster
        .api()
        .apply(&format!(
            "
apiVersion: v1
kind: Pod
metadata: {{ name: port-{name}, namespace: sample }}
spec:
  nodeName: {NODE}
  terminationGracePeriodSeconds: 0
  containers:
    - name: web
      image: {image}
      command: [busybox, httpd, -f, -p, '80', -h, /]
      ports: [{{ containerPort: 80, hostPort: {HOST_PORT} }}]
"
        ))
        .await?;
    answers(cluster).await
}

/// Waits until the host port answers to another node.
async fn answers(cluster: &Cluster) -> Result<()> {
    let address = cluster
        .api()
        .kubectl(&[
            "get",
            "node",
            NODE,
            "-o",
            "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}",
        ])
        .await?;
    // Only bash: not every machine has an HTTP client.
    let ask = format!(
        "exec 3<>/dev/tcp/{address}/{HOST_PORT} && printf 'GET /etc/hostname HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3"
    );
    let what = format!("port {HOST_PORT} of {NODE} answers");
    until(&what, STEP, &cluster.directory().logs(), async || {
        let tried = cluster
            .run_in_node("lab-worker-2", &["timeout", "3", "bash", "-c", &ask])
            .await;
        Ok(match tried {
            Ok(_) => Observation::Done(()),
            Err(error) => Observation::NotYet(format!("{error:#}")),
        })
    })
    .await
}

/// Restarts a workload as its owner would, and waits until every pod is replaced.
async fn replace(cluster: &Cluster, workload: &str, namespace: &str) -> Result<()> {
    cluster
        .api()
        .kubectl(&["-n", namespace, "rollout", "restart", workload])
        .await?;
    cluster.api().rolled_out(workload, namespace, STEP).await
}

/// Checks with other tools than replumb that nothing of flannel remains.
async fn verify_no_flannel(cluster: &Cluster) -> Result<()> {
    for node in cluster.node_names().await {
        let remaining = Host::observe(cluster, &node).await?.flannel();
        ensure!(remaining.is_empty(), "node {node}: {}", remaining.join(", "));
        let routes = cluster
            .run_in_node(&node, &["ip", "route", "show", "proto", "82"])
            .await?;
        ensure!(
            routes.trim().is_empty(),
            "node {node}: routes of replumb: {routes}"
        );
    }
    Ok(())
}
