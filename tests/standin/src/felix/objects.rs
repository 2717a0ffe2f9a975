//! The inputs of Felix from the Kubernetes API: Nodes with their annotations, Pods, and Calico's objects.

use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::model::{Endpoint, World};
use super::settings::Settings;
use super::watch::Cache;
use crate::ipam::names;

/// Annotation of a node: its address, with the length of its subnet.
pub const ADDRESS: &str = "projectcalico.org/IPv4Address";
/// Annotation of a node: the address of its tunnel device.
pub const TUNNEL_ADDRESS: &str = "projectcalico.org/IPv4VXLANTunnelAddr";
/// Annotation of a node: the hardware address of its tunnel device, if not derived.
const TUNNEL_MAC: &str = "projectcalico.org/VXLANTunnelMACAddr";

/// The settings of this node.
pub fn settings(cache: &Cache, name: &str) -> Settings {
    let objects = cache.configurations.state();
    let nodes = cache.nodes.state();
    let own = nodes.iter().find(|node| node.name_any() == name);
    let tunnel_address = own.and_then(|node| node.annotations().get(TUNNEL_ADDRESS));
    Settings::new(
        name,
        tunnel_address.map(String::as_str),
        objects.iter().map(AsRef::as_ref),
        std::env::vars(),
    )
}

/// All other inputs.
pub fn world(cache: &Cache) -> World {
    let (nodes, blocks, pools, pods) = (
        cache.nodes.state(),
        cache.blocks.state(),
        cache.pools.state(),
        cache.pods.state(),
    );
    let ends = nodes
        .iter()
        .filter_map(|node| Some((node.name_any(), end(node)?)));
    let blocks = blocks
        .iter()
        .map(|block| &block.spec)
        .filter(|block| !block.deleted);
    World {
        ends: ends.collect(),
        blocks: blocks.cloned().collect(),
        pools: pools.iter().map(|pool| pool.spec.clone()).collect(),
        pods: pods.iter().filter_map(|it| pod(it)).collect(),
    }
}

fn end(node: &Node) -> Option<Endpoint> {
    let annotation = |name: &str| node.annotations().get(name).map(String::as_str);
    let [address, tunnel, mac] = [ADDRESS, TUNNEL_ADDRESS, TUNNEL_MAC].map(annotation);
    Endpoint::of(&node.name_any(), address, tunnel, mac)
}

/// The device and the address of a running pod with its own network.
fn pod(pod: &Pod) -> Option<(Ipv4Addr, String)> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if spec.host_network == Some(true) || ended {
        return None;
    }
    let addresses = pod_addresses(pod);
    let address = addresses.iter().find_map(|address| address.parse().ok())?;
    let device = names::host_device(pod.metadata.namespace.as_deref()?, pod.metadata.name.as_deref()?);
    Some((address, device))
}

fn pod_addresses(pod: &Pod) -> Vec<String> {
    let status = pod.status.as_ref();
    let several: Vec<String> = status
        .and_then(|status| status.pod_ips.as_ref())
        .map(|addresses| addresses.iter().map(|address| address.ip.clone()).collect())
        .unwrap_or_default();
    if !several.is_empty() {
        return several;
    }
    if let Some(one) = status
        .and_then(|status| status.pod_ip.clone())
        .filter(|one| !one.is_empty())
    {
        return vec![one];
    }
    let annotations = pod.metadata.annotations.as_ref();
    let noted = annotations.and_then(|annotations| annotations.get("cni.projectcalico.org/podIPs"));
    let noted = noted.map(String::as_str).unwrap_or_default();
    noted
        .split(',')
        .filter_map(|one| one.split('/').next())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_node_without_annotations_has_no_tunnel_end_and_one_without_mac_has_the_derived_one() {
        let of = |annotations: Value| {
            let node = json!({ "metadata": { "name": "n3", "annotations": annotations } });
            end(&serde_json::from_value(node).unwrap())
        };
        assert_eq!(of(json!({ ADDRESS: "172.30.0.2/24" })), None);
        let found = of(json!({ ADDRESS: "172.30.0.3", TUNNEL_ADDRESS: "10.244.3.0" })).unwrap();
        assert_eq!(found.mac.to_string(), names::tunnel_mac("n3"));
        assert_eq!(found.host, "172.30.0.3/32".parse().unwrap());
        let mac = "66:00:00:00:00:03";
        let found = of(json!({ ADDRESS: "172.30.0.3/24", TUNNEL_ADDRESS: "10.244.3.0", TUNNEL_MAC: mac }));
        assert_eq!(found.unwrap().mac.to_string(), mac);
    }

    #[test]
    fn a_pod_has_a_route_while_it_runs() {
        let of = |phase: &str, host_network: bool, addresses: &[&str]| -> Pod {
            let addresses: Vec<_> = addresses.iter().map(|address| json!({"ip": address})).collect();
            serde_json::from_value(json!({
                "metadata": {"name": "web-0", "namespace": "default",
                             "annotations": {"cni.projectcalico.org/podIPs": "10.244.1.9/32"}},
                "spec": {"containers": [], "hostNetwork": host_network},
                "status": {"phase": phase, "podIPs": addresses},
            }))
            .unwrap()
        };
        let device = names::host_device("default", "web-0");
        assert_eq!(
            pod(&of("Running", false, &["10.244.1.5"])),
            Some(("10.244.1.5".parse().unwrap(), device.clone()))
        );
        assert_eq!(
            pod(&of("Pending", false, &[])),
            Some(("10.244.1.9".parse().unwrap(), device))
        );
        assert_eq!(pod(&of("Succeeded", false, &["10.244.1.5"])), None);
        assert_eq!(pod(&of("Running", true, &["172.30.0.1"])), None);
    }
}
