//! Source addresses of pods at the other end of a Service: kept after a move, and a program that replaces them is seen by the
//! canary before any pod moves.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::migration::{MigrationPhase, Stage};
use engine::decision::WaitReason;
use ipnet::Ipv4Net;
use serde_json::Value;

use super::MigrationReader;
use crate::cluster::Cluster;
use crate::demo::pod_cidr::Request;

/// Longest time until the canary waits: the user widens kube-proxy before it.
const LIMIT: Duration = Duration::from_mins(5);
/// The node with a program that replaces source addresses.
const NODE: &str = "lab-worker-1";
const TABLE: &str = "lab_masquerade";
/// Questions of each pod: the Service has three backends.
const QUESTIONS: usize = 6;
const SAMPLE: [&str; 2] = ["-n", "sample"];
/// The pods that ask: one on each node, and none behind the Service.
const ASKING: &str = "app=everywhere";

/// A rule on one node that replaces the source of packets from the new range to Services. It belongs to no program that replumb
/// knows, and is in no object of the API.
pub async fn masquerade(cluster: &Cluster, range: Ipv4Net) -> Result<()> {
    let services = "10.96.0.0/12";
    let rules = format!(
        "table ip {TABLE} {{ chain post {{ type nat hook postrouting priority srcnat - 10; \
         ip saddr {range} ct original ip daddr {services} masquerade; }}; }}"
    );
    let script = format!("echo '{rules}' | nft -f -");
    cluster.run_in_node(NODE, &["sh", "-c", &script]).await?;
    Ok(())
}

/// Waits until the canary waits because of [`masquerade`], and removes its rule. By then no pod may have moved.
pub async fn canary_sees_masquerading(
    cluster: &Cluster,
    reader: &MigrationReader,
    request: &Request,
) -> Result<()> {
    let what = "the canary waits because its packets are masqueraded";
    let migration = reader
        .until_migration(what, LIMIT, |migration| {
            let status = migration.status.as_ref();
            status.is_some_and(|status| status.reason == WaitReason::PodsMasqueraded.as_str())
        })
        .await?;
    let status = migration.status.context("the Migration has no status")?;
    ensure!(
        status.phase == MigrationPhase::Preparing,
        "phase: found {:?}, needed Preparing",
        status.phase
    );
    let stage = status
        .pod_cidr
        .and_then(|known| known.stage)
        .map(|stage| stage.name);
    ensure!(
        stage == Some(Stage::Canary),
        "stage: found {stage:?}, needed Canary"
    );
    for words in [NODE, "pod→Service", "packets arrive from"] {
        ensure!(
            status.message.contains(words),
            "the message does not contain {words:?}: {}",
            status.message
        );
    }
    for (pod, address) in asking_pods(cluster).await? {
        ensure!(
            request.from.contains(&address),
            "pod {pod} has moved to {address} before the canary was sound"
        );
    }
    cluster
        .run_in_node(NODE, &["nft", "delete", "table", "ip", TABLE])
        .await?;
    Ok(())
}

/// Checks that the backends of a Service see the own address of a moved pod on every node.
pub async fn are_kept(cluster: &Cluster, range: Ipv4Net) -> Result<()> {
    let service = [
        &SAMPLE[..],
        &["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"],
    ]
    .concat();
    let service = cluster.api().kubectl(&service).await?;
    // busybox' wget is not usable without a name service.
    let question = format!(
        "printf 'GET /cgi-bin/source HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {} 80",
        service.trim()
    );
    let pods = asking_pods(cluster).await?;
    ensure!(!pods.is_empty(), "there is no pod {ASKING} in namespace sample");
    for (pod, address) in pods {
        ensure!(
            range.contains(&address),
            "pod {pod} has {address}, needed one of {range}"
        );
        for _ in 0..QUESTIONS {
            let ask = [&SAMPLE[..], &["exec", &pod, "--", "sh", "-c", &question]].concat();
            let answer = cluster.api().kubectl(&ask).await?;
            let seen = answer.trim().lines().last().unwrap_or_default();
            // busybox writes an IPv4 address inside an IPv6 one in brackets.
            let seen = seen.trim().trim_start_matches("[::ffff:").trim_end_matches(']');
            ensure!(
                seen == address.to_string(),
                "a backend of Service sample/web sees {seen:?} as source of pod {pod} with {address}"
            );
        }
    }
    Ok(())
}

/// Names and addresses of the pods that ask.
async fn asking_pods(cluster: &Cluster) -> Result<Vec<(String, Ipv4Addr)>> {
    let pods = [&SAMPLE[..], &["get", "pods", "-l", ASKING, "-o", "json"]].concat();
    let text = cluster.api().kubectl(&pods).await?;
    let pods: Value = serde_json::from_str(&text).context("parse the pods of namespace sample")?;
    let pods = pods["items"].as_array().into_iter().flatten();
    pods.map(|pod| {
        let name = pod["metadata"]["name"].as_str().context("a pod has no name")?;
        let address = pod["status"]["podIP"]
            .as_str()
            .with_context(|| format!("pod {name} has no address"))?;
        Ok((name.to_owned(), address.parse()?))
    })
    .collect()
}
