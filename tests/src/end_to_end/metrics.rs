//! Scraping both endpoints as Prometheus does, and judging the text by Prometheus' own rules.

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
    ensure!(status == 200, "http://{address}:{port}/metrics answered {head}");
    ensure!(
        head.to_lowercase().contains("content-type: text/plain"),
        "http://{address}:{port}/metrics has no text content type: {head}"
    );
    Ok(body)
}

/// Judges the text by Prometheus' own linter; an error has its words.
pub async fn lint(cluster: &Cluster, text: &str) -> Result<()> {
    let program = cluster.kubectl_program().await.with_file_name("promlint");
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    let mut input = child.stdin.take().context("its input")?;
    input
        .write_all(text.as_bytes())
        .await
        .context("hand the text to the linter")?;
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

/// Samples by name with labels as written.
pub fn samples(text: &str) -> BTreeMap<String, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

/// The API server has warned about no request of this program: a field that it does not know, a version that goes.
fn no_warnings(text: &str) -> Result<()> {
    let name = "replumb_api_warnings_total";
    let warnings = samples(text).get(name).copied();
    ensure!(
        warnings == Some(0.0),
        "{name} is {warnings:?}, needed 0; the log has each warning"
    );
    Ok(())
}

/// Scrapes the agent of every node and the coordinator; each has to be clean and to say what it is.
pub async fn both_are_clean(cluster: &Cluster, coordinator_node: &str) -> Result<()> {
    for node in cluster.node_names().await {
        let text = scrape(cluster.node_address(&node).await?, api::names::AGENT_PORT).await?;
        lint(cluster, &text)
            .await
            .with_context(|| format!("metrics of the agent of node {node}"))?;
        named(&text, "agent")?;
        no_warnings(&text).with_context(|| format!("the agent of node {node}"))?;
    }
    let text = scrape(
        cluster.node_address(coordinator_node).await?,
        api::names::COORDINATOR_PORT,
    )
    .await?;
    lint(cluster, &text).await.context("metrics of the coordinator")?;
    named(&text, "coordinator")?;
    no_warnings(&text).context("the coordinator")?;
    let samples = samples(&text);
    for name in [
        "replumb_nodes",
        "replumb_migration_phase",
        "replumb_evictions_total",
        "replumb_leading",
    ] {
        ensure!(
            samples.keys().any(|sample| sample.starts_with(name)),
            "the coordinator has no metric {name}; it has {:?}",
            samples.keys()
        );
    }
    Ok(())
}

fn named(text: &str, component: &str) -> Result<()> {
    let wanted = format!("component=\"{component}\"");
    ensure!(
        text.lines()
            .any(|line| line.starts_with("replumb_build_info{") && line.contains(&wanted)),
        "no replumb_build_info with {wanted}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_their_labels() {
        let found = samples("# HELP a b\n# TYPE a gauge\na{x=\"1 2\"} 3\nb 0.5\n");
        assert_eq!(found.get("a{x=\"1 2\"}"), Some(&3.0));
        assert_eq!(found.get("b"), Some(&0.5));
    }
}
