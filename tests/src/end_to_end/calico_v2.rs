//! A cluster on Calico v2.6 with etcd: the effects of a pause of Calico on pods, and a conversion by the commands alone, with a
//! manual rollout of v3.8, under traffic.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use datastore::access::{PartialAccess, Side};
use datastore::etcd3::Etcd3;
use ipnet::Ipv4Net;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use traffic::report::Summary;

use super::{Tally, guard};
use crate::cluster::pods::CALICO_NAMESPACE;
use crate::cluster::wait::{Observation, until};
use crate::cluster::{Cluster, Images};
use crate::datastore::tool::Tool;
use crate::demo::{Tools, traffic as probes};

const NAMESPACE: &str = "sample";
/// Limit of one step. A kubelet waits 10 s before it tries a pod's network again.
const LIMIT: Duration = Duration::from_mins(2);
const ROLLOUT: Duration = Duration::from_mins(5);
/// Fragment of the message of Calico's plugin during a pause.
const REFUSAL: &str = "Calico is currently not ready to process requests";
const BLOCKS: &str = "/calico/ipam/v2/assignment/ipv4/block/";
const HANDLES: &str = "/calico/ipam/v2/handle/";

/// Every case.
pub async fn calico_v2(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    tally.count(
        "calico-v2: during a pause of Calico running pods continue, and no pod starts or ends until the pause ends",
        paused(cluster).await,
    );
    tally.count(
        "calico-v2: no loss in a conversion with a rollout of v3; v3 assigns and releases addresses in the blocks of v2",
        converted(cluster, tools).await,
    );
    tally
}

async fn paused(cluster: &Cluster) -> Result<()> {
    probes::replace_probers(cluster).await?;
    cluster.set_calico_v2_ready(false).await?;
    create(cluster, "late").await?;
    until_event(cluster, "late", "FailedCreatePodSandBox").await?;
    delete(cluster, "store-1").await?;
    until_event(cluster, "store-1", "FailedKillPod").await?;
    verify_nodes_ready(cluster).await?;
    cluster.set_calico_v2_ready(true).await?;
    cluster.api().pods_ready(&[NAMESPACE], LIMIT).await?;
    delete(cluster, "late").await?;
    until_gone(cluster, "late").await?;
    verify_no_loss(&Summary::of(&probes::so_far(cluster).await?))
}

async fn converted(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let url = cluster.calico_etcd().await?;
    let folder = cluster.directory().logs().join("calico-datastore");
    let tool = Tool::new(&tools.command_line, &url, &url, &folder);
    create(cluster, "old").await?;
    if tools.calico_is_real {
        guard::set(cluster).await?;
    }
    cluster.api().pods_ready(&[NAMESPACE], LIMIT).await?;
    let before = addresses(cluster).await?;
    run(&tool, &["start", "--yes", "--no-hold", "--settle", "1s"]).await?;
    let store = store(&url).await?;
    let blocks = blocks(&store).await?;
    let manifest = cluster.values().await.calico_v3()?;
    cluster
        .api()
        .apply(&manifest)
        .await
        .context("roll out Calico v3.8")?;
    for workload in ["daemonset/calico-node", "deployment/calico-kube-controllers"] {
        cluster
            .api()
            .rolled_out(workload, CALICO_NAMESPACE, ROLLOUT)
            .await?;
    }
    create(cluster, "new").await?;
    until_event(cluster, "new", "FailedCreatePodSandBox").await?;
    let status = tool.status().await?;
    ensure!(
        addresses(cluster).await? == before,
        "addresses of pods have changed during the rollout"
    );
    complete(cluster, &tool)
        .await
        .with_context(|| format!("before: {status}"))?;
    cluster.api().pods_ready(&[NAMESPACE], LIMIT).await?;
    let after = addresses(cluster).await?;
    for (pod, address) in &before {
        ensure!(
            after.get(pod) == Some(address),
            "address of pod {pod}: needed {address}, found {after:?}"
        );
    }
    if tools.calico_is_real {
        guard::holds(cluster).await?;
    }
    let new = after.get("new").context("pod new has no address")?;
    ensure!(
        blocks.iter().any(|block| block.contains(new)),
        "address of pod new: found {new}, needed one of {blocks:?}"
    );
    let handles = store.count(HANDLES).await?;
    for pod in ["old", "new"] {
        delete(cluster, pod).await?;
        until_gone(cluster, pod).await?;
    }
    let remaining = store.count(HANDLES).await?;
    ensure!(
        remaining + 2 == handles,
        "handles after the deletion of two pods: found {remaining}, needed two less than {handles}"
    );
    verify_no_loss(&Summary::of(&probes::end(cluster).await?))
}

