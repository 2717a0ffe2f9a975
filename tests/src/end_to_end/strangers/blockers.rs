//! Foreign objects that block one node: the other nodes are migrated, the status names the object, and the rollback works
//! although the object still exists.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::NodeMigration;
use api::migration::Strategy;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::super::{MigrationReader, Tally};
use super::named::named;
use super::objects::{self, NAMESPACE};
use super::put;
use crate::cluster::Cluster;
use crate::demo::Tools;
use crate::demo::breaking::delete_migration;
use crate::demo::flannel_to_calico::{Request, Run};
use crate::demo::operator::Exit;

const STEP: Duration = Duration::from_mins(4);
/// `drain.timeoutSeconds`: after this time a blocked node is skipped.
const DRAIN_TIMEOUT: u32 = 60;
/// An address outside the cluster (RFC 5737), which an agent reports as the address of a pod of its node.
const FALSE_ADDRESS: &str = "192.0.2.77";
/// Time between two false reports of an agent.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Three migrations with rollbacks, each with other foreign objects.
pub async fn cases(cluster: &Cluster, tools: &Tools, tally: &mut Tally) {
    for (name, ended) in [
        ("refusals", Box::pin(refusals(cluster, tools, tally)).await),
        (
            "pods that do not end",
            Box::pin(pods_that_stay(cluster, tools, tally)).await,
        ),
        (
            "an agent with false reports",
            Box::pin(false_reports(cluster, tools, tally)).await,
        ),
    ] {
        tally.count(format!("strangers: {name}: migration and rollback"), ended);
    }
}

/// A migration that skips blocked nodes.
fn by_drain() -> Request {
    let mut spec = super::patient_gates();
    spec["drain"] = json!({ "onBlocked": "Skip", "timeoutSeconds": DRAIN_TIMEOUT, "force": true });
    Request {
        strategy: Strategy::Drain,
        spec,
        ..Request::default()
    }
}

async fn delete(cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    cluster
        .api()
        .kubectl(&[&["delete", "--ignore-not-found", "--wait"], arguments].concat())
        .await
        .map(drop)
}

/// Creates a workload of the stranger and waits until it runs.
async fn runs(cluster: &Cluster, name: &str, workload: &Value) -> Result<()> {
    put(cluster, &objects::namespace()).await?;
    put(cluster, workload).await?;
    let workload = format!("deployment/{name}");
    cluster.api().rolled_out(&workload, NAMESPACE, STEP).await
}

/// Starts the migration; returns the nodes in the order of the plan.
async fn order(cluster: &Cluster, run: &Run<'_>, request: &Request) -> Result<[String; 3]> {
    let reader = MigrationReader::new(cluster);
    run.start(request).await?.stop().await?;
    let order = reader.until_planned(STEP).await?;
    <[String; 3]>::try_from(order)
        .map_err(|order| anyhow::anyhow!("nodes in the plan: found {order:?}, needed three"))
}

async fn until_admitted(reader: &MigrationReader, node: &str) -> Result<()> {
    reader
        .until_node(node, "the start", STEP, |spec| spec.started)
        .await
        .map(drop)
}

async fn until_finished(reader: &MigrationReader, node: &str) -> Result<()> {
    reader
        .until_node(node, "migrated", STEP, |spec| spec.finished_at.is_some())
        .await
        .map(drop)
}

/// Deletes the Migration of an earlier case, and observes the cluster.
async fn begin<'cluster>(
    cluster: &'cluster Cluster,
    tools: &Tools,
) -> Result<(Run<'cluster>, MigrationReader)> {
    delete_migration(cluster).await?;
    Ok((Run::begin(cluster, tools).await?, MigrationReader::new(cluster)))
}

/// Rolls these nodes back while a policy denies writes to another Node. After that only that Node remains.
async fn roll_back_under_the_policy(run: &Run<'_>, reader: &MigrationReader, nodes: [&str; 2]) -> Result<()> {
    run.scene
        .operator
        .expect(Exit::Done, &["rollback", "--all", "--yes"])
        .await?;
    for node in nodes {
        reader
            .until_node(node, "rolled back", STEP, |spec| {
                !spec.started && spec.finished_at.is_none()
            })
            .await?;
    }
    Ok(())
}

/// Deletes the policy, and rolls everything back.
async fn roll_back_without_the_policy(cluster: &Cluster, run: &Run<'_>) -> Result<()> {
    delete(cluster, &["validatingadmissionpolicybinding", "stranger"]).await?;
    run.scene.roll_back().await?;
    delete(cluster, &["validatingadmissionpolicy", "stranger"]).await
}

/// A policy denies every write to the second Node, and a webhook without a server refuses the evictions of the third node.
async fn refusals(cluster: &Cluster, tools: &Tools, tally: &mut Tally) -> Result<()> {
    let (run, reader) = begin(cluster, tools).await?;
    let operator = &run.scene.operator;
    let [first, second, third] = order(cluster, &run, &by_drain()).await?;
    until_admitted(&reader, &first).await?;
    // The API server enforces a policy some seconds after its creation: the second node must not have started before.
    put(cluster, &objects::policy_over(&second)).await?;
    runs(cluster, "hooked", &objects::kept("hooked", &third)).await?;
    until_finished(&reader, &first).await?;
    put(cluster, &objects::eviction_webhook()).await?;
    let words = format!("the stranger's policy freezes {second}");
    tally.count(
        "strangers: named: a policy that denies one Node",
        named(operator, &[&words]).await,
    );
    until_admitted(&reader, &third).await?;
    tally.count(
        "strangers: named: a webhook for evictions without a server",
        named(
            operator,
            &["evictions.stranger.example", &format!("{NAMESPACE}/hooked-")],
        )
        .await,
    );
    roll_back_under_the_policy(&run, &reader, [&first, &third]).await?;
    tally.count(
        "strangers: named during the rollback: the policy",
        named(operator, &[&words]).await,
    );
    roll_back_without_the_policy(cluster, &run).await?;
    delete(cluster, &["validatingwebhookconfiguration", "stranger"]).await?;
    delete(cluster, &["-n", NAMESPACE, "deployment", "--all"]).await
}

