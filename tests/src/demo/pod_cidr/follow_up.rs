//! The demo's user: takes the manual steps that the migration requests. The migration itself does not change the configuration of
//! other programs.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::Request;
use crate::cluster::Cluster;
use crate::demo::report::ManualStep;
use crate::demo::scene::Scene;
use crate::demo::{LIMIT, status};

/// The reason in `status.reason` while the migration waits for a manual step.
const REASON: &str = "ConfigurationFollowUp";
/// Fragment of the message at the end of a rollback that names a manual step.
const CHANGE_BACK: &str = "must be changed back";
/// Time between two reads of the Migration.
const PACE: Duration = Duration::from_millis(500);
const KUBE_SYSTEM: [&str; 2] = ["-n", "kube-system"];
const POOL_VARIABLE: &str = "CALICO_IPV4POOL_CIDR";
/// Without this flag kubectl also sets the variable in the init containers.
const CONTAINER: &str = "--containers=calico-node";
const CLUSTER_CIDR: &str = "clusterCIDR:";

/// Takes each requested step once, until dropped, and adds it to `all`.
pub async fn play(scene: &Scene<'_>, request: &Request, all: &mut Vec<ManualStep>) -> Result<Infallible> {
    loop {
        tokio::time::sleep(PACE).await;
        // The API server may be unavailable for a moment.
        let Ok(Some(requested)) = requested_step(scene.cluster).await else {
            continue;
        };
        if all.iter().any(|step| step.requested == requested) {
            continue;
        }
        scene.say(format_args!("manual step requested: {requested}"));
        let done = take_step(scene.cluster, &requested, request).await?;
        scene.say(format_args!("manual step taken: {done}"));
        all.push(ManualStep { requested, done });
    }
}

/// Takes the requested steps until the migration requests the step that follows the move of the last pod. That step is not taken.
pub async fn play_until_all_have_moved(
    scene: &Scene<'_>,
    request: &Request,
    all: &mut Vec<ManualStep>,
) -> Result<()> {
    let limit = tokio::time::Instant::now() + LIMIT;
    while tokio::time::Instant::now() < limit {
        tokio::time::sleep(PACE).await;
        let Ok(Some(requested)) = requested_step(scene.cluster).await else {
            continue;
        };
        if requested.contains(POOL_VARIABLE) {
            scene.say(format_args!(
                "manual step requested, and not taken because a rollback follows: {requested}"
            ));
            return Ok(());
        }
        if all.iter().any(|step| step.requested == requested) {
            continue;
        }
        scene.say(format_args!("manual step requested: {requested}"));
        let done = take_step(scene.cluster, &requested, request).await?;
        scene.say(format_args!("manual step taken: {done}"));
        all.push(ManualStep { requested, done });
    }
    bail!("the migration did not request {POOL_VARIABLE} within {LIMIT:?}: not every pod has moved")
}

/// Takes the manual step that the message names after a rollback: an object still contains the abandoned range.
pub async fn change_back(scene: &Scene<'_>, request: &Request) -> Result<()> {
    let message = status(scene.cluster).await?["message"].to_string();
    if !message.contains(CHANGE_BACK) {
        return Ok(());
    }
    let done = take_step(scene.cluster, &message, request).await?;
    scene.say(format_args!("manual step after the rollback: {done}"));
    for workload in ["daemonset/calico-node", "daemonset/kube-proxy"] {
        scene
            .cluster
            .api()
            .rolled_out(workload, KUBE_SYSTEM[1], LIMIT)
            .await?;
    }
    Ok(())
}

/// The Migration's message while it waits for a manual step.
async fn requested_step(cluster: &Cluster) -> Result<Option<String>> {
    let status = status(cluster).await?;
    let waits = status["reason"] == REASON;
    Ok(waits.then(|| status["message"].as_str().unwrap_or_default().to_owned()))
}

/// A setting that the demo's user can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The range of the pool that calico-node creates.
    Calico,
    /// The range by which kube-proxy recognizes pods.
    KubeProxy,
}

impl Place {
    const ALL: [Self; 2] = [Self::Calico, Self::KubeProxy];

    /// The object and the setting, as messages name them.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Calico => ["kube-system/calico-node", POOL_VARIABLE],
            Self::KubeProxy => ["kube-system/kube-proxy", "clusterCIDR"],
        }
    }

    /// The setting that the message names. The message must contain the object, the setting and both ranges.
    fn named(requested: &str, request: &Request) -> Result<Self> {
        let is_named = |place: &Self| requested.contains(place.names()[1]);
        let Some(place) = Self::ALL.into_iter().find(is_named) else {
            bail!("the demo's user does not know the requested step: {requested:?}");
        };
        let words = [
            place.names()[0].to_owned(),
            request.from.to_string(),
            request.to.to_string(),
        ];
        let missing: Vec<_> = words
            .into_iter()
            .filter(|word| !requested.contains(word))
            .collect();
        if !missing.is_empty() {
            bail!(
                "the message does not contain {}: {requested:?}",
                missing.join(", ")
            );
        }
        Ok(place)
    }
}

