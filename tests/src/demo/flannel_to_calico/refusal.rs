//! Checks that a migration is refused in a broken cluster, and that the refusal changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};

use super::{Request, manifest};
use crate::cluster::Cluster;
use crate::cluster::pods::FLANNEL_NAMESPACE;
use crate::demo::breaking::{self, Case};
use crate::demo::operator::Operator;

/// Limit until a repaired cluster is Ready again.
const REPAIRED_WITHIN: Duration = Duration::from_mins(3);

/// Breaks the cluster as the case says, repairs it, and returns the output of the refusal.
pub async fn refuse(cluster: &Cluster, operator: &Operator, case: &Case) -> Result<String> {
    let annotations = flannel_annotations(cluster).await?;
    let request = Request {
        spec: breaking::spec(cluster, case).await?,
        ..Request::default()
    };
    let answer = breaking::break_and_repair(cluster, operator, case, &manifest(&request)).await?;
    restore(cluster, &annotations).await?;
    let names = cluster.node_names().await;
    cluster
        .api()
        .nodes_ready(&names, REPAIRED_WITHIN)
        .await
        .context("repair the cluster")?;
    cluster
        .api()
        .rolled_out("daemonset/kube-flannel-ds", FLANNEL_NAMESPACE, REPAIRED_WITHIN)
        .await
        .context("repair the cluster")?;
    let forgotten = breaking::delete_migration(cluster).await;
    let text = answer?;
    forgotten.map(|()| text)
}

/// The annotations of flannel on every Node: some cases change them, and flannel writes them only when it starts.
async fn flannel_annotations(cluster: &Cluster) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
    let nodes: Api<Node> = Api::all(cluster.api().client());
    let list = nodes.list(&ListParams::default()).await.context("list Nodes")?;
    Ok(list
        .items
        .into_iter()
        .map(|node| {
            let mut annotations = node.annotations().clone();
            annotations.retain(|key, _| key.starts_with("flannel."));
            (node.name_any(), annotations)
        })
        .collect())
}

async fn restore(cluster: &Cluster, annotations: &BTreeMap<String, BTreeMap<String, String>>) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.api().client());
    for (node, annotations) in annotations {
        let patch = serde_json::json!({ "metadata": { "annotations": annotations } });
        nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("restore flannel's annotations of Node {node}"))?;
    }
    Ok(())
}
