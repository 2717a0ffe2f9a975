//! What lies in a range: pods by the API, blocks and claims of Calico's by kubectl, or in etcd by its own gateway, routes by `ip -j` on every host. What the
//! tool counts itself is no proof.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::cluster::{Cluster, PodNetwork};

const BLOCKS: &str = "ipamblocks.crd.projectcalico.org,blockaffinities.crd.projectcalico.org";
const POOLS: &str = "ippools.crd.projectcalico.org";
/// Where the same are in etcd.
const BLOCK_KEYS: &str = "/calico/ipam/v2/assignment/";
const CLAIM_KEYS: &str = "/calico/ipam/v2/host/";
const POOL_KEYS: &str = "/calico/resources/v3/projectcalico.org/ippools/";

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct OldRange {
    /// Pods with an address of it: names.
    pub pods: Vec<String>,
    /// Blocks and claims on blocks: kinds and names.
    pub blocks: Vec<String>,
    /// Pools.
    pub pools: Vec<String>,
    /// Routes by node.
    pub routes: BTreeMap<String, Vec<String>>,
}

impl OldRange {
    /// Looks everywhere.
    pub async fn look(cluster: &Cluster, range: Ipv4Net) -> Result<Self> {
        let mut routes = BTreeMap::new();
        for node in cluster.node_names().await {
            let text = cluster
                .run_in_node(&node, &["ip", "-j", "route", "show", "table", "all"])
                .await?;
            let list: Vec<Value> =
                serde_json::from_str(&text).with_context(|| format!("parse the routes of node {node}"))?;
            let found = list.iter().filter(|route| leads_into(route, range));
            routes.insert(node, found.map(ToString::to_string).collect());
        }
        let (blocks, pools) = if cluster.pod_network().await == PodNetwork::CalicoEtcd {
            (
                [
                    keys(cluster, BLOCK_KEYS, range).await?,
                    claims(cluster, range).await?,
                ]
                .concat(),
                keys(cluster, POOL_KEYS, range).await?,
            )
        } else {
            (
                objects(cluster, BLOCKS, range).await?,
                objects(cluster, POOLS, range).await?,
            )
        };
        Ok(Self {
            pods: pods(cluster, range).await?,
            blocks,
            pools,
            routes,
        })
    }
}

/// Names of pods that live in a range.
pub async fn pods(cluster: &Cluster, range: Ipv4Net) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::all(cluster.api().client());
    let list = pods.list(&ListParams::default()).await.context("list pods")?;
    Ok(list
        .items
        .iter()
        .filter(|pod| lives_in(pod, range))
        .map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()))
        .collect())
}

/// Whether a pod of the pod network has an address of the range. One that has ended may say an address that is another
/// pod's by now.
fn lives_in(pod: &Pod, range: Ipv4Net) -> bool {
    let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    let Some(status) = pod.status.as_ref().filter(|_| !on_host) else {
        return false;
    };
    let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let addresses = status.pod_ips.iter().flatten().map(|address| &address.ip);
    let mut addresses = addresses.chain(&status.pod_ip);
    !ended
        && addresses.any(|address| {
            address
                .parse()
                .is_ok_and(|address: std::net::Ipv4Addr| range.contains(&address))
        })
}

/// Kinds and names of objects whose range lies in the range.
async fn objects(cluster: &Cluster, kinds: &str, range: Ipv4Net) -> Result<Vec<String>> {
    let text = cluster.api().kubectl(&["get", kinds, "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&text).context("parse kubectl's list")?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    Ok(items
        .iter()
        .filter(|object| is_within(&object["spec"]["cidr"], range))
        .map(|object| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
        })
        .collect())
}

/// Keys of Calico's in etcd whose value says a range in the range.
async fn keys(cluster: &Cluster, prefix: &str, range: Ipv4Net) -> Result<Vec<String>> {
    let all = cluster.calico_keys(prefix).await?;
    // A pool says it in its spec.
    let says = |value: &Value| is_within(&value["cidr"], range) || is_within(&value["spec"]["cidr"], range);
    let of_range = all.into_iter().filter(|(_, value)| says(value));
    Ok(of_range.map(|(key, _)| key).collect())
}

/// Keys of claims, which say the range themselves.
async fn claims(cluster: &Cluster, range: Ipv4Net) -> Result<Vec<String>> {
    let all = cluster.calico_keys(CLAIM_KEYS).await?;
    let of_range = all.into_iter().map(|(key, _)| key).filter(|key| {
        let block = key.rsplit('/').next().unwrap_or_default().replace('-', "/");
        is_within(&block.into(), range)
    });
    Ok(of_range.collect())
}

/// Whether a route's destination is in the range, or its way or its sender's address.
fn leads_into(route: &Value, range: Ipv4Net) -> bool {
    ["dst", "gateway", "prefsrc"]
        .iter()
        .any(|part| is_within(&route[*part], range))
}

/// Whether a text is a range or an address inside of the range.
fn is_within(text: &Value, range: Ipv4Net) -> bool {
    let Some(text) = text.as_str() else {
        return false;
    };
    let found: Option<Ipv4Net> = text
        .parse()
        .ok()
        .or_else(|| text.parse::<std::net::Ipv4Addr>().ok().map(Ipv4Net::from));
    found.is_some_and(|found| range.contains(&found))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn range() -> Ipv4Net {
        "10.244.0.0/16".parse().unwrap()
    }

    #[test]
    fn a_route_leads_into_the_range_by_its_destination_its_way_or_its_sender() {
        for route in [
            json!({ "type": "blackhole", "dst": "10.244.1.0/26", "protocol": "80" }),
            json!({ "dst": "10.244.1.5", "dev": "cali123" }),
            json!({ "dst": "10.200.1.0/26", "gateway": "10.244.1.0", "dev": "vxlan.calico" }),
            json!({ "type": "local", "dst": "10.244.9.0", "table": "local" }),
            json!({ "dst": "10.200.1.5", "dev": "eth0", "prefsrc": "10.244.1.0" }),
        ] {
            assert!(leads_into(&route, range()), "{route}");
        }
        for route in [
            json!({ "dst": "default", "gateway": "172.30.0.1", "dev": "eth0" }),
            json!({ "dst": "10.200.1.0/26", "gateway": "10.200.1.0", "dev": "vxlan.calico" }),
            json!({ "dst": "10.0.0.0/8", "dev": "eth0" }),
            json!({ "dst": "fd00:10:244::/64", "dev": "vxlan-v6.calico" }),
        ] {
            assert!(!leads_into(&route, range()), "{route}");
        }
    }

    #[test]
    fn a_pod_lives_in_the_range_while_it_has_not_ended_and_has_a_network_of_its_own() {
        let lives = |phase: &str, host: bool, addresses: &[&str]| {
            let addresses: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
            let pod = serde_json::from_value(json!({
                "metadata": {},
                "spec": { "containers": [], "hostNetwork": host },
                "status": { "phase": phase, "podIPs": addresses },
            }));
            lives_in(&pod.unwrap(), range())
        };
        assert!(lives("Running", false, &["10.244.1.5"]));
        assert!(lives("Pending", false, &["fd00::1", "10.244.1.5"]));
        assert!(!lives("Running", false, &["10.200.1.5"]));
        assert!(!lives("Succeeded", false, &["10.244.1.5"]));
        assert!(!lives("Running", true, &["10.244.1.5"]));
        assert!(!lives("Pending", false, &[]));
    }
}
