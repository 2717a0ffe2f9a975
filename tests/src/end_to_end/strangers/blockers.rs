//! Strangers that hold one node: the others go on, the status names the object, and the way back works although it is still there.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::NodeMigration;
use api::migration::Strategy;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::super::fair::start;
use super::super::{Looker, Tally};
use super::named::named;
use super::objects::{self, NAMESPACE};
use super::put;
use crate::cluster::Cluster;
use crate::demo::Tools;
use crate::demo::breaking::delete_migration;
use crate::demo::flannel_to_calico::{Run, Wanted};
use crate::demo::operator::Exit;

const STEP: Duration = Duration::from_mins(4);
/// `drain.timeoutSeconds`: then a node that is blocked is set aside.
const PATIENCE: u32 = 60;
/// An address outside of the cluster (RFC 5737), which an agent says that a pod of its node has.
const NONSENSE: &str = "192.0.2.77";
/// Between two lies of an agent.
const LIE_INTERVAL: Duration = Duration::from_millis(200);

/// Three times, with other strangers each time.
pub async fn cases(cluster: &Cluster, tools: &Tools, tally: &mut Tally) {
    for (name, ended) in [
        ("refusals", Box::pin(refusals(cluster, tools, tally)).await),
        (
            "pods that stay",
            Box::pin(pods_that_stay(cluster, tools, tally)).await,
        ),
        ("an agent that lies", Box::pin(lies(cluster, tools, tally)).await),
    ] {
        tally.count(format!("strangers: {name}: there and back"), ended);
    }
}

/// A migration in which nodes that are blocked are set aside.
fn by_drain() -> Wanted {
    let mut spec = super::patient_gates();
    spec["drain"] = json!({ "onBlocked": "Skip", "timeoutSeconds": PATIENCE, "force": true });
    Wanted {
        strategy: Strategy::Drain,
        spec,
        ..Wanted::default()
    }
}

async fn delete(cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    cluster
        .api()
        .kubectl(&[&["delete", "--ignore-not-found", "--wait"], arguments].concat())
        .await
        .map(drop)
}

/// A workload of the stranger's that runs.
async fn runs(cluster: &Cluster, name: &str, workload: &Value) -> Result<()> {
    put(cluster, &objects::namespace()).await?;
    put(cluster, workload).await?;
    let workload = format!("deployment/{name}");
    cluster.api().rolled_out(&workload, NAMESPACE, STEP).await
}

/// The nodes in the order in which they come.
async fn order(cluster: &Cluster, run: &Run<'_>, wanted: &Wanted) -> Result<[String; 3]> {
    let look = Looker::new(cluster);
    start(run, wanted).await?.stop().await?;
    let order = look.until_planned(STEP).await?;
    <[String; 3]>::try_from(order).map_err(|order| anyhow::anyhow!("the nodes are {order:?}, needed three"))
}

async fn is_in_work(look: &Looker, node: &str) -> Result<()> {
    look.until_node(node, "it is in work", STEP, |spec| spec.started)
        .await
        .map(drop)
}

async fn is_done(look: &Looker, node: &str) -> Result<()> {
    look.until_node(node, "it is done", STEP, |spec| spec.finished_at.is_some())
        .await
        .map(drop)
}

/// The cluster without a Migration, looked at.
async fn begin<'cluster>(cluster: &'cluster Cluster, tools: &Tools) -> Result<(Run<'cluster>, Looker)> {
    delete_migration(cluster).await?;
    Ok((Run::begin(cluster, tools).await?, Looker::new(cluster)))
}

/// Nodes go back while a policy is over another one. What is left to do then is to write to that one.
async fn go_back_under_the_policy(run: &Run<'_>, look: &Looker, nodes: [&str; 2]) -> Result<()> {
    run.scene
        .operator
        .expect(Exit::Done, &["rollback", "--all", "--yes"])
        .await?;
    for node in nodes {
        look.until_node(node, "it is back", STEP, |spec| {
            !spec.started && spec.finished_at.is_none()
        })
        .await?;
    }
    Ok(())
}

/// The policy is taken away, and everything is taken back.
async fn go_back_without_it(cluster: &Cluster, run: &Run<'_>) -> Result<()> {
    delete(cluster, &["validatingadmissionpolicybinding", "stranger"]).await?;
    run.scene.roll_back().await?;
    delete(cluster, &["validatingadmissionpolicy", "stranger"]).await
}

