//! A cluster on Calico v2.6 with etcd: what a pause of Calico does to its pods, and a conversion by the commands alone, with a roll to
//! v3.8 by hand, while traffic flows.

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
/// One step. A kubelet waits 10 s before it tries a pod's network again.
const LIMIT: Duration = Duration::from_mins(2);
const ROLL: Duration = Duration::from_mins(5);
/// What Calico's plugin says while it is paused.
const REFUSAL: &str = "Calico is currently not ready to process requests";
const BLOCKS: &str = "/calico/ipam/v2/assignment/ipv4/block/";
const HANDLES: &str = "/calico/ipam/v2/handle/";

/// Every case.
pub async fn calico_v2(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    tally.count(
        "calico-v2: while Calico is paused pods that run go on, none comes and none goes; then they do",
        paused(cluster).await,
    );
    tally.count(
        "calico-v2: converted, rolled to v3 and opened, nothing is lost; v3 gives addresses out of the blocks of v2 and takes theirs back",
        converted(cluster, tools).await,
    );
    tally
}

async fn paused(cluster: &Cluster) -> Result<()> {
    probes::replace_probers(cluster).await?;
    cluster.set_calico_v2_ready(false).await?;
    make(cluster, "late").await?;
    told(cluster, "late", "FailedCreatePodSandBox").await?;
    delete(cluster, "store-1").await?;
    told(cluster, "store-1", "FailedKillPod").await?;
    nodes_are_ready(cluster).await?;
    cluster.set_calico_v2_ready(true).await?;
    cluster.api().pods_ready(&[NAMESPACE], LIMIT).await?;
    delete(cluster, "late").await?;
    gone(cluster, "late").await?;
    nothing_lost(&Summary::of(&probes::so_far(cluster).await?))
}

async fn converted(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let url = cluster.calico_etcd().await?;
    let folder = cluster.directory().logs().join("calico-datastore");
    let tool = Tool::new(&tools.command_line, &url, &url, &folder);
    make(cluster, "old").await?;
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
        .context("roll Calico to v3.8")?;
    for workload in ["daemonset/calico-node", "deployment/calico-kube-controllers"] {
        cluster.api().rolled_out(workload, CALICO_NAMESPACE, ROLL).await?;
    }
    make(cluster, "new").await?;
    told(cluster, "new", "FailedCreatePodSandBox").await?;
    let status = tool.status().await?;
    ensure!(
        addresses(cluster).await? == before,
        "addresses of pods have changed with the roll"
    );
    complete(cluster, &tool)
        .await
        .with_context(|| format!("before: {status}"))?;
    cluster.api().pods_ready(&[NAMESPACE], LIMIT).await?;
    let after = addresses(cluster).await?;
    for (pod, address) in &before {
        ensure!(
            after.get(pod) == Some(address),
            "pod {pod} had {address}: {after:?}"
        );
    }
    if tools.calico_is_real {
        guard::holds(cluster).await?;
    }
    let new = after.get("new").context("pod new has no address")?;
    ensure!(
        blocks.iter().any(|block| block.contains(new)),
        "pod new has {new}, which is in none of {blocks:?}"
    );
    let handles = store.count(HANDLES).await?;
    for pod in ["old", "new"] {
        delete(cluster, pod).await?;
        gone(cluster, pod).await?;
    }
    let left = store.count(HANDLES).await?;
    ensure!(
        left + 2 == handles,
        "{handles} handles before two pods went, {left} after"
    );
    nothing_lost(&Summary::of(&probes::end(cluster).await?))
}

/// As a person does it: what controllers have not written yet is a refusal, and it is said again.
async fn complete(cluster: &Cluster, tool: &Tool) -> Result<()> {
    let what = "v3 is opened";
    until(what, LIMIT, &cluster.directory().logs(), async || {
        let said = tool.run(&["complete", "--yes"]).await?;
        Ok(match said.code {
            Some(0) => Observation::Done(()),
            Some(2) if said.notes.contains("has not yet") => Observation::NotYet(said.all()),
            other => bail!("complete ended with {other:?}: {}", said.all()),
        })
    })
    .await
}

async fn run(tool: &Tool, arguments: &[&str]) -> Result<()> {
    let said = tool.run(arguments).await?;
    ensure!(
        said.code == Some(0),
        "datastore {} ended with {:?}: {}",
        arguments.join(" "),
        said.code,
        said.all()
    );
    Ok(())
}

async fn store(url: &str) -> Result<Etcd3> {
    let said = PartialAccess {
        endpoints: vec![url.to_owned()],
        ..PartialAccess::default()
    };
    Ok(Etcd3::connect(&said.access(Side::V3)?).await?)
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

/// Starts a pod that nobody re-creates.
async fn make(cluster: &Cluster, name: &str) -> Result<()> {
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

async fn gone(cluster: &Cluster, name: &str) -> Result<()> {
    let what = format!("pod {name} is gone");
    until(&what, LIMIT, &cluster.directory().logs(), async || {
        Ok(match pods(cluster).get_opt(name).await? {
            None => Observation::Done(()),
            Some(_) => Observation::NotYet("it is there".into()),
        })
    })
    .await
}

/// The kubelet says why this pod has no network, or why it keeps it.
async fn told(cluster: &Cluster, pod: &str, reason: &str) -> Result<()> {
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

/// A pause keeps no roll from going on.
async fn nodes_are_ready(cluster: &Cluster) -> Result<()> {
    let daemon_sets: Api<DaemonSet> = Api::namespaced(cluster.api().client(), CALICO_NAMESPACE);
    let status = daemon_sets.get("calico-node").await?.status.unwrap_or_default();
    ensure!(
        status.number_ready == status.desired_number_scheduled && status.number_ready > 0,
        "calico-node is ready on {} of {} nodes",
        status.number_ready,
        status.desired_number_scheduled
    );
    Ok(())
}

/// Of every pod that has one.
async fn addresses(cluster: &Cluster) -> Result<BTreeMap<String, Ipv4Addr>> {
    let all = pods(cluster).list(&ListParams::default()).await?;
    let addresses = all.iter().filter_map(|pod| {
        let address = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        Some((pod.name_any(), address))
    });
    Ok(addresses.collect())
}

fn nothing_lost(summary: &Summary) -> Result<()> {
    ensure!(
        summary.all.sent > 1000,
        "only {} probes were sent",
        summary.all.sent
    );
    for (class, counts) in &summary.classes {
        ensure!(
            counts.lost == 0,
            "{} of {} probes of {class} are lost",
            counts.lost,
            counts.sent
        );
    }
    Ok(())
}
