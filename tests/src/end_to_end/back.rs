//! There and back: a network that does not come up, an API server that is gone in mid-node, and then everything is taken back;
//! the traffic does not notice, and every host is as it was.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::migration::MigrationPhase;
use flannel_to_calico::phase::Phase;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use super::Tally;
use super::fair::start;
use super::in_place::nobody_was_harmed;
use super::look::Looker;
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::flannel_to_calico::{Run, Wanted};
use crate::demo::operator::Exit;
use crate::demo::{Tools, ipam};

const STEP: Duration = Duration::from_mins(3);
/// `rollout.stepTimeoutSeconds`: a busy machine starts calico-node within this.
const PATIENCE: u64 = 30;
/// After that time the old network has to be back within this: a look, the steps, and a write that nobody answers.
const BACK_WITHIN: Duration = Duration::from_secs(20);
/// An image that nobody has.
const NOWHERE: &str = "nowhere.invalid/calico:none";

/// Three nodes, with the traffic all the way.
pub async fn back(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let Some(run) = tally.count("back: begin", Run::begin(cluster, tools).await) else {
        return tally;
    };
    let look = Looker::new(cluster);
    let wanted = Wanted {
        strategy: api::migration::Strategy::InPlace,
        spec: serde_json::json!({ "rollout": { "stepTimeoutSeconds": PATIENCE } }),
        ..Wanted::default()
    };
    let began = async {
        let image = image(cluster).await?;
        set_image(cluster, NOWHERE).await?;
        Ok((image, start(&run, &wanted).await?))
    };
    let Some((image, watch)) = tally.count("back: a Calico that never starts", began.await) else {
        return tally;
    };
    let first = look.until_planned(STEP).await.map(|order| order[0].clone());
    let Some(first) = tally.count("back: the first node is known", first) else {
        return tally;
    };
    tally.count(
        "back: calico-node never starts, and its node is back on flannel by itself",
        falls_back(cluster, &look, &first).await,
    );
    tally.count(
        "back: the API server is gone as well, and the node is back on flannel by itself",
        falls_back_alone(cluster, &run, &look, &first).await,
    );
    let mended = async {
        set_image(cluster, &image).await?;
        run.scene
            .operator
            .expect_within(Exit::Done, &["resume", "--wait"], 3 * STEP)
            .await
            .map(|_| ())
    };
    tally.count("back: once it is mended, every node goes to Calico", mended.await);
    tally.count("back: new pods get Calico's addresses", late(cluster).await);
    tally.count("back: everything is taken back", run.scene.roll_back().await);
    let gone = async {
        is_old(cluster).await?;
        cluster
            .api()
            .kubectl(&[
                "-n",
                "sample",
                "delete",
                "deployment",
                "late",
                "--wait",
                "--cascade=foreground",
            ])
            .await?;
        nothing_of_calico(cluster).await
    };
    tally.count(
        "back: pods that had Calico's addresses have flannel's, and nothing is left in Calico's IPAM",
        gone.await,
    );
    tally.count(
        "back: nobody of flannel's was moved, and every host is as it was",
        nobody_was_harmed(&run, watch, &[]).await,
    );
    tally
}

async fn image(cluster: &Cluster) -> Result<String> {
    let path = "jsonpath={.spec.template.spec.containers[0].image}";
    cluster
        .api()
        .kubectl(&["-n", "kube-system", "get", "daemonset", "calico-node", "-o", path])
        .await
}

async fn set_image(cluster: &Cluster, image: &str) -> Result<()> {
    let container = format!("calico-node={image}");
    cluster
        .api()
        .kubectl(&[
            "-n",
            "kube-system",
            "set",
            "image",
            "daemonset/calico-node",
            &container,
        ])
        .await
        .map(|_| ())
}

/// The node is swapped, waits for its time, and goes back; the Migration halts and says so.
async fn falls_back(cluster: &Cluster, look: &Looker, node: &str) -> Result<()> {
    until_phase(cluster, look, node, Phase::Swapped).await?;
    let swapped = Instant::now();
    until_on_flannel(cluster, node, swapped).await?;
    is_halted(look, node).await
}

/// The same with the API server away: nobody tells the agent anything, and it can tell nobody.
async fn falls_back_alone(cluster: &Cluster, run: &Run<'_>, look: &Looker, node: &str) -> Result<()> {
    run.scene.operator.expect(Exit::Done, &["resume"]).await?;
    until_phase(cluster, look, node, Phase::Swapped).await?;
    cluster.stop_api_server().await?;
    let swapped = Instant::now();
    let back = until_on_flannel(cluster, node, swapped).await;
    cluster.start_api_server().await?;
    back?;
    is_halted(look, node).await
}

