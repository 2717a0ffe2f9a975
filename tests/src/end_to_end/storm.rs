//! Bad weather, all in one migration: the coordinator is killed, the API server goes away, a budget blocks, a node loses
//! its power in mid-work, one joins, one is deleted.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::migration::MigrationPhase;

use super::coordinator::kill_coordinator;
use super::fair::{is_completed, start};
use super::look::Looker;
use super::{Tally, metrics};
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::Tools;
use crate::demo::flannel_to_calico::{Run, Wanted};
use crate::demo::operator::Exit;

const STEP: Duration = Duration::from_mins(6);
const WHOLE: Duration = Duration::from_mins(25);
/// How long the API server is away.
const OUTAGE: Duration = Duration::from_mins(1);
/// Within this time a block has to be named everywhere.
const TOLD: Duration = Duration::from_secs(10);
/// The node that joins midway.
const JOINER: &str = "lab-worker-9";

/// Every storm. Needs at least five nodes.
pub async fn storm(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let Some(mut run) = tally.count("storm: begin", Run::begin(cluster, tools).await) else {
        return tally;
    };
    let look = Looker::new(cluster);
    let wanted = Wanted {
        max_unavailable: "2".to_owned(),
        // While the API server is away and for a while after, nodes do not hear which pods have ended: Services and DNS lose
        // single answers in truth, and by the default that would stop the rollout. Here only what is gone for good does.
        spec: serde_json::json!({ "gates": { "maxLossRatio": 0.9, "maxGapMilliseconds": 5000 } }),
        ..Wanted::default()
    };
    let Some(watch) = tally.count("storm: start", start(&run, &wanted).await) else {
        return tally;
    };
    let Some(order) = tally.count("storm: the plan has an order", order(&look).await) else {
        return tally;
    };
    let (first, blocked, unplugged) = (&order[0], &order[2], &order[3]);
    // The last but one: never the coordinator's own node, whose power is needed.
    let deleted = &order[order.len() - 2];

    tally.count("storm: a budget is put in the way", pin(cluster, blocked).await);
    tally.count("storm: a node joins midway", cluster.node_add(JOINER).await);
    tally.count(
        "storm: the coordinator is killed in mid-node",
        kill_in_mid_node(cluster, &look, first).await,
    );
    tally.count(
        "storm: 60 s without API server",
        outage(cluster, &look, first).await,
    );
    // Once it is back every Node may have been silent for too long: all pods are taken for not Ready, and DNS has no answer for up
    // to a minute. The rollout stops for it, rightly, and a person who sees that it is over goes on.
    let goes_on = async {
        let status = look.migration().await?.status.unwrap_or_default();
        if status.reason == "GateBreached" {
            run.scene.operator.expect(Exit::Done, &["resume"]).await?;
        }
        anyhow::Ok(())
    };
    tally.count("storm: what the outage stopped is resumed", goes_on.await);
    tally.count(
        "storm: a blocking budget is named within 10 s",
        is_told(cluster, &look, blocked).await,
    );
    // From here to its return it holds the second seat: nobody else is started.
    tally.count(
        "storm: a node loses its power in mid-work, and is waited for",
        power_off(cluster, &look, unplugged).await,
    );
    run.scene.forget(unplugged);
    tally.count(
        "storm: a node whose turn has not come loses its power, and the rollout stops",
        dies(cluster, &look, deleted).await,
    );
    let goes_on = async {
        cluster.node_delete(deleted).await?;
        run.scene
            .operator
            .expect(Exit::Done, &["resume"])
            .await
            .map(|_| ())
    };
    tally.count("storm: it is deleted, and the rollout resumed", goes_on.await);
    let returns = async {
        cluster.node_power_on(unplugged).await?;
        look.until_node(unplugged, "finished after it came back", STEP, |spec| {
            spec.finished_at.is_some()
        })
        .await
    };
    tally.count(
        "storm: the node in mid-work comes back and is finished",
        returns.await,
    );
    tally.count("storm: the budget is taken away", unpin(cluster).await);
    let completed = look
        .until_migration("the Migration is completed", WHOLE, is_completed)
        .await;
    if tally.count("storm: completed", completed).is_none() {
        return tally;
    }
    let joined = look
        .until_node(JOINER, "is migrated", TOLD, |spec| spec.finished_at.is_some())
        .await;
    tally.count("storm: the node that joined is migrated", joined);
    let gone = match look.node_migration(deleted).await {
        Ok(_) => Err(anyhow::anyhow!("NodeMigration {deleted} is still there")),
        Err(_) => Ok(()),
    };
    tally.count("storm: the node that was deleted is forgotten", gone);
    let report = async {
        let report = run.report(watch).await?;
        println!("{}", report.text());
        ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
        Ok(())
    };
    tally.count(
        "storm: nothing of flannel is left, nothing of anybody else has changed",
        report.await,
    );
    tally
}

async fn order(look: &Looker) -> Result<Vec<String>> {
    look.until_migration("the Migration has started", STEP, |migration| {
        migration
            .status
            .as_ref()
            .is_some_and(|status| status.phase >= MigrationPhase::Preparing)
    })
    .await?;
    let order = look.order().await?;
    ensure!(
        order.len() >= 5,
        "the storm needs five nodes, there are {}",
        order.len()
    );
    Ok(order)
}

