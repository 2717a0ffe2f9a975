//! All objects of a range: pods by the API, Calico's blocks and affinities by kubectl, or in etcd by its gateway, and routes by
//! `ip -j` on every host. replumb's own counts would prove nothing.

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
/// Prefixes of the same objects in etcd.
const BLOCK_KEYS: &str = "/calico/ipam/v2/assignment/";
const AFFINITY_KEYS: &str = "/calico/ipam/v2/host/";
const POOL_KEYS: &str = "/calico/resources/v3/projectcalico.org/ippools/";

/// The objects of a range.
#[derive(Clone, Debug, Default)]
pub struct RangeObjects {
    /// Names of the pods with an address of the range.
    pub pods: Vec<String>,
    /// Blocks and block affinities: kinds and names.
    pub blocks: Vec<String>,
    /// Pools: kinds and names, or keys.
    pub pools: Vec<String>,
    /// Routes by node.
    pub routes: BTreeMap<String, Vec<String>>,
}

impl RangeObjects {
    /// Reads all objects of the range.
    pub async fn read(cluster: &Cluster, range: Ipv4Net) -> Result<Self> {
        let mut routes = BTreeMap::new();
        for node in cluster.node_names().await {
            let text = cluster
                .run_in_node(&node, &["ip", "-j", "route", "show", "table", "all"])
                .await?;
            let list: Vec<Value> =
                serde_json::from_str(&text).with_context(|| format!("parse the routes of node {node}"))?;
            let found = list.iter().filter(|route| belongs_to(route, range));
            routes.insert(node, found.map(ToString::to_string).collect());
        }
        let (blocks, pools) = if cluster.pod_network().await == PodNetwork::CalicoEtcd {
            (
                [
                    keys(cluster, BLOCK_KEYS, range).await?,
                    affinities(cluster, range).await?,
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

/// Names of the pods that have an address of a range.
pub async fn pods(cluster: &Cluster, range: Ipv4Net) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::all(cluster.api().client());
    let list = pods.list(&ListParams::default()).await.context("list pods")?;
    Ok(list
        .items
        .iter()
        .filter(|pod| has_address_in(pod, range))
        .map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()))
        .collect())
}

/// Whether a pod of the pod network has an address of the range. The address of a pod that has ended may belong to another pod
/// by now.
fn has_address_in(pod: &Pod, range: Ipv4Net) -> bool {
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

/// Kinds and names of the objects whose range is within `range`.
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

/// Keys of Calico in etcd whose value has a range within `range`.
async fn keys(cluster: &Cluster, prefix: &str, range: Ipv4Net) -> Result<Vec<String>> {
    let all = cluster.calico_keys(prefix).await?;
    // A pool has the range in its spec.
    let matches =
        |value: &Value| is_within(&value["cidr"], range) || is_within(&value["spec"]["cidr"], range);
    let of_range = all.into_iter().filter(|(_, value)| matches(value));
    Ok(of_range.map(|(key, _)| key).collect())
}

/// Keys of block affinities: the key itself contains the range.
async fn affinities(cluster: &Cluster, range: Ipv4Net) -> Result<Vec<String>> {
    let all = cluster.calico_keys(AFFINITY_KEYS).await?;
    let of_range = all.into_iter().map(|(key, _)| key).filter(|key| {
        let block = key.rsplit('/').next().unwrap_or_default().replace('-', "/");
        is_within(&block.into(), range)
    });
    Ok(of_range.collect())
}

/// Whether the destination, the gateway or the preferred source of a route is in the range.
fn belongs_to(route: &Value, range: Ipv4Net) -> bool {
    ["dst", "gateway", "prefsrc"]
        .iter()
        .any(|part| is_within(&route[*part], range))
}

/// Whether a text is a range or an address within `range`.
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
    fn a_route_belongs_to_the_range_of_its_destination_gateway_or_source() {
        for route in [
            json!({ "type": "blackhole", "dst": "10.244.1.0/26", "protocol": "80" }),
            json!({ "dst": "10.244.1.5", "dev": "cali123" }),
            json!({ "dst": "10.200.1.0/26", "gateway": "10.244.1.0", "dev": "vxlan.calico" }),
            json!({ "type": "local", "dst": "10.244.9.0", "table": "local" }),
            json!({ "dst": "10.200.1.5", "dev": "eth0", "prefsrc": "10.244.1.0" }),
        ] {
            assert!(belongs_to(&route, range()), "{route}");
        }
        for route in [
            json!({ "dst": "default", "gateway": "172.30.0.1", "dev": "eth0" }),
            json!({ "dst": "10.200.1.0/26", "gateway": "10.200.1.0", "dev": "vxlan.calico" }),
            json!({ "dst": "10.0.0.0/8", "dev": "eth0" }),
            json!({ "dst": "fd00:10:244::/64", "dev": "vxlan-v6.calico" }),
        ] {
            assert!(!belongs_to(&route, range()), "{route}");
        }
    }

    #[test]
    fn ended_pods_and_host_network_pods_have_no_address_of_the_range() {
        let has_address = |phase: &str, host: bool, addresses: &[&str]| {
            let addresses: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
            let pod = serde_json::from_value(json!({
                "metadata": {},
                "spec": { "containers": [], "hostNetwork": host },
                "status": { "phase": phase, "podIPs": addresses },
            }));
            has_address_in(&pod.unwrap(), range())
        };
        assert!(has_address("Running", false, &["10.244.1.5"]));
        assert!(has_address("Pending", false, &["fd00::1", "10.244.1.5"]));
        assert!(!has_address("Running", false, &["10.200.1.5"]));
        assert!(!has_address("Succeeded", false, &["10.244.1.5"]));
        assert!(!has_address("Running", true, &["10.244.1.5"]));
        assert!(!has_address("Pending", false, &[]));
    }
}
