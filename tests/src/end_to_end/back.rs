//! Migration and rollback: a network that does not start, an API server that is unavailable while a node is migrated, pods that are
//! adopted, and then a rollback of everything. The traffic has no losses, and every host is as before.

use ::flannel_to_calico::api::OrEmpty as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::migration::MigrationPhase;
use flannel_to_calico::phase::Phase;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use super::in_place::verify_no_disruption;
use super::migration_reader::MigrationReader;
use super::{Tally, adopted, firewall};
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::flannel_to_calico::{Request, Run, is_soaking};
use crate::demo::operator::Exit;
use crate::demo::{Tools, ipam};

const STEP: Duration = Duration::from_mins(3);
/// `rollout.stepTimeoutSeconds`: sufficient for the start of calico-node on a busy machine.
const STEP_TIMEOUT: u64 = 30;
/// `soakSeconds`: longer than the case.
const SOAK: u64 = 3600;
/// Longest time from this timeout until the old network works again: a read, the steps, and a write that gets no answer.
const RESTORED_WITHIN: Duration = Duration::from_secs(20);
/// An image that does not exist.
const MISSING_IMAGE: &str = "nowhere.invalid/calico:none";

/// Migrates three nodes and rolls them back, with traffic all the time.
pub async fn back(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let begun = async {
        adopted::prepare(cluster).await?;
        firewall::install(cluster).await?;
        let run = Run::begin(cluster, tools).await?;
        adopted::start(cluster).await?;
        Ok(run)
    };
    let Some(run) = tally.count(
        "back: begin, with a pod of flannel that has a host port, and a firewall that names flannel's links",
        begun.await,
    ) else {
        return tally;
    };
    let reader = MigrationReader::new(cluster);
    let began = async {
        let image = image(cluster).await?;
        set_image(cluster, MISSING_IMAGE).await?;
        Ok((image, run.start(&request()).await?))
    };
    let Some((image, watch)) = tally.count("back: a Calico that never starts", began.await) else {
        return tally;
    };
    let first = reader.until_planned(STEP).await.map(|order| order[0].clone());
    let Some(first) = tally.count("back: the first node is known", first) else {
        return tally;
    };
    tally.count(
        "back: calico-node never starts, and the agent restores flannel on its node",
        falls_back(cluster, &reader, &first).await,
    );
    tally.count(
        "back: the API server is unavailable too, and the agent restores flannel on its node",
        falls_back_alone(cluster, &run, &reader, &first).await,
    );
    let corrected = async {
        set_image(cluster, &image).await?;
        run.scene.operator.expect(Exit::Done, &["resume"]).await?;
        let what = "every node is on Calico, and no pod uses flannel";
        reader
            .until_migration(what, 3 * STEP, is_soaking)
            .await
            .map(|_| ())
    };
    tally.count(
        "back: after the correction every node changes to Calico and adopts its pods",
        corrected.await,
    );
    tally.count(
        "back: an adopted pod has its host port, reaches itself, and exec and port-forward work",
        adopted::works(cluster).await,
    );
    tally.count("back: new pods get Calico's addresses", late(cluster).await);
    tally.count(
        "back: nothing of an adopted pod remains on its node at its end",
        adopted::ends(cluster).await,
    );
    tally.count(
        "back: Calico's IPAM has released its address",
        ipam::agrees(cluster).await,
    );
    tally.count(
        "back: the firewall has twins for the links of Calico, and drops nothing",
        firewall::verify(cluster, true).await,
    );
    tally.count("back: everything is rolled back", run.scene.roll_back().await);
    tally.count("back: the twins are gone", firewall::verify(cluster, false).await);
    let restored = async {
        verify_flannel_addresses(cluster).await?;
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
        verify_no_calico_objects(cluster).await
    };
    tally.count(
        "back: pods with addresses of Calico get addresses of flannel, and Calico's IPAM is empty",
        restored.await,
    );
    tally.count(
        "back: no pod of flannel was moved, and every host is as before",
        verify_no_disruption(&run, watch, &[]).await,
    );
    tally
}

