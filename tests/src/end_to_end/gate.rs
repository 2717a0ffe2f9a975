//! Traffic as the gate: on a node that is done one class of packets is dropped, then some of every class. Each time the
//! rollout stops and names the path, nobody is started meanwhile, and it goes on when it is mended and resumed. While it is
//! stopped, somebody else changes what the migration wrote.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::Migration;
use api::migration::MigrationPhase;
use engine::traffic::PathClass;

use super::Tally;
use super::drift::{somebody_else, somebody_else_harms};
use super::fair::start;
use super::in_place::nobody_was_harmed;
use super::look::Looker;
use crate::cluster::Cluster;
use crate::demo::flannel_to_calico::{Run, Wanted};
use crate::demo::operator::Exit;
use crate::demo::{MIGRATION, Tools};

const STEP: Duration = Duration::from_mins(3);
/// From the first dropped packet to the Migration that says so. Promised are 5 s, and docs/limits.md has what was
/// measured; the rest is for a machine that is busy with something else.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);
/// `canary.soakSeconds`: the next node is not started for this long.
const SOAK: u64 = 20;
/// What is dropped on its way to a pod of Calico's: the probes of traffic pods alone, so that the lab's own traffic
/// proves that nothing else was lost.
const LARGE: &str = "udp dport 9812 meta length > 1400 drop";
const SOME: &str = "udp dport 9812 numgen random mod 4 == 0 drop";

/// Three nodes, in place.
pub async fn gate(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let Some(run) = tally.count("gate: begin", Run::begin(cluster, tools).await) else {
        return tally;
    };
    let look = Looker::new(cluster);
    let wanted = Wanted {
        strategy: api::migration::Strategy::InPlace,
        spec: serde_json::json!({ "rollout": { "canary": { "nodes": 1, "soakSeconds": SOAK } } }),
        ..Wanted::default()
    };
    let Some(watch) = tally.count("gate: start", start(&run, &wanted).await) else {
        return tally;
    };
    let Some((canary, next)) = tally.count("gate: the canary is done, and watched", canary(&look).await)
    else {
        return tally;
    };
    tally.count(
        "gate: a class of packets is dropped, and the rollout stops and names it",
        stops(cluster, &look, &canary, LARGE, "full-MTU UDP from node").await,
    );
    tally.count("gate: who looks is told", is_told(&run, &look).await);
    tally.count(
        "gate: nobody is started while it is stopped",
        stays(&look, &next).await,
    );
    let resumed = async {
        mend(cluster, &canary).await?;
        run.scene.operator.expect(Exit::Done, &["resume"]).await?;
        look.until_migration("it goes on", STEP, |migration| {
            phase(migration) == MigrationPhase::Rolling
        })
        .await
    };
    tally.count("gate: mended and resumed, the canary soaks anew", resumed.await);
    tally.count(
        "gate: a part of the packets is dropped, and the rollout stops and names them",
        stops(cluster, &look, &canary, SOME, "UDP from node").await,
    );
    tally.add(somebody_else(cluster, &look, &canary, &next).await);
    let ended = async {
        mend(cluster, &canary).await?;
        run.scene
            .operator
            .expect_within(Exit::Done, &["resume", "--wait"], 3 * STEP)
            .await
            .map(|_| ())
    };
    tally.count("gate: mended and resumed, every node goes to Calico", ended.await);
    tally.count(
        "gate: nobody was moved, and nothing else was lost",
        nobody_was_harmed(&run, watch, &[]).await,
    );
    tally.add(somebody_else_harms(cluster, &look, &canary, &next).await);
    tally
}

fn phase(migration: &Migration) -> MigrationPhase {
    migration
        .status
        .as_ref()
        .map(|status| status.phase)
        .unwrap_or_default()
}

/// The first node and the second, once the second's traffic pod sends to the first's of Calico's.
async fn canary(look: &Looker) -> Result<(String, String)> {
    let order = look.until_planned(STEP).await?;
    let (canary, next) = (order.first(), order.get(1));
    let (canary, next) = canary.zip(next).context("there are fewer than two nodes")?;
    look.until_watched(next, PathClass::OldToNew, STEP).await?;
    ensure!(
        look.node_migration(canary).await?.finished_at.is_some(),
        "node {canary} is not done"
    );
    Ok((canary.clone(), next.clone()))
}

/// Drops what is on its way to Calico's pods on this node, and waits for the Migration to say so.
async fn stops(cluster: &Cluster, look: &Looker, node: &str, what: &str, class: &str) -> Result<()> {
    let rules = format!(
        "add table inet lab_gate
add chain inet lab_gate forward {{ type filter hook forward priority -10; }}
add rule inet lab_gate forward oifname \"cali*\" {what}"
    );
    let started = Instant::now();
    cluster
        .run_in_node(node, &["sh", "-c", &format!("echo '{rules}' | nft -f -")])
        .await?;
    let migration = look
        .until_migration("it is stopped", STEP, |migration| {
            phase(migration) == MigrationPhase::Halted
        })
        .await?;
    let took = started.elapsed();
    let status = migration.status.context("its status")?;
    println!("        after {:.1} s: {}", took.as_secs_f64(), status.message);
    ensure!(
        status.reason == "GateBreached" && status.paused,
        "it is stopped by {}: {}",
        status.reason,
        status.message
    );
    for word in [class, &format!("to node {node} ")] {
        ensure!(
            status.message.contains(word),
            "the message does not say {word:?}: {}",
            status.message
        );
    }
    ensure!(
        took <= STOPPED_WITHIN,
        "it took {:.1} s, allowed are {} s",
        took.as_secs_f64(),
        STOPPED_WITHIN.as_secs()
    );
    Ok(())
}

async fn mend(cluster: &Cluster, node: &str) -> Result<()> {
    cluster
        .run_in_node(node, &["nft", "delete", "table", "inet", "lab_gate"])
        .await
        .map(|_| ())
}

/// An Event, and what `status` prints.
async fn is_told(run: &Run<'_>, look: &Looker) -> Result<()> {
    let events = look.events("Migration", MIGRATION).await?;
    ensure!(
        events
            .iter()
            .any(|(reason, note)| reason == "GateBreached" && note.contains("traffic is lost")),
        "Events of the Migration: {events:?}"
    );
    let said = run.scene.operator.expect(Exit::Error, &["status"]).await?.text;
    for word in ["GateBreached", "kubectl replumb resume", "old→new"] {
        ensure!(said.contains(word), "`status` does not say {word:?}");
    }
    Ok(())
}

/// For longer than the soak.
async fn stays(look: &Looker, next: &str) -> Result<()> {
    // How long nothing happens is the case.
    tokio::time::sleep(Duration::from_secs(SOAK + 5)).await;
    let spec = look.node_migration(next).await?;
    ensure!(!spec.started, "node {next} was started: {spec:?}");
    Ok(())
}
