//! Pods that are created and deleted while Calico is paused. During the pause no pod gets a network and none loses it; afterwards
//! every new pod runs and the deleted pod is gone.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::stores::Watcher;
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};

/// The namespace of these pods.
const NAMESPACE: &str = "sample";
/// The Deployment whose pods are created.
const CREATED: &str = "late";
/// Number of pods that are created.
const COUNT: usize = 3;
/// The pod that is deleted.
const DELETED: &str = "early";
/// After the pause kubelets retry within a minute or two.
const LIMIT: Duration = Duration::from_mins(3);

/// The pods that were created and deleted during the pause.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodsInPause {
    /// Pods that were created while Calico was paused.
    pub created: usize,
    /// Number of these pods that were Ready before the pause ended.
    pub started_in_pause: usize,
    /// Number of these pods that are Ready at the end.
    pub running: usize,
    /// The longest time from the end of the pause until a pod was Ready, in seconds.
    pub longest_wait_seconds: i64,
    /// Whether the pod that was deleted during the pause is gone at the end.
    pub deleted_is_gone: bool,
}

/// Creates the Deployment, without pods, and the pod that is deleted later.
pub async fn prepare(cluster: &Cluster, image: &str) -> Result<()> {
    let pod = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main", "image": image, "imagePullPolicy": "Never", "args": ["serve", "--name=late"],
            "resources": { "requests": { "cpu": "50m" } },
        }],
    });
    let labels = json!({ "app": CREATED });
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": CREATED, "namespace": NAMESPACE },
          "spec": { "replicas": 0, "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": pod } } },
        { "apiVersion": "v1", "kind": "Pod", "metadata": { "name": DELETED, "namespace": NAMESPACE }, "spec": pod },
    ] });
    cluster.api().apply(&objects.to_string()).await?;
    cluster.api().pods_ready(&[NAMESPACE], LIMIT).await
}

/// Waits for the pause, then creates and deletes pods.
pub async fn create_and_delete(cluster: &Cluster, watcher: &Watcher) -> Result<()> {
    until(
        "Calico is paused",
        super::LIMIT,
        &cluster.directory().logs(),
        async || {
            Ok(if watcher.is_paused() {
                Observation::Done(())
            } else {
                Observation::NotYet("Calico is not paused".to_owned())
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
        CREATED,
        "--replicas",
        &count,
    ];
    cluster.api().kubectl(&scale).await?;
    let delete = ["-n", NAMESPACE, "delete", "pod", DELETED, "--wait=false"];
    cluster.api().kubectl(&delete).await?;
    Ok(())
}

/// Waits until the pods are in the needed state, and reports on them.
pub async fn judge(cluster: &Cluster, watcher: &Watcher) -> Result<PodsInPause> {
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let labels = ListParams::default().labels(&format!("app={CREATED}"));
    until(
        "pods that were created during the pause run",
        LIMIT,
        &cluster.directory().logs(),
        async || {
            let all = pods.list(&labels).await?.items;
            let ready = all.iter().filter(|pod| ready_since(pod).is_some()).count();
            let remaining = pods.get_opt(DELETED).await?;
            Ok(if ready == COUNT && remaining.is_none() {
                Observation::Done(())
            } else {
                Observation::NotYet(format!(
                    "{ready} of {COUNT} pods are Ready, pod {DELETED} is {}",
                    remaining.map_or("gone", |_| "still there")
                ))
            })
        },
    )
    .await?;
    let flags = watcher.flags();
    let ended = flags
        .paused_until
        .context("the end of the pause was not observed")?;
    let all = pods.list(&labels).await?.items;
    let waited = all
        .iter()
        .filter_map(ready_since)
        .map(|at| at.duration_since(ended).as_secs());
    let is_early = |pod: &&Pod| ready_since(pod).is_some_and(|at| at.as_second() < ended.as_second());
    Ok(PodsInPause {
        created: all.len(),
        started_in_pause: all.iter().filter(is_early).count(),
        running: all.iter().filter(|pod| ready_since(pod).is_some()).count(),
        longest_wait_seconds: waited.max().unwrap_or_default(),
        deleted_is_gone: pods.get_opt(DELETED).await?.is_none(),
    })
}

/// Deletes the Deployment: the next case starts without it.
pub async fn delete_created(cluster: &Cluster) -> Result<()> {
    let arguments = [
        "-n",
        NAMESPACE,
        "delete",
        "deployment",
        CREATED,
        "--cascade=foreground",
        "--wait",
    ];
    cluster.api().kubectl(&arguments).await.map(|_| ())
}

/// The time since which a pod is Ready; `None` when the pod is not Ready.
fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    (ready.status == "True").then(|| ready.last_transition_time.as_ref().map(|time| time.0))?
}

/// Namespace, name and address of every pod, by UID; a pod on the host network has its node's address.
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