/// A policy denies every write to the second Node, and a webhook that nothing serves the evictions of the third.
async fn refusals(cluster: &Cluster, tools: &Tools, tally: &mut Tally) -> Result<()> {
    let (run, look) = begin(cluster, tools).await?;
    let operator = &run.scene.operator;
    let [first, second, third] = order(cluster, &run, &by_drain()).await?;
    is_in_work(&look, &first).await?;
    // The API server obeys a policy some seconds after it was made: the second node must not have begun by then.
    put(cluster, &objects::policy_over(&second)).await?;
    runs(cluster, "hooked", &objects::kept("hooked", &third)).await?;
    is_done(&look, &first).await?;
    put(cluster, &objects::eviction_webhook()).await?;
    let words = format!("the stranger's policy freezes {second}");
    tally.count(
        "strangers: named: a policy that denies one Node",
        named(operator, &[&words]).await,
    );
    is_in_work(&look, &third).await?;
    tally.count(
        "strangers: named: a webhook over evictions that nothing serves",
        named(
            operator,
            &["evictions.stranger.example", &format!("{NAMESPACE}/hooked-")],
        )
        .await,
    );
    go_back_under_the_policy(&run, &look, [&first, &third]).await?;
    tally.count(
        "strangers: named on the way back: the policy",
        named(operator, &[&words]).await,
    );
    go_back_without_it(cluster, &run).await?;
    delete(cluster, &["validatingwebhookconfiguration", "stranger"]).await?;
    delete(cluster, &["-n", NAMESPACE, "deployment", "--all"]).await
}

/// A budget over everything on the second node, which is set aside for it; on the third a pod with a finalizer, and one that comes back to a
/// cordoned node as often as it is evicted.
async fn pods_that_stay(cluster: &Cluster, tools: &Tools, tally: &mut Tally) -> Result<()> {
    let (run, look) = begin(cluster, tools).await?;
    let operator = &run.scene.operator;
    let [first, second, third] = order(cluster, &run, &by_drain()).await?;
    is_in_work(&look, &first).await?;
    runs(cluster, "held", &objects::kept("held", &second)).await?;
    runs(cluster, "endless", &objects::endless("endless", &third)).await?;
    runs(cluster, "comes-back", &objects::kept("comes-back", &third)).await?;
    put(cluster, &objects::budget_over_everything()).await?;
    is_done(&look, &first).await?;
    is_in_work(&look, &second).await?;
    tally.count(
        "strangers: named: a budget over everything",
        named(
            operator,
            &[&format!("{NAMESPACE}/everything"), &format!("{NAMESPACE}/held-")],
        )
        .await,
    );
    // The node is set aside after its time, and the third comes. Something else keeps the second from going on, so that there is a way back.
    is_in_work(&look, &third).await?;
    put(cluster, &objects::policy_over(&second)).await?;
    delete(cluster, &["-n", NAMESPACE, "pdb", "everything"]).await?;
    let finishes = is_done(&look, &third).await;
    tally.count(
        "strangers: a node finishes whose pods have a finalizer or come back to it",
        finishes,
    );
    go_back_under_the_policy(&run, &look, [&first, &third]).await?;
    go_back_without_it(cluster, &run).await?;
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

/// In place, while the agent of the first node reports a pod with an address that no pod there can have.
async fn lies(cluster: &Cluster, tools: &Tools, tally: &mut Tally) -> Result<()> {
    let (run, look) = begin(cluster, tools).await?;
    let operator = &run.scene.operator;
    let wanted = Wanted {
        strategy: Strategy::InPlace,
        // The node stays in work, since its agent may mean what it says: another one has to have a place.
        max_unavailable: "2".to_owned(),
        spec: super::patient_gates(),
    };
    let order = order(cluster, &run, &wanted).await?;
    let [first, second, third] = &order;
    let others_finish = async {
        is_in_work(&look, first).await?;
        tally.count(
            "strangers: named: an agent that reports nonsense",
            named(operator, &[NONSENSE, first]).await,
        );
        is_done(&look, second).await?;
        is_done(&look, third).await
    };
    tokio::select! {
        ended = others_finish => ended?,
        ended = lie(cluster, first) => ended?,
    }
    is_done(&look, first).await?;
    run.scene.roll_back().await
}

/// Writes into the status of a node's `NodeMigration`, as its agent, that one of its pods has another address.
async fn lie(cluster: &Cluster, node: &str) -> Result<()> {
    let objects: Api<NodeMigration> = Api::all(cluster.api().client());
    let mut tick = tokio::time::interval(LIE_INTERVAL);
    let mut lied = 0_u32;
    loop {
        tick.tick().await;
        let object = objects
            .get(node)
            .await
            .with_context(|| format!("read NodeMigration {node}"))?;
        let mut facts = serde_json::to_value(object.status.and_then(|status| status.facts))?;
        let Some(pod) = facts["legacyPods"].get_mut(0) else {
            continue;
        };
        pod["addresses"] = json!([NONSENSE]);
        let patch = json!({ "status": { "facts": { "legacyPods": facts["legacyPods"] } } });
        objects
            .patch_status(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("write the status of NodeMigration {node}"))?;
        lied += 1;
        ensure!(
            lied < 6_000,
            "the agent of node {node} has reported nonsense {lied} times"
        );
    }
}
