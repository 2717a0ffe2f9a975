//! A spoilt cluster: the migration is refused, and nothing has changed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};

use super::{Wanted, cases, manifest};
use crate::cluster::Cluster;
use crate::cluster::pods::FLANNEL_NAMESPACE;
use crate::demo::operator::{Exit, Operator};
use crate::demo::untouched;

/// A mended cluster is whole again within this time.
const MENDED: Duration = Duration::from_mins(3);

/// Spoils the cluster as the case says, and returns what the tool answers. The cluster has to be as it was.
pub async fn refuse(cluster: &Cluster, operator: &Operator, case: &cases::Case) -> Result<String> {
    let annotations = flannels_annotations(cluster).await?;
    for change in case.spoil {
        apply(cluster, change)
            .await
            .with_context(|| format!("spoil the cluster for case {}", case.name))?;
    }
    let answer = refused(cluster, operator, case).await;
    for change in case.mend {
        apply(cluster, change)
            .await
            .with_context(|| format!("mend the cluster after case {}", case.name))?;
    }
    restore(cluster, &annotations).await?;
    let names = cluster.node_names().await;
    cluster
        .api()
        .nodes_ready(&names, MENDED)
        .await
        .context("mend the cluster")?;
    cluster
        .api()
        .rolled_out("daemonset/kube-flannel-ds", FLANNEL_NAMESPACE, MENDED)
        .await
        .context("mend the cluster")?;
    cluster
        .api()
        .kubectl(&["delete", "migrations.replumb.dev", "--all", "--wait"])
        .await
        .context("delete the Migration of the case")?;
    answer.with_context(|| format!("case {} ({})", case.name, case.about))
}

/// What flannel says of itself on every Node: some cases spoil it, and flannel mends it only when it starts.
async fn flannels_annotations(cluster: &Cluster) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
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

async fn refused(cluster: &Cluster, operator: &Operator, case: &cases::Case) -> Result<String> {
    let wanted = Wanted {
        spec: serde_json::from_str(case.spec)?,
        ..Wanted::default()
    };
    let file = operator.write_manifest(&manifest(&wanted))?;
    let before = untouched::fingerprint(cluster).await?;
    let output = operator
        .run(&["apply", "--filename", &file.to_string_lossy(), "--yes"])
        .await?;
    let after = untouched::fingerprint(cluster).await?;
    if output.exit != Exit::Refused {
        bail!(
            "expected exit code 2, found {:?}; it said:\n{}",
            output.exit,
            output.text
        );
    }
    let missing: Vec<&str> = std::iter::once(case.check)
        .chain(case.says.iter().copied())
        .filter(|word| !output.text.contains(word))
        .collect();
    if !missing.is_empty() {
        bail!(
            "the refusal does not say {}; it said:\n{}",
            missing.join(", "),
            output.text
        );
    }
    let changed = untouched::differences(&before, &after);
    if !changed.is_empty() {
        bail!(
            "it was refused and the cluster changed all the same: {}",
            changed.join("; ")
        );
    }
    Ok(output.text)
}

async fn apply(cluster: &Cluster, change: &cases::Change) -> Result<()> {
    match change {
        cases::Change::Kubectl(arguments) => cluster.api().kubectl(arguments).await.map(|_| ()),
        cases::Change::Apply(manifest) => cluster.api().apply(manifest).await,
        cases::Change::Delete(manifest) => delete(cluster, manifest).await,
        cases::Change::Node(node, script) => {
            cluster.run_in_node(node, &["sh", "-c", script]).await.map(|_| ())
        }
    }
}

async fn delete(cluster: &Cluster, manifest: &str) -> Result<()> {
    let file = cluster.directory().path().join("delete.yaml");
    std::fs::write(&file, manifest).with_context(|| format!("write {}", file.display()))?;
    cluster
        .api()
        .kubectl(&["delete", "--wait", "--filename", &file.to_string_lossy()])
        .await
        .map(|_| ())
}