/// A budget for all pods blocks the second node, which is skipped; the third node has a pod with a finalizer, and a pod that its
/// Deployment creates again on the cordoned node after each eviction.
async fn pods_that_stay(cluster: &Cluster, tools: &Tools, tally: &mut Tally) -> Result<()> {
    let (run, reader) = begin(cluster, tools).await?;
    let operator = &run.scene.operator;
    let [first, second, third] = order(cluster, &run, &by_drain()).await?;
    until_admitted(&reader, &first).await?;
    runs(cluster, "held", &objects::kept("held", &second)).await?;
    runs(cluster, "endless", &objects::endless("endless", &third)).await?;
    runs(cluster, "comes-back", &objects::kept("comes-back", &third)).await?;
    put(cluster, &objects::budget_over_everything()).await?;
    until_finished(&reader, &first).await?;
    until_admitted(&reader, &second).await?;
    tally.count(
        "strangers: named: a budget for all pods",
        named(
            operator,
            &[&format!("{NAMESPACE}/everything"), &format!("{NAMESPACE}/held-")],
        )
        .await,
    );
    // The second node is skipped after the timeout, and the third one starts. A policy keeps blocking the second node until the
    // rollback.
    until_admitted(&reader, &third).await?;
    put(cluster, &objects::policy_over(&second)).await?;
    delete(cluster, &["-n", NAMESPACE, "pdb", "everything"]).await?;
    let finished = until_finished(&reader, &third).await;
    tally.count(
        "strangers: a node is migrated although its pods have a finalizer or return to it",
        finished,
    );
    roll_back_under_the_policy(&run, &reader, [&first, &third]).await?;
    roll_back_without_the_policy(cluster, &run).await?;
    let pods = cluster
        .api()
        .kubectl(&["-n", NAMESPACE, "get", "pods", "-l", "app=endless", "-o", "name"])
        .await?;
    delete(
        cluster,
        &["-n", NAMESPACE, "deployment", "endless", "--cascade=orphan"],
    )
    .await?;
    for pod in pods.split_whitespace() {
        let finalizers = r#"{"metadata":{"finalizers":null}}"#;
        let patch = ["-n", NAMESPACE, "patch", pod, "--type=merge", "-p", finalizers];
        cluster.api().kubectl(&patch).await?;
    }
    delete(cluster, &["-n", NAMESPACE, "pods", "-l", "app=endless"]).await?;
    delete(cluster, &["-n", NAMESPACE, "deployment", "--all"]).await
}

/// In place, while the agent of the first node reports a pod with an address that no pod of the node can have.
async fn false_reports(cluster: &Cluster, tools: &Tools, tally: &mut Tally) -> Result<()> {
    let (run, reader) = begin(cluster, tools).await?;
    let operator = &run.scene.operator;
    let request = Request {
        strategy: Strategy::InPlace,
        // The first node is not finished while its agent reports the address: the other nodes need a place of maxUnavailable.
        max_unavailable: "2".to_owned(),
        spec: super::patient_with_bridge(),
    };
    let order = order(cluster, &run, &request).await?;
    let [first, second, third] = &order;
    let others_finish = async {
        until_admitted(&reader, first).await?;
        tally.count(
            "strangers: named: an agent with false reports",
            named(operator, &[FALSE_ADDRESS, first]).await,
        );
        until_finished(&reader, second).await?;
        until_finished(&reader, third).await
    };
    tokio::select! {
        ended = others_finish => ended?,
        ended = report_falsely(cluster, first) => ended?,
    }
    until_finished(&reader, first).await?;
    run.scene.roll_back().await
}

/// Writes another address of one pod into the status of a node's `NodeMigration`, as its agent.
async fn report_falsely(cluster: &Cluster, node: &str) -> Result<()> {
    let objects: Api<NodeMigration> = Api::all(cluster.api().client());
    let mut tick = tokio::time::interval(REPORT_INTERVAL);
    let mut reports = 0_u32;
    loop {
        tick.tick().await;
        let object = objects
            .get(node)
            .await
            .with_context(|| format!("read NodeMigration {node}"))?;
        let mut facts =
            serde_json::to_value(object.status.and_then(|status| status.flannel_to_calico?.facts))?;
        let Some(pod) = facts["legacyPods"].get_mut(0) else {
            continue;
        };
        pod["addresses"] = json!([FALSE_ADDRESS]);
        let patch =
            json!({ "status": { "flannelToCalico": { "facts": { "legacyPods": facts["legacyPods"] } } } });
        objects
            .patch_status(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("write the status of NodeMigration {node}"))?;
        reports += 1;
        ensure!(
            reports < 6_000,
            "false reports of the agent of node {node}: {reports}"
        );
    }
}
