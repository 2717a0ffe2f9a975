//! The demo's operator: the migration changes nobody's configuration, it says what a person has to change, and waits. Here is
//! a person who reads it and does it.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use serde::Serialize;
use serde_json::{Value, json};

use super::Wanted;
use crate::cluster::Cluster;
use crate::demo::scene::Scene;
use crate::demo::{LIMIT, MIGRATION};

/// The Migration's word for it.
const ASKS: &str = "ConfigurationFollowUp";
/// What it says at the end of the way back.
const CHANGE_BACK: &str = "must be changed back";
/// Between two looks at the Migration.
const PACE: Duration = Duration::from_millis(500);
const KUBE_SYSTEM: [&str; 2] = ["-n", "kube-system"];
const POOL_VARIABLE: &str = "CALICO_IPV4POOL_CIDR";
/// Without it kubectl says it in the containers that initialize the pod, too, and nobody takes it back there.
const CONTAINER: &str = "--containers=calico-node";
const CLUSTER_CIDR: &str = "clusterCIDR:";

/// One thing that was asked for and done.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FollowUp {
    /// What the Migration said.
    pub asked: String,
    /// What the operator did.
    pub done: String,
}

/// Does what the migration asks for, as often as it asks, until somebody drops this. What was done is added to `all`.
pub async fn play(scene: &Scene<'_>, wanted: &Wanted, all: &mut Vec<FollowUp>) -> Result<Infallible> {
    loop {
        tokio::time::sleep(PACE).await;
        // The API server may be away for a moment.
        let Ok(Some(asked)) = asked(scene.cluster).await else {
            continue;
        };
        if all.iter().any(|follow_up| follow_up.asked == asked) {
            continue;
        }
        scene.say(format_args!("the migration asks a person: {asked}"));
        let done = answer(scene.cluster, &asked, wanted).await?;
        scene.say(format_args!("the person: {done}"));
        all.push(FollowUp { asked, done });
    }
}

/// Does what the migration asks for until it asks for what comes once every pod has moved.
pub async fn play_until_all_have_moved(
    scene: &Scene<'_>,
    wanted: &Wanted,
    all: &mut Vec<FollowUp>,
) -> Result<()> {
    let limit = tokio::time::Instant::now() + LIMIT;
    while tokio::time::Instant::now() < limit {
        tokio::time::sleep(PACE).await;
        let Ok(Some(asked)) = asked(scene.cluster).await else {
            continue;
        };
        if asked.contains(POOL_VARIABLE) {
            scene.say(format_args!(
                "the migration asks a person, who thinks better of it: {asked}"
            ));
            return Ok(());
        }
        if all.iter().any(|follow_up| follow_up.asked == asked) {
            continue;
        }
        scene.say(format_args!("the migration asks a person: {asked}"));
        let done = answer(scene.cluster, &asked, wanted).await?;
        scene.say(format_args!("the person: {done}"));
        all.push(FollowUp { asked, done });
    }
    bail!("within {LIMIT:?} the migration has not asked for {POOL_VARIABLE}: not every pod has moved")
}

/// Does what the Migration says at its end on the way back, where a place says the range that was left.
pub async fn change_back(scene: &Scene<'_>, wanted: &Wanted) -> Result<()> {
    let message = status(scene.cluster).await?["message"].to_string();
    if !message.contains(CHANGE_BACK) {
        return Ok(());
    }
    let done = answer(scene.cluster, &message, wanted).await?;
    scene.say(format_args!("the person, as it says at its end: {done}"));
    for workload in ["daemonset/calico-node", "daemonset/kube-proxy"] {
        scene
            .cluster
            .api()
            .rolled_out(workload, KUBE_SYSTEM[1], LIMIT)
            .await?;
    }
    Ok(())
}

/// What the Migration asks a person for, if it does.
async fn asked(cluster: &Cluster) -> Result<Option<String>> {
    let status = status(cluster).await?;
    let asks = status["reason"] == ASKS;
    Ok(asks.then(|| status["message"].as_str().unwrap_or_default().to_owned()))
}

async fn status(cluster: &Cluster) -> Result<Value> {
    let text = cluster
        .api()
        .kubectl(&["get", "migrations.replumb.dev", MIGRATION, "-o", "json"])
        .await?;
    let migration: Value = serde_json::from_str(&text).context("parse the Migration")?;
    Ok(migration["status"].clone())
}

/// A place that the operator of the demo knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// What calico-node would make a pool of.
    Calico,
    /// What kube-proxy tells pods by.
    KubeProxy,
}

impl Place {
    const ALL: [Self; 2] = [Self::Calico, Self::KubeProxy];

