//! Checks a cluster after a change of range with a crash.

use anyhow::{Context, Result};
use api::names;
use ipnet::Ipv4Net;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::crash::state;
use crate::demo::ipam;
use crate::demo::pod_cidr::Run;
use crate::demo::pod_cidr::old_range::{self, RangeObjects};
use crate::demo::untouched::{self, Fingerprint};

/// Settings that Calico and the user change: another address of a tunnel's end, blocks, the changes that replumb asks
/// the user for.
const OTHERS: [&str; 5] = [
    "IPAMBlock ",
    "IPAMHandle ",
    "BlockAffinity ",
    "ConfigMap kube-system/kube-proxy",
    "DaemonSet kube-system/kube-proxy",
];
/// Settings that are as before only after a rollback: the pools, and the settings that would create one again.
const OF_THE_RANGE: [&str; 2] = ["IPPool ", "DaemonSet kube-system/calico-node"];
/// Annotations of Calico on Nodes.
const OF_CALICO: &str = "projectcalico.org/";
const POOL: &str = "IPPool ";
const REDUNDANT: [&str; 5] = ["-n", "kube-system", "get", "deployment/coredns", "-o"];

/// The state before.
#[derive(Debug)]
pub struct Before {
    objects: Fingerprint,
    replicas: String,
}

impl Before {
    /// Reads the state.
    pub async fn read(cluster: &Cluster) -> Result<Self> {
        Ok(Self {
            objects: objects(cluster).await?,
            replicas: replicas(cluster).await?,
        })
    }

    /// The problems: every pod must be in `in_range`, no address in `left`, and everything else as before.
    pub async fn differs(&self, run: &Run<'_>, left: Ipv4Net, in_range: Ipv4Net) -> Result<Vec<String>> {
        let cluster = run.scene.cluster;
        // A new pod may be starting.
        let mut wrong: Vec<String> = match ipam::agrees(cluster).await {
            Ok(()) => Vec::new(),
            Err(error) => vec![format!("{error:#}")],
        };
        let RangeObjects {
            pods,
            blocks,
            pools,
            routes,
        } = RangeObjects::read(cluster, left).await?;
        let named = |what: &str, names: Vec<String>| {
            let what = format!("{what} remains in {left}: ");
            names.into_iter().map(move |name| format!("{what}{name}"))
        };
        wrong.extend(named("pod", pods));
        wrong.extend(named("object", blocks));
        wrong.extend(named("object", pools));
        for (node, routes) in routes {
            wrong.extend(named(&format!("route on node {node}"), routes));
        }
        if old_range::pods(cluster, in_range).await?.is_empty() {
            wrong.push(format!("no pod has an address of {in_range}"));
        }
        let is_back = self.has_pools_of(left, in_range);
        let is_ours = |line: &&String| is_back || !OF_THE_RANGE.iter().any(|kind| line.starts_with(kind));
        let changed = untouched::differences(&self.objects, &objects(cluster).await?);
        wrong.extend(changed.iter().filter(is_ours).cloned());
        let replicas = replicas(cluster).await?;
        if replicas != self.replicas {
            wrong.push(format!(
                "CoreDNS had {} replicas and has {replicas}",
                self.replicas
            ));
        }
        for node in cluster.node_names().await {
            let (_, foreign) = run.scene.observe_again(&node).await?;
            wrong.extend(foreign.problems(&node));
        }
        Ok(wrong)
    }

    /// Whether the pools must be the same as before: there was no pool of the range that is removed now.
    fn has_pools_of(&self, left: Ipv4Net, in_range: Ipv4Net) -> bool {
        let has = |range: Ipv4Net| {
            let range = Value::from(range.to_string());
            self.objects
                .iter()
                .any(|(key, object)| key.starts_with(POOL) && object["spec"]["cidr"] == range)
        };
        has(in_range) && !has(left)
    }
}

async fn objects(cluster: &Cluster) -> Result<Fingerprint> {
    let mut found = state::objects(cluster).await?;
    found.retain(|key, _| !OTHERS.iter().any(|other| key.starts_with(other)));
    for (_, object) in found.iter_mut().filter(|(key, _)| key.starts_with("Node ")) {
        if let Some(annotations) = object["annotations"].as_object_mut() {
            annotations.retain(|name, _| !name.starts_with(OF_CALICO));
        }
    }
    Ok(found)
}

async fn replicas(cluster: &Cluster) -> Result<String> {
    let arguments = [REDUNDANT.as_slice(), &["jsonpath={.spec.replicas}"]].concat();
    cluster.api().kubectl(&arguments).await
}

/// Everything of the Migration is deleted when no action is pending.
pub async fn is_forgotten(cluster: &Cluster) -> Result<bool> {
    let arguments = ["get", "nodemigrations.replumb.dev", "-o", "name"];
    let left = cluster
        .api()
        .kubectl(&arguments)
        .await
        .context("list NodeMigrations")?;
    let pods = [
        "get",
        "pods",
        "-n",
        names::NAMESPACE,
        "-l",
        &format!("{}={}", names::COMPONENT_LABEL, names::TRAFFIC_COMPONENT),
        "-o",
        "name",
    ];
    let pods = cluster.api().kubectl(&pods).await.context("list traffic pods")?;
    Ok(left.trim().is_empty() && pods.trim().is_empty())
}
