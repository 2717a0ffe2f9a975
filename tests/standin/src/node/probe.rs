//! The probes of the manifest: requests to Felix's health port.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::{info, warn};

use super::environment::Environment;
use crate::etcd;
use crate::version::{Datastore, Played};

/// How long `-complete-startup` waits for Felix, as in Calico.
const READY_WITHIN: Duration = Duration::from_mins(5);
const PAUSE: Duration = Duration::from_secs(1);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Performs the checks; the first that fails is the error.
pub async fn run(checks: &[&str], environment: &Environment) -> Result<()> {
    for check in checks {
        match *check {
            "felix-ready" => ask(environment, "readiness").await?,
            "felix-live" => ask(environment, "liveness").await?,
            "bird-ready" | "bird-live" if with_etcd()? => etcd::bird::is_ready()?,
            other => {
                bail!("calico/node is not ready: {other} needs BIRD, which the stand-in does not play here")
            }
        }
    }
    Ok(())
}

/// BIRD is played only with etcd.
fn with_etcd() -> Result<bool> {
    Ok(Played::of_program()?.datastore != Datastore::Kubernetes)
}

/// Waits for Felix. Without an answer, the node is reported as up after a time, as in Calico.
pub async fn wait_until_ready(environment: &Environment) {
    let begun = Instant::now();
    if environment.get("FELIX_HEALTHENABLED") != Some("true") {
        info!("FELIX_HEALTHENABLED is not true: not waiting for Felix");
        return;
    }
    while let Err(error) = ask(environment, "readiness").await {
        if begun.elapsed() > READY_WITHIN {
            warn!("{error:#}; continuing after {READY_WITHIN:?}");
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ask(environment: &Environment, question: &str) -> Result<()> {
    let host = environment.get("FELIX_HEALTHHOST").unwrap_or("localhost");
    let port = environment.get("FELIX_HEALTHPORT").unwrap_or("9099");
    let place = format!("{host}:{port}");
    let answer = tokio::time::timeout(ANSWER_WITHIN, get(&place, question))
        .await
        .with_context(|| format!("felix {question}: no answer from {place} within {ANSWER_WITHIN:?}"))?
        .with_context(|| format!("felix {question}: send a request to {place}"))?;
    let status = answer.split_whitespace().nth(1).unwrap_or_default();
    if !status.starts_with('2') {
        bail!("felix is not ready: {question} reporting {status:?}, want 2xx");
    }
    Ok(())
}

async fn get(place: &str, question: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(place).await?;
    let request = format!("GET /{question} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
