//! A rehearsal, compared with the migration that follows: the order of nodes, their steps, and the pods that leave each node. The
//! lengths are reported: on a busy machine they prove nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::cluster::Cluster;
use crate::demo::operator::{Exit, Operator};

/// Namespaces whose pods end because their network does, or because replumb deletes them.
const NETWORKS: [&str; 2] = ["kube-flannel", "replumb-system"];
/// Label of the pods of Calico's `DaemonSet`.
const CALICO: (&str, &str) = ("k8s-app", "calico-node");
/// Steps that take no time where nothing has to be done: their presence is not compared.
const OPTIONAL: [&str; 3] = ["Attach", "DrainDaemonSets", "Import"];

/// A rehearsal, and the pods that end in the migration.
pub struct Rehearsed {
    document: Value,
    /// Namespace and name of the pods from before, with their nodes.
    before: BTreeMap<String, String>,
    endings: JoinHandle<Vec<(String, String)>>,
    stop: tokio::sync::oneshot::Sender<()>,
}

/// The comparison.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// Seconds of the rehearsal: with the usual times, the shortest and the longest ones.
    pub seconds: [f64; 3],
    /// What happens in another order, or is missing on one side.
    pub differences: Vec<String>,
}

impl Rehearsed {
    /// Rehearses the migration of this file, and begins to watch pods.
    pub async fn begin(cluster: &Cluster, operator: &Operator, file: &str) -> Result<Self> {
        let arguments = ["plan", "--simulate", "--filename", file, "--output", "json"];
        let answer = operator.run(&arguments).await?;
        anyhow::ensure!(
            answer.exit == Exit::Done,
            "plan --simulate: {:?}, {}",
            answer.exit,
            answer.text
        );
        let document = answer
            .first_object()
            .context("read the answer of plan --simulate")?;
        let client = cluster.api().client();
        let pods = Api::<Pod>::all(client.clone())
            .list(&ListParams::default())
            .await?;
        let before = pods.items.iter().filter(|pod| counts(pod));
        let before = before.map(|pod| (name(pod), node(pod))).collect();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        Ok(Self {
            document,
            before,
            endings: tokio::spawn(endings(client, stopped)),
            stop,
        })
    }

    /// Compares with what happened: the nodes in order, each with its steps.
    pub async fn compare(self, nodes: &[(String, Vec<String>)]) -> Result<Comparison> {
        let Self {
            document,
            before,
            endings,
            stop,
        } = self;
        // Sending fails when the task has panicked: the next line returns that error.
        let _ = stop.send(());
        let ended = endings.await.context("watch the pods")?;
        let usual = &document["usual"];
        let seconds =
            ["usual", "quick", "slow"].map(|pace| document[pace]["seconds"].as_f64().unwrap_or_default());
        let rehearsed = usual["nodes"].as_array().into_iter().flatten();
        let rehearsed: Vec<(String, Vec<String>)> = rehearsed
            .map(|node| {
                let steps = node["steps"].as_array().into_iter().flatten();
                (text(&node["name"]), steps.map(|step| text(&step[0])).collect())
            })
            .collect();
        let mut differences = Vec::new();
        let names =
            |nodes: &[(String, Vec<String>)]| nodes.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        if names(&rehearsed) != names(nodes) {
            differences.push(format!(
                "nodes: rehearsed {:?}, found {:?}",
                names(&rehearsed),
                names(nodes)
            ));
        }
        for ((name, planned), (_, found)) in rehearsed.iter().zip(nodes) {
            let kept = |steps: &[String]| {
                steps
                    .iter()
                    .filter(|step| !OPTIONAL.contains(&step.as_str()))
                    .cloned()
                    .collect::<Vec<_>>()
            };
            if kept(planned) != kept(found) {
                differences.push(format!(
                    "steps of node {name}: rehearsed {planned:?}, found {found:?}"
                ));
            }
        }
        let evicted = usual["evictions"].as_array().into_iter().flatten();
        let evicted = evicted.map(|eviction| (text(&eviction["pod"]), text(&eviction["node"])));
        let (planned, found) = (by_node(&before, evicted), by_node(&before, ended.into_iter()));
        if planned != found {
            differences.push(format!("pods that leave: rehearsed {planned:?}, found {found:?}"));
        }
        Ok(Comparison { seconds, differences })
    }
}

/// The pods from before that leave the node on which they were, by node in the order of the first one.
fn by_node(
    before: &BTreeMap<String, String>,
    ended: impl Iterator<Item = (String, String)>,
) -> Vec<(String, BTreeSet<String>)> {
    let mut by_node: Vec<(String, BTreeSet<String>)> = Vec::new();
    for (pod, node) in ended {
        if before.get(&pod) != Some(&node) {
            continue;
        }
        match by_node.iter_mut().find(|(known, _)| *known == node) {
            Some((_, pods)) => {
                pods.insert(pod);
            }
            None => by_node.push((node, [pod].into())),
        }
    }
    by_node
}

/// Pods whose deletion was requested, in order, each once: name and node.
async fn endings(client: Client, mut stopped: tokio::sync::oneshot::Receiver<()>) -> Vec<(String, String)> {
    let mut pods = watcher(Api::<Pod>::all(client), watcher::Config::default())
        .default_backoff()
        .touched_objects()
        .boxed();
    let (mut seen, mut ended) = (BTreeSet::new(), Vec::new());
    loop {
        let pod = tokio::select! {
            _ = &mut stopped => return ended,
            pod = pods.next() => pod,
        };
        let Some(Ok(pod)) = pod else { continue };
        if counts(&pod) && pod.metadata.deletion_timestamp.is_some() && seen.insert(pod.uid()) {
            ended.push((name(&pod), node(&pod)));
        }
    }
}

fn counts(pod: &Pod) -> bool {
    let namespace = pod.namespace().unwrap_or_default();
    let is_calico = pod.labels().get(CALICO.0).is_some_and(|value| value == CALICO.1);
    !NETWORKS.contains(&namespace.as_str()) && !is_calico
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

fn node(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
