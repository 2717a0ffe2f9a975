//! Scrapes both endpoints as Prometheus does, and checks the text with Prometheus' own linter.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::cluster::Cluster;
use crate::http::{self, Answer};

/// The text of one endpoint.
pub async fn scrape(address: Ipv4Addr, port: u16) -> Result<String> {
    let Answer { status, head, body } = http::ask(address, port, "GET", "/metrics", "").await?;
    ensure!(
        status == 200,
        "http://{address}:{port}/metrics: the answer is {head}"
    );
    ensure!(
        head.to_lowercase().contains("content-type: text/plain"),
        "http://{address}:{port}/metrics has no text content type: {head}"
    );
    Ok(body)
}

/// Checks the text with Prometheus' own linter; an error has its output.
pub async fn lint(cluster: &Cluster, text: &str) -> Result<()> {
    let program = cluster.kubectl_program().await.with_file_name("promlint");
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    let mut input = child.stdin.take().context("the linter has no standard input")?;
    input
        .write_all(text.as_bytes())
        .await
        .context("write the text to the linter")?;
    drop(input);
    let output = child.wait_with_output().await.context("wait for the linter")?;
    if !output.status.success() {
        bail!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Samples, by name with labels as in the text.
pub fn samples(text: &str) -> BTreeMap<String, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

/// Checks that the API server warned about no request of this program: an unknown field, or a deprecated version.
fn verify_no_warnings(text: &str) -> Result<()> {
    let name = "replumb_api_warnings_total";
    let warnings = samples(text).get(name).copied();
    ensure!(
        warnings == Some(0.0),
        "{name}: found {warnings:?}, needed 0; the log has each warning"
    );
    Ok(())
}

/// Scrapes the agent of every node and the coordinator; each must pass the linter and name its component.
pub async fn verify_both(cluster: &Cluster, coordinator_node: &str) -> Result<()> {
    for node in cluster.node_names().await {
        let text = scrape(cluster.node_address(&node).await?, api::names::AGENT_PORT).await?;
        lint(cluster, &text)
            .await
            .with_context(|| format!("metrics of the agent of node {node}"))?;
        verify_component(&text, "agent")?;
        verify_no_warnings(&text).with_context(|| format!("the agent of node {node}"))?;
    }
    let text = scrape(
        cluster.node_address(coordinator_node).await?,
        api::names::COORDINATOR_PORT,
    )
    .await?;
    lint(cluster, &text).await.context("metrics of the coordinator")?;
    verify_component(&text, "coordinator")?;
    verify_no_warnings(&text).context("the coordinator")?;
    let samples = samples(&text);
    for name in [
        "replumb_nodes",
        "replumb_migration_phase",
        "replumb_evictions_total",
        "replumb_leading",
    ] {
        ensure!(
            samples.keys().any(|sample| sample.starts_with(name)),
            "the coordinator has no metric {name}; its metrics: {:?}",
            samples.keys()
        );
    }
    Ok(())
}

fn verify_component(text: &str, component: &str) -> Result<()> {
    let needed = format!("component=\"{component}\"");
    ensure!(
        text.lines()
            .any(|line| line.starts_with("replumb_build_info{") && line.contains(&needed)),
        "no replumb_build_info with {needed}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_keep_their_labels() {
        let found = samples("# HELP a b\n# TYPE a gauge\na{x=\"1 2\"} 3\nb 0.5\n");
        assert_eq!(found.get("a{x=\"1 2\"}"), Some(&3.0));
        assert_eq!(found.get("b"), Some(&0.5));
    }
}
