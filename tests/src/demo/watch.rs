//! Watches a migration from outside: how many nodes are unavailable at the same time, and which pods are created.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use api::NodeMigration;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Time between two observations of the nodes. A node is unavailable for many seconds, and each observation costs two lists.
const INTERVAL: Duration = Duration::from_millis(500);

/// The result of a watch.
#[derive(Clone, Debug, Default)]
pub struct Peak {
    /// The largest set of nodes that were unavailable at the same time.
    pub nodes: BTreeSet<String>,
    /// UIDs of every pod that counts and existed at any time.
    pub pods: BTreeSet<String>,
    /// Number of observations.
    pub observations: u64,
}

/// A running watch.
pub struct Watch {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Peak>,
}

impl Watch {
    /// Starts the watch. A node is also unavailable when `is_out` is true for its NodeMigration. `counts` selects the pods to
    /// record; without it no pods are recorded.
    pub fn start(
        client: Client,
        is_out: fn(&NodeMigration) -> bool,
        counts: Option<fn(&Pod) -> bool>,
    ) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut peak = Peak::default();
            let mut ticks = tokio::time::interval(INTERVAL);
            let mut pods = match counts {
                Some(counts) => pods(&client, counts),
                None => futures::stream::pending().boxed(),
            };
            loop {
                tokio::select! {
                    _ = &mut stopped => return peak,
                    Some(pod) = pods.next() => {
                        peak.pods.extend(pod);
                        continue;
                    }
                    _ = ticks.tick() => {}
                }
                // While the API server is unavailable no node can be cordoned either.
                let Ok(unavailable) = unavailable_nodes(&client, is_out).await else {
                    continue;
                };
                peak.observations += 1;
                if unavailable.len() > peak.nodes.len() {
                    peak.nodes = unavailable;
                }
            }
        });
        Self { stop, task }
    }

    /// Ends the watch and returns its result.
    pub async fn stop(self) -> Result<Peak> {
        // Sending fails when the task has panicked: the next line returns that error.
        let _ = self.stop.send(());
        self.task.await.context("watch the nodes")
    }
}

/// UIDs of the pods that count, each when it appears. A broken watch is started again, and then lists every existing pod.
fn pods(client: &Client, counts: fn(&Pod) -> bool) -> futures::stream::BoxStream<'static, Option<String>> {
    watcher(Api::<Pod>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .touched_objects()
        .filter_map(async |pod| pod.ok())
        .map(move |pod| pod.uid().filter(|_| counts(&pod)))
        .boxed()
}

/// Nodes that are cordoned, not Ready, or unavailable by their NodeMigration.
async fn unavailable_nodes(
    client: &Client,
    is_out: fn(&NodeMigration) -> bool,
) -> kube::Result<BTreeSet<String>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let migrations: Api<NodeMigration> = Api::all(client.clone());
    let mut out = BTreeSet::new();
    for node in nodes.list(&ListParams::default()).await?.items {
        let cordoned = node
            .spec
            .as_ref()
            .and_then(|spec| spec.unschedulable)
            .unwrap_or_default();
        let ready = node
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        if cordoned || !ready {
            out.insert(node.name_any());
        }
    }
    let migrations = migrations.list(&ListParams::default()).await?.items;
    out.extend(
        migrations
            .into_iter()
            .filter(is_out)
            .map(|object| object.spec.node_name),
    );
    Ok(out)
}