async fn until_phase(cluster: &Cluster, look: &Looker, node: &str, phase: Phase) -> Result<()> {
    until(
        &format!("node {node} is {}", phase.as_str()),
        STEP,
        &cluster.directory().logs(),
        async || {
            let found = look.proved(node).await?;
            Ok(if found == Some(phase) {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("it is {found:?}"))
            })
        },
    )
    .await
}

/// By the host's own word: nobody else may be there to ask.
async fn until_on_flannel(cluster: &Cluster, node: &str, since: Instant) -> Result<()> {
    let limit = Duration::from_secs(PATIENCE) + BACK_WITHIN;
    until(
        &format!("flannel's network is back on node {node}"),
        limit,
        &cluster.directory().logs(),
        async || {
            let script = "ip -o link show type vxlan | cut -d: -f2; ls /run/flannel";
            let said = cluster.run_in_node(node, &["sh", "-c", script]).await?;
            Ok(if said.contains("flannel.1") && said.contains("subnet.env") {
                Observation::Done(())
            } else {
                Observation::NotYet(said)
            })
        },
    )
    .await?;
    println!(
        "        it was back {:.1} s after the swap, allowed were {PATIENCE} s and {} s to do it",
        since.elapsed().as_secs_f64(),
        BACK_WITHIN.as_secs()
    );
    Ok(())
}

async fn is_halted(look: &Looker, node: &str) -> Result<()> {
    look.until_node(node, "back, and said so", STEP, |spec| {
        spec.automatic_rollback.is_some() && !spec.rolling_back && spec.returned_at.is_some()
    })
    .await?;
    look.until_migration("the Migration is halted by it", STEP, |migration| {
        migration.status.as_ref().is_some_and(|status| {
            status.phase == MigrationPhase::Halted
                && status.reason == "FellBack"
                && status.message.contains("on its own")
        })
    })
    .await
    .map(|_| ())
}

/// A workload that comes when every node is on Calico.
async fn late(cluster: &Cluster) -> Result<()> {
    let busybox = crate::cluster::Images::default().busybox;
    cluster
        .api()
        .apply(&format!(
            "
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: late, namespace: sample }}
spec:
  replicas: 3
  selector: {{ matchLabels: {{ app: late }} }}
  template:
    metadata: {{ labels: {{ app: late }} }}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - {{ name: late, image: '{busybox}', imagePullPolicy: Never, command: [sh, -c, 'sleep 86400'] }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{ name: late, namespace: sample }}
spec: {{ maxUnavailable: 1, selector: {{ matchLabels: {{ app: late }} }} }}
"
        ))
        .await?;
    cluster
        .api()
        .rolled_out("deployment/late", "sample", STEP)
        .await?;
    ipam::agrees(cluster).await
}

/// Every one of them has a lease of flannel's plugin on its node.
async fn is_old(cluster: &Cluster) -> Result<()> {
    cluster
        .api()
        .rolled_out("deployment/late", "sample", STEP)
        .await?;
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), "sample");
    let list = pods.list(&ListParams::default().labels("app=late")).await?;
    ensure!(!list.items.is_empty(), "there is no pod of the workload");
    for pod in list {
        let node = pod.spec.and_then(|spec| spec.node_name).context("its node")?;
        let address = pod
            .status
            .and_then(|status| status.pod_ip)
            .context("its address")?;
        let lease = format!("/var/lib/cni/networks/cbr0/{address}");
        cluster.run_in_node(&node, &["test", "-f", &lease]).await?;
    }
    Ok(())
}

/// Blocks, affinities, handles, pools: all of it was made by the migration.
async fn nothing_of_calico(cluster: &Cluster) -> Result<()> {
    for kind in [
        "ipamblocks",
        "blockaffinities",
        "ipamhandles",
        "ippools",
        "ipamconfigs",
        "felixconfigurations",
    ] {
        let kind = format!("{kind}.crd.projectcalico.org");
        let said = cluster.api().kubectl(&["get", &kind, "-o", "name"]).await?;
        ensure!(said.trim().is_empty(), "left: {said}");
    }
    let labels = "jsonpath={.items[*].metadata.labels} {.items[*].metadata.annotations} {.items[*].spec.unschedulable}";
    let said = cluster.api().kubectl(&["get", "nodes", "-o", labels]).await?;
    for word in ["projectcalico.org", "replumb.dev", "true true"] {
        ensure!(!said.contains(word), "Nodes say {word} still: {said}");
    }
    Ok(())
}
