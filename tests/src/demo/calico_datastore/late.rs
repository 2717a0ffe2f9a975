//! Pods that come and go while Calico is paused: none gets a network then, none loses it, and afterwards all of them are as they should.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};

use super::stores::Watcher;
use crate::cluster::Cluster;
use crate::cluster::wait::{Look, until};

/// Where they are.
const NAMESPACE: &str = "sample";
/// Those that come.
const COMES: &str = "late";
/// How many.
const COUNT: usize = 3;
/// The one that goes.
const GOES: &str = "early";
/// Afterwards kubelets try again within a minute or two.
const LIMIT: Duration = Duration::from_mins(3);

/// What became of them.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Late {
    /// Pods that were made while Calico was paused.
    pub made: usize,
    /// Of these, pods that got an address before it was over.
    pub started_in_the_pause: usize,
    /// Of these, pods that run at the end.
    pub run: usize,
    /// The longest time from the end of the pause until one was Ready, in seconds.
    pub waited_seconds: i64,
    /// Whether the pod that was deleted in the pause is gone at the end.
    pub deleted_is_gone: bool,
}

/// Makes what comes and goes later: none of it does anything yet.
pub async fn prepare(cluster: &Cluster, image: &str) -> Result<()> {
    let pod = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main", "image": image, "imagePullPolicy": "Never", "args": ["serve", "--name=late"],
            "resources": { "requests": { "cpu": "50m" } },
        }],
    });
    let labels = json!({ "app": COMES });
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": COMES, "namespace": NAMESPACE },
          "spec": { "replicas": 0, "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": pod } } },
        { "apiVersion": "v1", "kind": "Pod", "metadata": { "name": GOES, "namespace": NAMESPACE }, "spec": pod },
    ] });
    cluster.api().apply(&objects.to_string()).await?;
    cluster.api().pods_ready(&[NAMESPACE], LIMIT).await
}

/// Waits for the pause, and lets pods come and go in it.
pub async fn come_and_go(cluster: &Cluster, watcher: &Watcher) -> Result<()> {
    until(
        "Calico is paused",
        super::LIMIT,
        &cluster.directory().logs(),
        async || {
            Ok(if watcher.is_paused() {
                Look::Done(())
            } else {
                Look::NotYet("it is not".to_owned())
            })
        },
    )
    .await?;
    let count = COUNT.to_string();
    let scale = [
        "-n",
        NAMESPACE,
        "scale",
        "deployment",
        COMES,
        "--replicas",
        &count,
    ];
    cluster.api().kubectl(&scale).await?;
    let delete = ["-n", NAMESPACE, "delete", "pod", GOES, "--wait=false"];
    cluster.api().kubectl(&delete).await?;
    Ok(())
}

/// Waits until they are as they should, and says how it was.
pub async fn judge(cluster: &Cluster, watcher: &Watcher) -> Result<Late> {
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let labels = ListParams::default().labels(&format!("app={COMES}"));
    until(
        "pods that waited run",
        LIMIT,
        &cluster.directory().logs(),
        async || {
            let all = pods.list(&labels).await?.items;
            let ready = all.iter().filter(|pod| ready_since(pod).is_some()).count();
            let left = pods.get_opt(GOES).await?;
            Ok(if ready == COUNT && left.is_none() {
                Look::Done(())
            } else {
                Look::NotYet(format!(
                    "{ready} of {COUNT} are Ready, {GOES} is {}",
                    left.map_or("gone", |_| "there")
                ))
            })
        },
    )
    .await?;
    let flags = watcher.seen();
    let over = flags.paused_until.context("the pause was seen to end")?;
    let all = pods.list(&labels).await?.items;
    let waited = all
        .iter()
        .filter_map(ready_since)
        .map(|at| at.duration_since(over).as_secs());
    let is_early = |pod: &&Pod| ready_since(pod).is_some_and(|at| at.as_second() < over.as_second());
    Ok(Late {
        made: all.len(),
        started_in_the_pause: all.iter().filter(is_early).count(),
        run: all.iter().filter(|pod| ready_since(pod).is_some()).count(),
        waited_seconds: waited.max().unwrap_or_default(),
        deleted_is_gone: pods.get_opt(GOES).await?.is_none(),
    })
}

/// Takes away what came: another case begins anew.
pub async fn take_away(cluster: &Cluster) -> Result<()> {
    let arguments = [
        "-n",
        NAMESPACE,
        "delete",
        "deployment",
        COMES,
        "--cascade=foreground",
        "--wait",
    ];
    cluster.api().kubectl(&arguments).await.map(|_| ())
}

/// Since when a pod is Ready; `None` when it is not.
fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status == "True").then(|| ready.last_transition_time.as_ref().map(|time| time.0))?
}

/// Addresses of pods that were there before, by name; those that are not on the pod network have their node's.
pub async fn addresses(cluster: &Cluster) -> Result<Value> {
    let pods: Api<Pod> = Api::all(cluster.api().client());
    let all = pods.list(&ListParams::default()).await.context("list pods")?;
    let of = |pod: &Pod| {
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        (
            pod.uid().unwrap_or_default(),
            json!([pod.namespace(), pod.name_any(), address]),
        )
    };
    Ok(Value::Object(all.iter().map(of).collect()))
}
