//! Runs the parts of `calico-node` like the real image: startup, then the first tunnel address, then all permanent
//! parts, each restarted when it ends. The program is the `calico-node` on the PATH, so it can also be the real one.

use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::environment::Environment;
use crate::etcd;
use crate::version::{Datastore, Played};

const PROGRAM: &str = "calico-node";
/// The shortest time between two starts of a part.
const PACE: Duration = Duration::from_secs(1);

/// Runs until a signal ends it.
pub async fn run(environment: &Environment) -> Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        result = parts(environment) => result?,
        _ = terminate.recv() => info!("terminated"),
        _ = interrupt.recv() => info!("interrupted"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn parts(environment: &Environment) -> Result<()> {
    let played = Played::of_program()?;
    for first in [
        &["-startup"][..],
        &["-allocate-tunnel-addrs", "-allocate-tunnel-addrs-run-once"],
    ] {
        let status = once(first).await?;
        if !status.success() {
            bail!(
                "Calico node failed to start: {PROGRAM} {} ended with {status}",
                first.join(" ")
            );
        }
    }
    let staying = match played.datastore {
        Datastore::Etcd(generation) => etcd::node::staying(environment, generation),
        Datastore::Kubernetes => staying(environment),
    };
    info!("Calico node started successfully");
    let mut running = JoinSet::new();
    for part in staying {
        running.spawn(forever(part));
    }
    while let Some(ended) = running.join_next().await {
        ended.context("run a part of the node")??;
    }
    Ok(())
}

fn staying(environment: &Environment) -> Vec<&'static str> {
    let mut parts = vec!["-felix", "-allocate-tunnel-addrs", "-complete-startup"];
    if environment.backend() != "none" {
        parts.push("-monitor-addresses");
    }
    if environment.get("CALICO_MANAGE_CNI") != Some("false") {
        parts.push("-monitor-token");
    }
    parts
}

async fn forever(part: &'static str) -> Result<()> {
    loop {
        let begun = Instant::now();
        let status = once(&[part]).await?;
        warn!("{PROGRAM} {part} ended with {status}: restarting it");
        tokio::time::sleep(PACE.saturating_sub(begun.elapsed())).await;
    }
}

async fn once(arguments: &[&str]) -> Result<ExitStatus> {
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {PROGRAM} {} (is it on the PATH?)", arguments.join(" ")))?;
    Ok(child.wait().await?)
}