/// Runs `complete` as a user does: again and again, until the controllers have written all their objects.
async fn complete(cluster: &Cluster, tool: &Tool) -> Result<()> {
    let what = "etcd v3 is open";
    until(what, LIMIT, &cluster.directory().logs(), async || {
        let output = tool.run(&["complete", "--yes"]).await?;
        Ok(match output.code {
            Some(0) => Observation::Done(()),
            Some(2) if output.notes.contains("has not yet") => Observation::NotYet(output.all()),
            other => bail!("complete ended with {other:?}: {}", output.all()),
        })
    })
    .await
}

async fn run(tool: &Tool, arguments: &[&str]) -> Result<()> {
    let output = tool.run(arguments).await?;
    ensure!(
        output.code == Some(0),
        "datastore {} ended with {:?}: {}",
        arguments.join(" "),
        output.code,
        output.all()
    );
    Ok(())
}

async fn store(url: &str) -> Result<Etcd3> {
    let stores = PartialAccess {
        endpoints: vec![url.to_owned()],
        ..PartialAccess::default()
    };
    Ok(Etcd3::connect(&stores.access(Side::V3)?).await?)
}

async fn blocks(store: &Etcd3) -> Result<Vec<Ipv4Net>> {
    let entries = store.list(BLOCKS).await?;
    let ranges = entries.iter().map(|entry| {
        let name = entry.key.trim_start_matches(BLOCKS).replacen('-', "/", 1);
        name.parse().with_context(|| format!("read {}", entry.key))
    });
    ranges.collect()
}

fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.api().client(), NAMESPACE)
}

/// Creates a pod without a controller.
async fn create(cluster: &Cluster, name: &str) -> Result<()> {
    let image = format!("--image={}", Images::default().busybox);
    let shell = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done";
    let command = [
        "run",
        name,
        "-n",
        NAMESPACE,
        &image,
        "--image-pull-policy=Never",
        "--restart=Never",
        "--command",
        "--",
        "sh",
        "-c",
        shell,
    ];
    cluster.api().kubectl(&command).await.map(drop)
}

async fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    let command = ["delete", "pod", name, "-n", NAMESPACE, "--wait=false"];
    cluster.api().kubectl(&command).await.map(drop)
}

async fn until_gone(cluster: &Cluster, name: &str) -> Result<()> {
    let what = format!("pod {name} is gone");
    until(&what, LIMIT, &cluster.directory().logs(), async || {
        Ok(match pods(cluster).get_opt(name).await? {
            None => Observation::Done(()),
            Some(_) => Observation::NotYet("the pod still exists".into()),
        })
    })
    .await
}

/// Waits for the kubelet's Event with the reason why this pod gets no network, or keeps it.
async fn until_event(cluster: &Cluster, pod: &str, reason: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let of_pod = ListParams::default().fields(&format!("involvedObject.name={pod},reason={reason}"));
    let what = format!("an Event {reason} of pod {pod} with Calico's refusal");
    until(&what, LIMIT, &cluster.directory().logs(), async || {
        let notes: Vec<String> = events
            .list(&of_pod)
            .await?
            .into_iter()
            .filter_map(|event| event.message)
            .collect();
        Ok(if notes.iter().any(|note| note.contains(REFUSAL)) {
            Observation::Done(())
        } else {
            Observation::NotYet(format!("{notes:?}"))
        })
    })
    .await
}

/// Checks that calico-node stays ready on every node: a rollout can continue during a pause.
async fn verify_nodes_ready(cluster: &Cluster) -> Result<()> {
    let daemon_sets: Api<DaemonSet> = Api::namespaced(cluster.api().client(), CALICO_NAMESPACE);
    let status = daemon_sets.get("calico-node").await?.status.unwrap_or_default();
    ensure!(
        status.number_ready == status.desired_number_scheduled && status.number_ready > 0,
        "nodes on which calico-node is ready: {} of {}",
        status.number_ready,
        status.desired_number_scheduled
    );
    Ok(())
}

/// The address of every pod that has one.
async fn addresses(cluster: &Cluster) -> Result<BTreeMap<String, Ipv4Addr>> {
    let all = pods(cluster).list(&ListParams::default()).await?;
    let addresses = all.iter().filter_map(|pod| {
        let address = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        Some((pod.name_any(), address))
    });
    Ok(addresses.collect())
}

fn verify_no_loss(summary: &Summary) -> Result<()> {
    ensure!(
        summary.all.sent > 1000,
        "probes sent: found {}, needed more than 1000",
        summary.all.sent
    );
    for (class, counts) in &summary.classes {
        ensure!(
            counts.lost == 0,
            "lost probes of {class}: {} of {}",
            counts.lost,
            counts.sent
        );
    }
    Ok(())
}