async fn take_step(cluster: &Cluster, requested: &str, request: &Request) -> Result<String> {
    match Place::named(requested, request)? {
        Place::Calico => {
            let needed = needed(requested, request)?;
            let setting = format!("{POOL_VARIABLE}={needed}");
            let workload = ["set", "env", "daemonset/calico-node"];
            let suggested = [&workload[..], &["-n", "kube-system", CONTAINER]]
                .concat()
                .join(" ");
            let command = [&workload[..], &[CONTAINER, &setting]].concat();
            if !requested.contains(&suggested) {
                bail!("the message does not contain the command {suggested:?}: {requested:?}");
            }
            kubectl(cluster, &command).await?;
            Ok(format!("kubectl {}", command.join(" ")))
        }
        Place::KubeProxy => {
            let both = common_range(request.from, request.to).context("find a range that contains both")?;
            widen_kube_proxy(cluster, both).await?;
            Ok(format!(
                "set clusterCIDR {both} in ConfigMap kube-proxy, and restarted kube-proxy"
            ))
        }
    }
}

/// The range that the message needs: after a rollback the one from before.
fn needed(requested: &str, request: &Request) -> Result<Ipv4Net> {
    let after = requested
        .split("needed ")
        .nth(1)
        .and_then(|text| text.split_whitespace().next());
    let range = after.and_then(|text| text.trim_end_matches(['.', ',']).parse().ok());
    range
        .filter(|range| [request.from, request.to].contains(range))
        .with_context(|| format!("the message does not contain the needed range: {requested:?}"))
}

async fn widen_kube_proxy(cluster: &Cluster, range: Ipv4Net) -> Result<()> {
    let text = kubectl(cluster, &["get", "configmap", "kube-proxy", "-o", "json"]).await?;
    let map: Value = serde_json::from_str(&text).context("parse ConfigMap kube-proxy")?;
    let text = map["data"]["config.conf"]
        .as_str()
        .context("ConfigMap kube-proxy has no config.conf")?;
    let patch = json!({ "data": { "config.conf": with_cluster_cidr(text, range) } }).to_string();
    kubectl(
        cluster,
        &["patch", "configmap", "kube-proxy", "--type=merge", "-p", &patch],
    )
    .await?;
    kubectl(cluster, &["rollout", "restart", "daemonset/kube-proxy"])
        .await
        .map(|_| ())
}

async fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    cluster.api().kubectl(&[&KUBE_SYSTEM, arguments].concat()).await
}

fn with_cluster_cidr(text: &str, range: Ipv4Net) -> String {
    let lines = text.lines().map(|line| match line.split_once(CLUSTER_CIDR) {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}{CLUSTER_CIDR} {range}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// The smallest range that contains both.
fn common_range(one: Ipv4Net, other: Ipv4Net) -> Option<Ipv4Net> {
    std::iter::successors(Some(one), Ipv4Net::supernet).find(|range| range.contains(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn a_request_must_name_object_setting_and_both_ranges() {
        let request = Request::new("1").unwrap();
        let named = |requested: &str| Place::named(requested, &request).map_err(|error| error.to_string());
        let full = "DaemonSet kube-system/calico-node: CALICO_IPV4POOL_CIDR: found 10.244.0.0/16, needed 10.200.0.0/16";
        assert_eq!(named(full), Ok(Place::Calico));
        assert_eq!(needed(full, &request).unwrap(), request.to);
        assert!(needed("CALICO_IPV4POOL_CIDR: found 10.200.0.0/16", &request).is_err());
        let full = "ConfigMap kube-system/kube-proxy: clusterCIDR: found 10.244.0.0/16, needed 10.244.0.0/16 and 10.200.0.0/16";
        assert_eq!(named(full), Ok(Place::KubeProxy));
        let back = "DaemonSet kube-system/calico-node: CALICO_IPV4POOL_CIDR: found 10.200.0.0/16, needed 10.244.0.0/16. Fix: ...";
        assert_eq!(needed(back, &request).unwrap(), request.from);
        let half = "set CALICO_IPV4POOL_CIDR of kube-system/calico-node to 10.200.0.0/16";
        assert!(
            named(half)
                .unwrap_err()
                .contains("does not contain 10.244.0.0/16")
        );
        assert!(named("do something").unwrap_err().contains("does not know"));
    }

    #[test]
    fn the_smallest_common_range_contains_both() {
        let common_range =
            |one: &str, other: &str| common_range(range(one), range(other)).unwrap().to_string();
        assert_eq!(common_range("10.244.0.0/16", "10.200.0.0/16"), "10.192.0.0/10");
        assert_eq!(common_range("10.200.0.0/16", "10.200.3.0/24"), "10.200.0.0/16");
        assert_eq!(common_range("10.0.0.0/8", "192.168.0.0/16"), "0.0.0.0/0");
    }

    #[test]
    fn with_cluster_cidr_changes_one_line() {
        let text = "kind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\nmode: iptables # no clusterCIDR: here\n";
        assert_eq!(
            with_cluster_cidr(text, range("10.192.0.0/10")),
            "kind: KubeProxyConfiguration\nclusterCIDR: 10.192.0.0/10\nmode: iptables # no clusterCIDR: here\n"
        );
    }
}
