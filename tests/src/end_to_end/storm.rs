//! Many disturbances of one migration: the coordinator is killed, the API server is unavailable, a budget blocks, a node loses
//! power while it is migrated, a node joins, a node is deleted.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use api::migration::MigrationPhase;

use super::coordinator::kill_coordinator;
use super::fair::is_completed;
use super::migration_reader::MigrationReader;
use super::{Tally, metrics};
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::Tools;
use crate::demo::flannel_to_calico::report::Report;
use crate::demo::flannel_to_calico::{Request, Run};
use crate::demo::operator::Exit;

const STEP: Duration = Duration::from_mins(6);
const WHOLE: Duration = Duration::from_mins(25);
/// Duration of the API server's outage.
const OUTAGE: Duration = Duration::from_mins(1);
/// Longest time until a blocking object is named everywhere.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);
/// The node that joins during the migration.
const JOINER: &str = "lab-worker-9";

/// Every disturbance. Requires at least five nodes.
pub async fn storm(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let Some(mut run) = tally.count("storm: begin", Run::begin(cluster, tools).await) else {
        return tally;
    };
    let reader = MigrationReader::new(cluster);
    let Some(watch) = tally.count("storm: start", run.start(&request()).await) else {
        return tally;
    };
    let Some(order) = tally.count("storm: the plan has an order", order(&reader).await) else {
        return tally;
    };
    let (first, blocked, unplugged) = (&order[0], &order[2], &order[3]);
    // The second last node: never the coordinator's own node, which must keep running.
    let deleted = &order[order.len() - 2];

    tally.count("storm: a budget blocks a node", pin(cluster, blocked).await);
    tally.count("storm: another node joins", cluster.node_add(JOINER).await);
    tally.count(
        "storm: the coordinator is killed while a node is migrated",
        kill_during_node(cluster, &reader, first).await,
    );
    tally.count(
        "storm: the API server is unavailable for 60 s",
        outage(cluster, &reader, first).await,
    );
    // After the outage every Node may count as NotReady: then all pods count as not Ready, and DNS does not answer for up to a
    // minute. The rollout rightly halts, and the user resumes it afterwards.
    let resumed = async {
        let status = reader.migration().await?.status.unwrap_or_default();
        if status.reason == "GateBreached" {
            run.scene.operator.expect(Exit::Done, &["resume"]).await?;
        }
        anyhow::Ok(())
    };
    tally.count("storm: the halted rollout is resumed", resumed.await);
    tally.count(
        "storm: a blocking budget is named within 10 s",
        verify_reported(cluster, &reader, blocked).await,
    );
    // Until its return the node uses the second place of maxUnavailable: no further node is started.
    tally.count(
        "storm: a node loses power while it is migrated, and the rollout waits",
        power_off(cluster, &reader, unplugged).await,
    );
    run.scene.forget(unplugged);
    tally.count(
        "storm: a waiting node loses power, and the rollout halts",
        power_off_waiting(cluster, &reader, deleted).await,
    );
    let resumed = async {
        cluster.node_delete(deleted).await?;
        run.scene
            .operator
            .expect(Exit::Done, &["resume"])
            .await
            .map(|_| ())
    };
    tally.count("storm: the rollout is resumed without this node", resumed.await);
    let returns = async {
        cluster.node_power_on(unplugged).await?;
        reader
            .until_node(unplugged, "migrated after its return", STEP, |spec| {
                spec.finished_at.is_some()
            })
            .await
    };
    tally.count(
        "storm: the half-migrated node returns and is migrated",
        returns.await,
    );
    tally.count("storm: the budget is deleted", unpin(cluster).await);
    let completed = reader
        .until_migration("the Migration is completed", WHOLE, is_completed)
        .await;
    if tally.count("storm: completed", completed).is_none() {
        return tally;
    }
    let joined = reader
        .until_node(JOINER, "migrated", REPORTED_WITHIN, |spec| {
            spec.finished_at.is_some()
        })
        .await;
    tally.count("storm: the node that joined is migrated", joined);
    let gone = match reader.node_migration(deleted).await {
        Ok(_) => Err(anyhow::anyhow!("NodeMigration {deleted} still exists")),
        Err(_) => Ok(()),
    };
    tally.count("storm: the deleted node has no NodeMigration", gone);
    let report = async {
        let report = run.report(watch).await?;
        println!("{}", report.text());
        check_others(&report)
    };
    tally.count(
        "storm: nothing of flannel remains, and no foreign entry has changed",
        report.await,
    );
    tally
}

