//! In place: nobody is moved and nothing is lost; then pods of both networks live side by side, until the last of
//! flannel's has gone.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Tally;
use super::fair::is_completed;
use super::look::Looker;
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::flannel_to_calico::{Run, Wanted};
use crate::demo::host::Host;
use crate::demo::watch::Watch;
use crate::demo::{Tools, ipam};

const STEP: Duration = Duration::from_mins(3);
/// One probe of so many may be lost: single packets go missing on a busy machine without any migration, and what is
/// pulled down under a path costs hundreds (docs/limits.md).
const LOST_OF: u64 = 10_000;
/// How long the mixed state is held; `cargo lab demo --hold` does it for hours.
const HELD: Duration = Duration::from_secs(20);
/// Port of the host that a pod of flannel's has, and its successor of Calico's takes.
const HOST_PORT: &str = "18080";
/// The node that this pod is on.
const NODE: &str = "lab-worker-1";

/// Three nodes, with the traffic all the way.
pub async fn in_place(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let Some(mut run) = tally.count("in place: begin", Run::begin(cluster, tools).await) else {
        return tally;
    };
    tally.count(
        "in place: a pod of flannel's has a port of its host",
        host_port(cluster, "before").await,
    );
    let wanted = Wanted {
        strategy: api::migration::Strategy::InPlace,
        ..Wanted::default()
    };
    let Some(watch) = tally.count("in place: every node is on Calico", run.migrate(&wanted).await) else {
        return tally;
    };
    tally.count(
        "in place: Calico's IPAM knows every pod, and nobody else",
        ipam::agrees(cluster).await,
    );
    tally.count(
        "in place: the port of the host answers still",
        answers(cluster).await,
    );
    tally.count(
        "in place: held for a while with pods that come and go, and the IPAM agrees each time",
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
        "in place: pods of flannel's are replaced by Calico's, a StatefulSet's and one with a port of its host",
        mixed.await,
    );
    tally.count(
        "in place: Calico's IPAM agrees with the pods of both",
        ipam::agrees(cluster).await,
    );
    // Replaced by us above, one after the other: what is counted is told apart from what was moved.
    let replaced = ["pods were created again, 0 containers restarted"];
    tally.count(
        "in place: traffic goes on, flannel's tunnel and conflist are gone",
        nobody_was_harmed(&run, watch, &replaced).await,
    );
    tally.count(
        "in place: when the last pod from before has gone, it is completed",
        last(cluster).await,
    );
    tally.count(
        "in place: nothing of flannel is left on any node",
        is_clean(cluster).await,
    );
    tally.count(
        "in place: no address is left behind in Calico's IPAM",
        ipam::agrees(cluster).await,
    );
    tally
}

/// How it went, once it is over: hardly a probe was lost, and there is no problem but those that these words tell.
pub(super) async fn nobody_was_harmed(run: &Run<'_>, watch: Watch, forgiven: &[&str]) -> Result<()> {
    let report = run.report(watch).await?;
    println!("{}", report.text());
    let (sent, lost) = (report.probes.all.sent, report.probes.all.lost);
    ensure!(sent > 20_000, "{sent} probes were sent");
    ensure!(
        lost.saturating_mul(LOST_OF) <= sent,
        "{lost} of {sent} probes were lost, allowed is one of {LOST_OF}"
    );
    // Judged just above, by a number.
    let is_forgiven = |problem: &str| {
        problem.contains("probes were lost") || forgiven.iter().any(|part| problem.contains(part))
    };
    let others: Vec<&String> = report
        .problems
        .iter()
        .filter(|problem| !is_forgiven(problem))
        .collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

/// Replaces everybody from before, and waits for the end.
async fn last(cluster: &Cluster) -> Result<()> {
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
    Looker::new(cluster)
        .until_migration("the Migration is completed", STEP, is_completed)
        .await
        .map(|_| ())
}

/// A web server on the pod network with a port of its host; answers when it is there.
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

/// Whether the port of the node answers from another node.
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
    // bash alone: a client of its own is not on every machine.
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

/// Replaces every pod of a workload, as its owner would, and waits.
async fn replace(cluster: &Cluster, workload: &str, namespace: &str) -> Result<()> {
    cluster
        .api()
        .kubectl(&["-n", namespace, "rollout", "restart", workload])
        .await?;
    cluster.api().rolled_out(workload, namespace, STEP).await
}

/// By other tools than ours.
async fn is_clean(cluster: &Cluster) -> Result<()> {
    for node in cluster.node_names().await {
        let left = Host::observe(cluster, &node).await?.flannel();
        ensure!(left.is_empty(), "node {node}: {}", left.join(", "));
        let routes = cluster
            .run_in_node(&node, &["ip", "route", "show", "proto", "82"])
            .await?;
        ensure!(routes.trim().is_empty(), "node {node}: routes of ours: {routes}");
    }
    Ok(())
}