    /// The object and the setting, as people name them.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Calico => ["kube-system/calico-node", POOL_VARIABLE],
            Self::KubeProxy => ["kube-system/kube-proxy", "clusterCIDR"],
        }
    }

    /// The place that is meant. Whoever is asked has to be told the object, the setting and both ranges.
    fn meant(asked: &str, wanted: &Wanted) -> Result<Self> {
        let is_meant = |place: &Self| asked.contains(place.names()[1]);
        let Some(place) = Self::ALL.into_iter().find(is_meant) else {
            bail!("the demo's operator knows nothing of what the migration asks for: {asked:?}");
        };
        let words = [
            place.names()[0].to_owned(),
            wanted.from.to_string(),
            wanted.to.to_string(),
        ];
        let missing: Vec<_> = words.into_iter().filter(|word| !asked.contains(word)).collect();
        if !missing.is_empty() {
            bail!(
                "the migration asks without saying {}: {asked:?}",
                missing.join(", ")
            );
        }
        Ok(place)
    }
}

async fn answer(cluster: &Cluster, asked: &str, wanted: &Wanted) -> Result<String> {
    match Place::meant(asked, wanted)? {
        Place::Calico => {
            let needed = needed(asked, wanted)?;
            let setting = format!("{POOL_VARIABLE}={needed}");
            let workload = ["set", "env", "daemonset/calico-node"];
            let said = [&workload[..], &["-n", "kube-system", CONTAINER]]
                .concat()
                .join(" ");
            let command = [&workload[..], &[CONTAINER, &setting]].concat();
            if !asked.contains(&said) {
                bail!("the migration does not say how: {asked:?}");
            }
            kubectl(cluster, &command).await?;
            Ok(format!("kubectl {}", command.join(" ")))
        }
        Place::KubeProxy => {
            let both = around(wanted.from, wanted.to).context("find one range around both")?;
            widen_kube_proxy(cluster, both).await?;
            Ok(format!(
                "ConfigMap kube-proxy says clusterCIDR {both}, and kube-proxy is started again"
            ))
        }
    }
}

/// Which of both ranges a place has to say: on the way back the one from before.
fn needed(asked: &str, wanted: &Wanted) -> Result<Ipv4Net> {
    let after = asked
        .split("needed ")
        .nth(1)
        .and_then(|text| text.split_whitespace().next());
    let range = after.and_then(|text| text.trim_end_matches(['.', ',']).parse().ok());
    range
        .filter(|range| [wanted.from, wanted.to].contains(range))
        .with_context(|| format!("the migration asks without saying which range is needed: {asked:?}"))
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

/// The smallest range that holds both.
fn around(one: Ipv4Net, other: Ipv4Net) -> Option<Ipv4Net> {
    std::iter::successors(Some(one), Ipv4Net::supernet).find(|range| range.contains(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn who_is_asked_is_told_object_setting_and_both_ranges() {
        let wanted = Wanted::new("1").unwrap();
        let meant = |asked: &str| Place::meant(asked, &wanted).map_err(|error| error.to_string());
        let full = "DaemonSet kube-system/calico-node: CALICO_IPV4POOL_CIDR: found 10.244.0.0/16, needed 10.200.0.0/16";
        assert_eq!(meant(full), Ok(Place::Calico));
        assert_eq!(needed(full, &wanted).unwrap(), wanted.to);
        assert!(needed("CALICO_IPV4POOL_CIDR: found 10.200.0.0/16", &wanted).is_err());
        let full = "ConfigMap kube-system/kube-proxy: clusterCIDR: found 10.244.0.0/16, needed 10.244.0.0/16 and 10.200.0.0/16";
        assert_eq!(meant(full), Ok(Place::KubeProxy));
        let back = "DaemonSet kube-system/calico-node: CALICO_IPV4POOL_CIDR: found 10.200.0.0/16, needed 10.244.0.0/16. Fix: ...";
        assert_eq!(needed(back, &wanted).unwrap(), wanted.from);
        let half = "set CALICO_IPV4POOL_CIDR of kube-system/calico-node to 10.200.0.0/16";
        assert!(meant(half).unwrap_err().contains("without saying 10.244.0.0/16"));
        assert!(meant("do something").unwrap_err().contains("knows nothing"));
    }

    #[test]
    fn one_range_around_both() {
        let around = |one: &str, other: &str| around(range(one), range(other)).unwrap().to_string();
        assert_eq!(around("10.244.0.0/16", "10.200.0.0/16"), "10.192.0.0/10");
        assert_eq!(around("10.200.0.0/16", "10.200.3.0/24"), "10.200.0.0/16");
        assert_eq!(around("10.0.0.0/8", "192.168.0.0/16"), "0.0.0.0/0");
    }

    #[test]
    fn one_line_of_the_configuration_changes() {
        let text = "kind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\nmode: iptables # no clusterCIDR: here\n";
        assert_eq!(
            with_cluster_cidr(text, range("10.192.0.0/10")),
            "kind: KubeProxyConfiguration\nclusterCIDR: 10.192.0.0/10\nmode: iptables # no clusterCIDR: here\n"
        );
    }
}