/// The migration: in place, with adopted pods and the twins of [`firewall`].
fn request() -> Request {
    Request {
        strategy: api::migration::Strategy::InPlace,
        spec: serde_json::json!({
            "flannelToCalico": { "legacyPods": "Adopt", "firewallTwins": "Write", "soakSeconds": SOAK },
            "rollout": { "stepTimeoutSeconds": STEP_TIMEOUT },
        }),
        ..Request::default()
    }
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

/// The node changes its network, its step times out, and the agent restores flannel; the Migration halts with this reason.
async fn falls_back(cluster: &Cluster, reader: &MigrationReader, node: &str) -> Result<()> {
    until_phase(cluster, reader, node, Phase::Swapped).await?;
    let swapped = Instant::now();
    until_on_flannel(cluster, node, swapped).await?;
    is_halted(reader, node).await
}

/// The same without the API server: the agent can neither read nor write its object.
async fn falls_back_alone(
    cluster: &Cluster,
    run: &Run<'_>,
    reader: &MigrationReader,
    node: &str,
) -> Result<()> {
    run.scene.operator.expect(Exit::Done, &["resume"]).await?;
    until_phase(cluster, reader, node, Phase::Swapped).await?;
    cluster.stop_api_server().await?;
    let swapped = Instant::now();
    let restored = until_on_flannel(cluster, node, swapped).await;
    cluster.start_api_server().await?;
    restored?;
    is_halted(reader, node).await
}

async fn until_phase(cluster: &Cluster, reader: &MigrationReader, node: &str, phase: Phase) -> Result<()> {
    until(
        &format!("node {node} is {}", phase.as_str()),
        STEP,
        &cluster.directory().logs(),
        async || {
            let found = reader.proved(node).await?;
            Ok(if found == Some(phase) {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("the phase is {found:?}"))
            })
        },
    )
    .await
}

/// Reads the host itself: the API server may be unavailable.
async fn until_on_flannel(cluster: &Cluster, node: &str, since: Instant) -> Result<()> {
    let limit = Duration::from_secs(STEP_TIMEOUT) + RESTORED_WITHIN;
    until(
        &format!("node {node} has flannel's network again"),
        limit,
        &cluster.directory().logs(),
        async || {
            let script = "ip -o link show type vxlan | cut -d: -f2; ls /run/flannel";
            let output = cluster.run_in_node(node, &["sh", "-c", script]).await?;
            Ok(if output.contains("flannel.1") && output.contains("subnet.env") {
                Observation::Done(())
            } else {
                Observation::NotYet(output)
            })
        },
    )
    .await?;
    println!(
        "        flannel works again {:.1} s after the swap; allowed: {STEP_TIMEOUT} s for the step and {} s for the restore",
        since.elapsed().as_secs_f64(),
        RESTORED_WITHIN.as_secs()
    );
    Ok(())
}

async fn is_halted(reader: &MigrationReader, node: &str) -> Result<()> {
    reader
        .until_node(node, "restored and reported", STEP, |spec| {
            spec.flannel_to_calico.or_empty().automatic_rollback.is_some()
                && !spec.rolling_back
                && spec.returned_at.is_some()
        })
        .await?;
    reader
        .until_migration("the Migration halts because of it", STEP, |migration| {
            migration.status.as_ref().is_some_and(|status| {
                status.phase == MigrationPhase::Halted
                    && status.reason == "FellBack"
                    && status.message.contains("on its own")
            })
        })
        .await
        .map(|_| ())
}

/// Creates a workload after every node has changed to Calico.
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

/// Checks that every pod of the workload has a lease of flannel's plugin on its node.
async fn verify_flannel_addresses(cluster: &Cluster) -> Result<()> {
    cluster
        .api()
        .rolled_out("deployment/late", "sample", STEP)
        .await?;
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), "sample");
    let list = pods.list(&ListParams::default().labels("app=late")).await?;
    ensure!(!list.items.is_empty(), "the workload has no pod");
    for pod in list {
        let node = pod
            .spec
            .and_then(|spec| spec.node_name)
            .context("a pod without a node")?;
        let address = pod
            .status
            .and_then(|status| status.pod_ip)
            .context("a pod without an address")?;
        let lease = format!("/var/lib/cni/networks/cbr0/{address}");
        cluster.run_in_node(&node, &["test", "-f", &lease]).await?;
    }
    Ok(())
}

/// Checks that no block, affinity, handle or pool exists: the migration created all of them.
async fn verify_no_calico_objects(cluster: &Cluster) -> Result<()> {
    for kind in [
        "ipamblocks",
        "blockaffinities",
        "ipamhandles",
        "ippools",
        "ipamconfigs",
        "felixconfigurations",
    ] {
        let kind = format!("{kind}.crd.projectcalico.org");
        let output = cluster.api().kubectl(&["get", &kind, "-o", "name"]).await?;
        ensure!(output.trim().is_empty(), "remaining: {output}");
    }
    let labels = "jsonpath={.items[*].metadata.labels} {.items[*].metadata.annotations} {.items[*].spec.unschedulable}";
    let output = cluster.api().kubectl(&["get", "nodes", "-o", labels]).await?;
    for word in ["projectcalico.org", "replumb.dev", "true true"] {
        ensure!(!output.contains(word), "Nodes still contain {word}: {output}");
    }
    Ok(())
}