/// A workload that can run on one node only, and a budget that wants it to run.
async fn pin(cluster: &Cluster, node: &str) -> Result<()> {
    let busybox = crate::cluster::Images::default().busybox;
    cluster
        .api()
        .apply(&format!(
            "
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: pinned, namespace: sample }}
spec:
  replicas: 1
  selector: {{ matchLabels: {{ app: pinned }} }}
  template:
    metadata: {{ labels: {{ app: pinned }} }}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {{ kubernetes.io/hostname: {node} }}
      containers:
        - {{ name: pinned, image: '{busybox}', imagePullPolicy: Never, command: [sh, -c, 'sleep 86400'] }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{ name: pinned, namespace: sample }}
spec: {{ minAvailable: 1, selector: {{ matchLabels: {{ app: pinned }} }} }}
"
        ))
        .await?;
    cluster
        .api()
        .rolled_out("deployment/pinned", "sample", STEP)
        .await
}

async fn unpin(cluster: &Cluster) -> Result<()> {
    cluster
        .api()
        .kubectl(&[
            "-n",
            "sample",
            "delete",
            "poddisruptionbudget,deployment",
            "pinned",
        ])
        .await
        .map(|_| ())
}

/// The coordinator is killed while a node is in work. It comes back, and goes on.
async fn kill_in_mid_node(cluster: &Cluster, look: &Looker, node: &str) -> Result<()> {
    look.until_node(node, "in work", STEP, |spec| spec.started && spec.step.is_some())
        .await?;
    kill_coordinator(cluster, look).await
}

/// Nobody is answered for a minute. What was in work goes on afterwards.
async fn outage(cluster: &Cluster, look: &Looker, node: &str) -> Result<()> {
    cluster.stop_api_server().await?;
    // The length of the outage is the case.
    tokio::time::sleep(OUTAGE).await;
    cluster.start_api_server().await?;
    look.until_node(node, "finished after the outage", STEP, |spec| {
        spec.finished_at.is_some()
    })
    .await?;
    Ok(())
}

/// Within 10 s of the first refusal: status of the node and of the Migration, an Event, a metric.
async fn is_told(cluster: &Cluster, look: &Looker, node: &str) -> Result<()> {
    let spec = look
        .until_node(node, "blocked by the budget", STEP, |spec| {
            // CoreDNS has a budget as well, which blocks for some seconds.
            spec.step.as_ref().is_some_and(|step| {
                step.reason == "DisruptionBudget" && step.message.contains("sample/pinned")
            })
        })
        .await?;
    let step = spec.step.context("its step")?;
    for word in ["sample/pinned", "PodDisruptionBudget"] {
        ensure!(
            step.message.contains(word),
            "the step does not name {word}: {}",
            step.message
        );
    }
    let (_, home, _) = look.coordinator().await?;
    let address = cluster.node_address(&home).await?;
    until(
        "the budget is named everywhere",
        TOLD,
        &cluster.directory().logs(),
        async || {
            let status = look.migration().await?.status.unwrap_or_default();
            if !status.message.contains("sample/pinned") {
                return Ok(Observation::NotYet(format!(
                    "the Migration says: {}",
                    status.message
                )));
            }
            let events = look.events("Node", node).await?;
            if !events
                .iter()
                .any(|(reason, note)| reason == "DisruptionBudget" && note.contains("sample/pinned"))
            {
                return Ok(Observation::NotYet(format!("Events of the Node: {events:?}")));
            }
            let samples = metrics::samples(&metrics::scrape(address, api::names::COORDINATOR_PORT).await?);
            Ok(
                match samples.get("replumb_blocked{reason=\"DisruptionBudget\"}") {
                    Some(value) if *value >= 1.0 => Observation::Done(()),
                    other => Observation::NotYet(format!("the metric is {other:?}")),
                },
            )
        },
    )
    .await
}

/// Power off while the old network is being removed.
async fn power_off(cluster: &Cluster, look: &Looker, node: &str) -> Result<()> {
    look.until_node(node, "between the networks", STEP, |spec| {
        spec.step
            .as_ref()
            .is_some_and(|step| !matches!(step.name.as_str(), "Cordon" | "Drain"))
    })
    .await?;
    cluster.node_power_off(node).await?;
    let waits = look
        .until_node(node, "waited for", STEP, |spec| {
            spec.step
                .as_ref()
                .is_some_and(|step| step.reason == "NodeNotReady")
                || spec.finished_at.is_some()
        })
        .await?;
    if waits.finished_at.is_some() {
        bail!("node {node} was finished before its power was gone");
    }
    ensure!(
        !waits.step.context("its step")?.halted,
        "a node without power halted the migration"
    );
    Ok(())
}

/// Whether a path is broken or its end is dead nobody can tell: traffic stops the rollout, and a person looks.
async fn dies(cluster: &Cluster, look: &Looker, node: &str) -> Result<()> {
    cluster.node_power_off(node).await?;
    let migration = look
        .until_migration("traffic has stopped the rollout", STEP, |migration| {
            migration
                .status
                .as_ref()
                .is_some_and(|status| status.phase == MigrationPhase::Halted)
        })
        .await?;
    let status = migration.status.context("its status")?;
    println!("        {}", status.message);
    ensure!(
        status.reason == "GateBreached" && status.message.contains("traffic is lost"),
        "it is stopped by {}: {}",
        status.reason,
        status.message
    );
    // Before that its pods stand behind their Services, and some of what is sent to those is lost in truth.
    until(
        &format!("Node {node} is NotReady"),
        STEP,
        &cluster.directory().logs(),
        async || {
            let nodes = cluster.api().nodes().await?;
            let (_, trouble) = nodes
                .into_iter()
                .find(|(name, _)| name == node)
                .context("there is no such Node")?;
            Ok(trouble.map_or_else(
                || Observation::NotYet("Ready".to_owned()),
                |_| Observation::Done(()),
            ))
        },
    )
    .await
}