/// Checks that the report has no fault except lost probes: nodes without power lose them.
fn check_others(report: &Report) -> Result<()> {
    let others = report.problems.iter();
    let others: Vec<&String> = others
        .filter(|problem| !problem.contains("lost probes"))
        .collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

/// Two nodes at a time.
fn request() -> Request {
    Request {
        max_unavailable: "2".to_owned(),
        // During the API server's outage and shortly after, nodes do not learn which pods have ended: Services and DNS lose
        // single answers, and with the default gates the rollout would halt. With these gates only a lasting outage halts it.
        spec: serde_json::json!({ "gates": { "maxLossRatio": 0.9, "maxGapMilliseconds": 5000 } }),
        ..Request::default()
    }
}

async fn order(reader: &MigrationReader) -> Result<Vec<String>> {
    reader
        .until_migration("the Migration has started", STEP, |migration| {
            migration
                .status
                .as_ref()
                .is_some_and(|status| status.phase >= MigrationPhase::Preparing)
        })
        .await?;
    let order = reader.order().await?;
    ensure!(
        order.len() >= 5,
        "nodes in the plan: found {}, needed at least 5",
        order.len()
    );
    Ok(order)
}

/// Creates a workload that can run on one node only, and a budget that requires its pod.
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

/// Kills the coordinator while a node is migrated, and waits until it has restarted.
async fn kill_during_node(cluster: &Cluster, reader: &MigrationReader, node: &str) -> Result<()> {
    reader
        .until_node(node, "being migrated", STEP, |spec| {
            spec.started && spec.step.is_some()
        })
        .await?;
    kill_coordinator(cluster, reader).await
}

/// Stops the API server for a minute. Afterwards the migration of the node continues.
async fn outage(cluster: &Cluster, reader: &MigrationReader, node: &str) -> Result<()> {
    cluster.stop_api_server().await?;
    // The case needs this time to pass.
    tokio::time::sleep(OUTAGE).await;
    cluster.start_api_server().await?;
    reader
        .until_node(node, "migrated after the outage", STEP, |spec| {
            spec.finished_at.is_some()
        })
        .await?;
    Ok(())
}

/// Checks that within 10 s of the first refusal the status of the node and of the Migration, an Event and a metric name the
/// budget.
async fn verify_reported(cluster: &Cluster, reader: &MigrationReader, node: &str) -> Result<()> {
    let spec = reader
        .until_node(node, "blocked by the budget", STEP, |spec| {
            // CoreDNS has a budget as well, which blocks for some seconds.
            spec.step.as_ref().is_some_and(|step| {
                step.reason == "DisruptionBudget" && step.message.contains("sample/pinned")
            })
        })
        .await?;
    let step = spec.step.context("the node has no step")?;
    for word in ["sample/pinned", "PodDisruptionBudget"] {
        ensure!(
            step.message.contains(word),
            "the step does not contain {word}: {}",
            step.message
        );
    }
    let (_, coordinator_node, _) = reader.coordinator().await?;
    let address = cluster.node_address(&coordinator_node).await?;
    until(
        "the budget is named everywhere",
        REPORTED_WITHIN,
        &cluster.directory().logs(),
        async || {
            let status = reader.migration().await?.status.unwrap_or_default();
            if !status.message.contains("sample/pinned") {
                return Ok(Observation::NotYet(format!(
                    "message of the Migration: {}",
                    status.message
                )));
            }
            let events = reader.events("Node", node).await?;
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
                    other => Observation::NotYet(format!("value of the metric: {other:?}")),
                },
            )
        },
    )
    .await
}

/// Switches the node off while its old network is removed.
async fn power_off(cluster: &Cluster, reader: &MigrationReader, node: &str) -> Result<()> {
    reader
        .until_node(node, "between the two networks", STEP, |spec| {
            spec.step
                .as_ref()
                .is_some_and(|step| !matches!(step.name.as_str(), "Cordon" | "Drain"))
        })
        .await?;
    cluster.node_power_off(node).await?;
    let waits = reader
        .until_node(node, "NodeNotReady", STEP, |spec| {
            spec.step
                .as_ref()
                .is_some_and(|step| step.reason == "NodeNotReady")
                || spec.finished_at.is_some()
        })
        .await?;
    if waits.finished_at.is_some() {
        bail!("node {node} was migrated before it lost power");
    }
    ensure!(
        !waits.step.context("the node has no step")?.halted,
        "node {node} has no power and halted the migration"
    );
    Ok(())
}

/// Switches a waiting node off: a broken path and a dead node look the same, so lost traffic halts the rollout.
async fn power_off_waiting(cluster: &Cluster, reader: &MigrationReader, node: &str) -> Result<()> {
    cluster.node_power_off(node).await?;
    let migration = reader
        .until_migration("the gate has halted the rollout", STEP, |migration| {
            migration
                .status
                .as_ref()
                .is_some_and(|status| status.phase == MigrationPhase::Halted)
        })
        .await?;
    let status = migration.status.context("the Migration has no status")?;
    println!("        {}", status.message);
    ensure!(
        status.reason == "GateBreached" && status.message.contains("traffic is lost"),
        "the reason of the halt is {}: {}",
        status.reason,
        status.message
    );
    // Before, its pods are endpoints of their Services, and some requests to these Services are lost.
    until(
        &format!("Node {node} is NotReady"),
        STEP,
        &cluster.directory().logs(),
        async || {
            let nodes = cluster.api().nodes().await?;
            let (_, trouble) = nodes
                .into_iter()
                .find(|(name, _)| name == node)
                .context("the Node does not exist")?;
            Ok(trouble.map_or_else(
                || Observation::NotYet("Ready".to_owned()),
                |_| Observation::Done(()),
            ))
        },
    )
    .await
}
