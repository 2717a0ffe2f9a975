//! Watches what must hold at every moment of a migration: how many nodes are out of work at the same time, and which pods come.

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

/// Between two looks at the nodes. A node is out of work for many seconds; each look costs the lab's cores two lists.
const INTERVAL: Duration = Duration::from_millis(500);

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Peak {
    /// The most nodes that were out of work at the same time.
    pub nodes: BTreeSet<String>,
    /// UIDs of every pod that counts and was there at any time.
    pub pods: BTreeSet<String>,
    /// How often it was looked.
    pub looks: u64,
}

/// A watch that runs.
pub struct Watch {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Peak>,
}

impl Watch {
    /// Starts looking. A node is out of work, too, when its migration says so by `is_out`; `counts` says which pods are noted, none if
    /// it is not there.
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
                // While the API server is away nobody can look, and nobody can cordon either.
                let Ok(out_of_work) = look(&client, is_out).await else {
                    continue;
                };
                peak.looks += 1;
                if out_of_work.len() > peak.nodes.len() {
                    peak.nodes = out_of_work;
                }
            }
        });
        Self { stop, task }
    }

    /// Ends the watch and returns what it saw.
    pub async fn stop(self) -> Result<Peak> {
        // A task that is gone has ended by a panic, which the next line tells.
        let _ = self.stop.send(());
        self.task.await.context("watch the nodes")
    }
}

/// UIDs of the pods that count, each as it comes. A watch that breaks is started again, and tells of everybody who is there then.
fn pods(client: &Client, counts: fn(&Pod) -> bool) -> futures::stream::BoxStream<'static, Option<String>> {
    watcher(Api::<Pod>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .touched_objects()
        .filter_map(async |pod| pod.ok())
        .map(move |pod| pod.uid().filter(|_| counts(&pod)))
        .boxed()
}

/// Nodes that are cordoned, not Ready, or out by their migration.
async fn look(client: &Client, is_out: fn(&NodeMigration) -> bool) -> kube::Result<BTreeSet<String>> {
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
