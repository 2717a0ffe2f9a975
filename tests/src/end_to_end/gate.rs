//! Traffic as the gate: a migrated node drops one class of packets, and then some packets of every class. Each time the rollout
//! halts and names the path, no node is started meanwhile, and the rollout continues after a correction and a resume. While it is
//! halted, another program changes objects of the migration.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::Migration;
use api::migration::MigrationPhase;
use engine::traffic::PathClass;

use super::Tally;
use super::drift::{foreign_changes, harmful_foreign_changes};
use super::in_place::verify_no_disruption;
use super::migration_reader::MigrationReader;
use crate::cluster::Cluster;
use crate::demo::flannel_to_calico::{Request, Run};
use crate::demo::operator::Exit;
use crate::demo::{MIGRATION, Tools};

const STEP: Duration = Duration::from_mins(3);
/// Longest time from the first dropped packet until the Migration is halted. The documented limit is 5 s, and docs/limits.md has
/// the measured times; the rest is a reserve for a busy machine.
const HALTED_WITHIN: Duration = Duration::from_secs(10);
/// `canary.soakSeconds`: the next node starts only after this time.
const SOAK: u64 = 20;
/// Packets to pods of Calico that are dropped: only the probes of traffic pods, so that the lab's own traffic proves that no
/// other packet is lost.
const LARGE: &str = "udp dport 9812 meta length > 1400 drop";
const SOME: &str = "udp dport 9812 numgen random mod 4 == 0 drop";

/// Migrates three nodes in place.
pub async fn gate(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let Some(run) = tally.count("gate: begin", Run::begin(cluster, tools).await) else {
        return tally;
    };
    let reader = MigrationReader::new(cluster);
    let request = Request {
        strategy: api::migration::Strategy::InPlace,
        spec: serde_json::json!({
            "flannelToCalico": { "legacyPods": "Keep" },
            "rollout": { "canary": { "nodes": 1, "soakSeconds": SOAK } },
        }),
        ..Request::default()
    };
    let Some(watch) = tally.count("gate: start", run.start(&request).await) else {
        return tally;
    };
    let Some((canary, next)) = tally.count(
        "gate: the canary is migrated, and its traffic is watched",
        canary(&reader).await,
    ) else {
        return tally;
    };
    tally.count(
        "gate: one class of packets is dropped, and the rollout halts and names it",
        drop_until_halted(cluster, &reader, &canary, LARGE, "full-MTU UDP from node").await,
    );
    tally.count(
        "gate: an Event and the status name it",
        verify_reports(&run, &reader).await,
    );
    tally.count(
        "gate: no node starts while the rollout is halted",
        verify_no_start(&reader, &next).await,
    );
    let resumed = async {
        stop_dropping(cluster, &canary).await?;
        run.scene.operator.expect(Exit::Done, &["resume"]).await?;
        reader
            .until_migration("the rollout continues", STEP, |migration| {
                phase(migration) == MigrationPhase::Rolling
            })
            .await
    };
    tally.count(
        "gate: after a correction and a resume the soak of the canary restarts",
        resumed.await,
    );
    tally.count(
        "gate: a part of all packets is dropped, and the rollout halts and names a path",
        drop_until_halted(cluster, &reader, &canary, SOME, "UDP from node").await,
    );
    tally.add(foreign_changes(cluster, &reader, &canary, &next).await);
    let ended = async {
        stop_dropping(cluster, &canary).await?;
        run.scene
            .operator
            .expect_within(Exit::Done, &["resume", "--wait"], 3 * STEP)
            .await
            .map(|_| ())
    };
    tally.count(
        "gate: after a correction and a resume every node changes to Calico",
        ended.await,
    );
    tally.count(
        "gate: no pod was moved, and no other packet was lost",
        verify_no_disruption(&run, watch, &[]).await,
    );
    tally.add(harmful_foreign_changes(cluster, &reader, &canary, &next).await);
    tally
}

fn phase(migration: &Migration) -> MigrationPhase {
    migration
        .status
        .as_ref()
        .map(|status| status.phase)
        .unwrap_or_default()
}

/// The first and the second node, once the second node's traffic pod sends to the pod of Calico on the first node.
async fn canary(reader: &MigrationReader) -> Result<(String, String)> {
    let order = reader.until_planned(STEP).await?;
    let (canary, next) = (order.first(), order.get(1));
    let (canary, next) = canary.zip(next).context("the plan has fewer than two nodes")?;
    reader.until_watched(next, PathClass::OldToNew, STEP).await?;
    ensure!(
        reader.node_migration(canary).await?.finished_at.is_some(),
        "node {canary} is not migrated"
    );
    Ok((canary.clone(), next.clone()))
}

/// Drops these packets to Calico's pods on this node, and waits until the Migration is halted and names the path.
async fn drop_until_halted(
    cluster: &Cluster,
    reader: &MigrationReader,
    node: &str,
    what: &str,
    class: &str,
) -> Result<()> {
    let rules = format!(
        "add table inet lab_gate
add chain inet lab_gate forward {{ type filter hook forward priority -10; }}
add rule inet lab_gate forward oifname \"cali*\" {what}"
    );
    let started = Instant::now();
    cluster
        .run_in_node(node, &["sh", "-c", &format!("echo '{rules}' | nft -f -")])
        .await?;
    let migration = reader
        .until_migration("the Migration is halted", STEP, |migration| {
            phase(migration) == MigrationPhase::Halted
        })
        .await?;
    let took = started.elapsed();
    let status = migration.status.context("the Migration has no status")?;
    println!("        after {:.1} s: {}", took.as_secs_f64(), status.message);
    ensure!(
        status.reason == "GateBreached" && status.paused,
        "the reason of the halt is {}: {}",
        status.reason,
        status.message
    );
    for word in [class, &format!("to node {node} ")] {
        ensure!(
            status.message.contains(word),
            "the message does not contain {word:?}: {}",
            status.message
        );
    }
    ensure!(
        took <= HALTED_WITHIN,
        "time until the halt: found {:.1} s, needed at most {} s",
        took.as_secs_f64(),
        HALTED_WITHIN.as_secs()
    );
    Ok(())
}

async fn stop_dropping(cluster: &Cluster, node: &str) -> Result<()> {
    cluster
        .run_in_node(node, &["nft", "delete", "table", "inet", "lab_gate"])
        .await
        .map(|_| ())
}

/// Checks that an Event and the output of `status` name the reason.
async fn verify_reports(run: &Run<'_>, reader: &MigrationReader) -> Result<()> {
    let events = reader.events("Migration", MIGRATION).await?;
    ensure!(
        events
            .iter()
            .any(|(reason, note)| reason == "GateBreached" && note.contains("traffic is lost")),
        "Events of the Migration: {events:?}"
    );
    let output = run.scene.operator.expect(Exit::Error, &["status"]).await?.text;
    for word in ["GateBreached", "kubectl replumb resume", "old→new"] {
        ensure!(output.contains(word), "`status` does not contain {word:?}");
    }
    Ok(())
}

/// Checks that the next node does not start for longer than the soak.
async fn verify_no_start(reader: &MigrationReader, next: &str) -> Result<()> {
    // The case needs this time to pass.
    tokio::time::sleep(Duration::from_secs(SOAK + 5)).await;
    let spec = reader.node_migration(next).await?;
    ensure!(!spec.started, "node {next} was started: {spec:?}");
    Ok(())
}
