//! What the kernel of this node shall hold, computed from Calico's objects. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::datastore::types::{IPAMBlockSpec, IPPoolSpec};
use crate::host::Mac;
use crate::host::firewall::Rules;
use crate::ipam::names;

/// Annotation of a node: its address, with the length of its subnet.
pub const ADDRESS: &str = "projectcalico.org/IPv4Address";
/// Annotation of a node: the address of its tunnel device.
pub const TUNNEL_ADDRESS: &str = "projectcalico.org/IPv4VXLANTunnelAddr";
/// Annotation of a node: the hardware address of its tunnel device, when it is not the derived one.
pub const TUNNEL_MAC: &str = "projectcalico.org/VXLANTunnelMACAddr";

/// One end of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the host, with its subnet.
    pub host: Ipv4Net,
    /// Address of the tunnel device.
    pub tunnel: Ipv4Addr,
    /// Hardware address of the tunnel device.
    pub mac: Mac,
}

/// Which way to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Through the tunnel, to the tunnel address of the node that has it.
    Tunnel(Ipv4Addr),
    /// It is itself the other end of the tunnel.
    TunnelEnd,
    /// Without a tunnel, to the host that has it.
    Direct(Ipv4Addr),
    /// To nobody: an own block, of which only the addresses in use have a better route.
    Blackhole,
}

/// What the kernel shall hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// Whether there shall be a tunnel device at all.
    pub vxlan: bool,
    /// The own end of the tunnel; nothing while the node's annotations are not complete.
    pub own: Option<Endpoint>,
    /// The other ends, by node.
    pub peers: BTreeMap<String, Endpoint>,
    /// Routes that do not lead to an own pod.
    pub routes: BTreeMap<Ipv4Net, Way>,
    /// Own pods: their device and address.
    pub pods: BTreeMap<Ipv4Addr, String>,
    /// The packet filter.
    pub rules: Rules,
}

/// Everything that is looked at.
pub struct World<'a> {
    /// Name of this node.
    pub node: &'a str,
    /// Every node.
    pub nodes: &'a [&'a Node],
    /// Every block.
    pub blocks: &'a [&'a IPAMBlockSpec],
    /// Every pool.
    pub pools: &'a [&'a IPPoolSpec],
    /// The pods of this node.
    pub pods: &'a [&'a Pod],
    /// Whether the settings demand or forbid a tunnel; nothing means when a pool wants it.
    pub vxlan_enabled: Option<bool>,
    /// The tunnel's UDP port.
    pub port: u16,
}

impl IPPoolSpec {
    /// The range, when it is one of IPv4.
    pub fn range(&self) -> Option<Ipv4Net> {
        self.cidr.parse().ok()
    }

    /// Whether its packets go through a VXLAN tunnel, at least between some nodes.
    pub fn is_vxlan(&self) -> bool {
        self.range().is_some()
            && self
                .vxlan_mode
                .as_deref()
                .is_some_and(|mode| !mode.is_empty() && mode != "Never")
    }
}

/// Whether this set of pools wants a tunnel, unless the settings say otherwise.
pub fn wants_vxlan<'a>(enabled: Option<bool>, pools: impl IntoIterator<Item = &'a IPPoolSpec>) -> bool {
    enabled.unwrap_or_else(|| pools.into_iter().any(IPPoolSpec::is_vxlan))
}

/// An end of the tunnel, from a node's annotations; nothing while one is missing.
pub fn endpoint(node: &Node) -> Option<Endpoint> {
    let annotations = node.metadata.annotations.as_ref()?;
    let address = annotations.get(ADDRESS)?;
    let host = address
        .parse()
        .ok()
        .or_else(|| Ipv4Net::new(address.parse().ok()?, 32).ok())?;
    let tunnel = annotations.get(TUNNEL_ADDRESS)?.parse().ok()?;
    let mac = match annotations.get(TUNNEL_MAC).filter(|mac| !mac.is_empty()) {
        Some(mac) => mac.parse().ok()?,
        None => names::tunnel_mac(node.metadata.name.as_deref()?).parse().ok()?,
    };
    Some(Endpoint { host, tunnel, mac })
}

/// Computes what the kernel shall hold.
pub fn desired(world: &World<'_>) -> Desired {
    let vxlan = wants_vxlan(world.vxlan_enabled, world.pools.iter().copied());
    let mut desired = Desired {
        vxlan,
        ..Desired::default()
    };
    for pool in world.pools {
        if let Some(range) = pool.range() {
            desired.rules.pools.insert(range);
            if pool.nat_outgoing {
                desired.rules.masqueraded.insert(range);
            }
        }
    }
    desired.pods = world.pods.iter().copied().filter_map(pod).collect();
    if !vxlan {
        return desired;
    }
    for node in world.nodes {
        let (Some(name), Some(endpoint)) = (&node.metadata.name, endpoint(node)) else {
            continue;
        };
        if name == world.node {
            desired.own = Some(endpoint);
        } else {
            desired.peers.insert(name.clone(), endpoint);
        }
    }
    for peer in desired.peers.values() {
        // An address of no pool is nobody's way into the tunnel: its node is about to get another one.
        if vxlan_pool(world.pools, peer.tunnel).is_some() {
            desired.routes.insert(host_range(peer.tunnel), Way::TunnelEnd);
        }
    }
    for block in world.blocks {
        add_block(&mut desired, world, block);
    }
    let hosts = desired.peers.values().map(|peer| peer.host.addr()).collect();
    desired.rules.tunnel = Some((world.port, hosts));
    desired
}

fn add_block(desired: &mut Desired, world: &World<'_>, block: &IPAMBlockSpec) {
    let Some(range) = block.range() else { return };
    // Disabled or not: what has an address keeps its way. A block of no pool has none.
    let Some(pool) = vxlan_pool(world.pools, range.addr()) else {
        return;
    };
    let cross_subnet = pool.vxlan_mode.as_deref() == Some("CrossSubnet");
    let way = |node: &str| -> Option<Way> {
        let peer = desired.peers.get(node)?;
        let near = desired
            .own
            .is_some_and(|own| own.host.contains(&peer.host.addr()));
        Some(if cross_subnet && near {
            Way::Direct(peer.host.addr())
        } else {
            Way::Tunnel(peer.tunnel)
        })
    };
    let mut found = Vec::new();
    let owner = block.node();
    if owner == Some(world.node) {
        // One of a single address would hide the pod that has it.
        if range.prefix_len() < 32 {
            found.push((range, Way::Blackhole));
        }
    } else if let Some(way) = owner.and_then(way) {
        found.push((range, way));
    }
    // Addresses that another node than the block's owner has.
    for ordinal in 0..block.allocations.len() {
        let Some(address) = names::nth(range, ordinal) else {
            break;
        };
        let attributes = block
            .owner(address)
            .and_then(|attribute| attribute.secondary.as_ref());
        let holder = attributes
            .and_then(|attributes| attributes.get("node"))
            .map(String::as_str);
        if let Some(holder) = holder.filter(|holder| Some(*holder) != owner && *holder != world.node)
            && let Some(way) = way(holder)
        {
            found.push((host_range(address), way));
        }
    }
    for (range, way) in found {
        desired.routes.entry(range).or_insert(way);
    }
}

/// The pool of an address, when its packets go through a tunnel.
fn vxlan_pool<'a>(pools: &[&'a IPPoolSpec], address: Ipv4Addr) -> Option<&'a IPPoolSpec> {
    let holds = |pool: &&&IPPoolSpec| pool.range().is_some_and(|range| range.contains(&address));
    pools.iter().find(holds).copied().filter(|pool| pool.is_vxlan())
}

/// The device and the address of a pod that has a network of its own and has not ended.
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

fn host_range(address: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::from(address)
}

/// Every host that may send tunnel packets here, for the log.
pub fn hosts(desired: &Desired) -> BTreeSet<Ipv4Addr> {
    desired.peers.values().map(|peer| peer.host.addr()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ipam::block::{self, Owner};

    fn node(name: &str, annotations: &serde_json::Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}})).unwrap()
    }

    fn migrated(name: &str, number: u8) -> Node {
        node(
            name,
            &json!({
                ADDRESS: format!("172.30.0.{number}/24"),
                TUNNEL_ADDRESS: format!("10.244.{number}.0"),
                TUNNEL_MAC: format!("66:00:00:00:00:0{number}"),
            }),
        )
    }

    fn pool(mode: &str) -> IPPoolSpec {
        IPPoolSpec {
            cidr: "10.244.0.0/16".to_owned(),
            vxlan_mode: Some(mode.to_owned()),
            nat_outgoing: true,
            ..IPPoolSpec::default()
        }
    }

    fn compute(
        nodes: &[Node],
        blocks: &[IPAMBlockSpec],
        pool: &IPPoolSpec,
        enabled: Option<bool>,
    ) -> Desired {
        desired(&World {
            node: "n1",
            nodes: &nodes.iter().collect::<Vec<_>>(),
            blocks: &blocks.iter().collect::<Vec<_>>(),
            pools: &[pool],
            pods: &[],
            vxlan_enabled: enabled,
            port: 8472,
        })
    }

    fn range(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn own_blocks_are_black_holes_and_those_of_others_lead_through_the_tunnel() {
        let nodes = [migrated("n1", 1), migrated("n2", 2)];
        let blocks = [
            block::new(range("10.244.1.0/26"), "n1", 1),
            block::new(range("10.244.2.64/26"), "n2", 1),
        ];
        let desired = compute(&nodes, &blocks, &pool("Always"), None);
        assert_eq!(
            desired.routes,
            BTreeMap::from([
                (range("10.244.1.0/26"), Way::Blackhole),
                (range("10.244.2.0/32"), Way::TunnelEnd),
                (
                    range("10.244.2.64/26"),
                    Way::Tunnel("10.244.2.0".parse().unwrap())
                ),
            ])
        );
        assert_eq!(desired.own.unwrap().mac.to_string(), "66:00:00:00:00:01");
        assert_eq!(
            desired.rules.tunnel,
            Some((8472, ["172.30.0.2".parse().unwrap()].into()))
        );
        assert_eq!(hosts(&desired), ["172.30.0.2".parse().unwrap()].into());
        assert_eq!(desired.rules.masqueraded, [range("10.244.0.0/16")].into());
    }

    #[test]
    fn a_node_without_annotations_gets_no_route_and_one_without_mac_the_derived_one() {
        let nodes = [
            migrated("n1", 1),
            node("n2", &json!({ADDRESS: "172.30.0.2/24"})),
            node(
                "n3",
                &json!({ADDRESS: "172.30.0.3", TUNNEL_ADDRESS: "10.244.3.0"}),
            ),
        ];
        let blocks = [
            block::new(range("10.244.2.0/26"), "n2", 1),
            block::new(range("10.244.3.0/26"), "n3", 1),
        ];
        let desired = compute(&nodes, &blocks, &pool("Always"), None);
        assert!(!desired.routes.contains_key(&range("10.244.2.0/26")));
        assert!(desired.routes.contains_key(&range("10.244.3.0/26")));
        assert_eq!(desired.peers["n3"].mac.to_string(), names::tunnel_mac("n3"));
        assert_eq!(desired.peers["n3"].host, range("172.30.0.3/32"));
    }

    #[test]
    fn a_borrowed_address_leads_to_the_node_that_has_it() {
        let nodes = [migrated("n1", 1), migrated("n2", 2), migrated("n3", 3)];
        let mut borrowed = block::new(range("10.244.2.0/26"), "n2", 1);
        let owner = |node: &str| Owner {
            handle: format!("h-{node}"),
            attributes: BTreeMap::from([("node".to_owned(), node.to_owned())]),
        };
        assert!(borrowed.assign("10.244.2.5".parse().unwrap(), &owner("n3")));
        assert!(borrowed.assign("10.244.2.6".parse().unwrap(), &owner("n1")));
        assert!(borrowed.assign("10.244.2.7".parse().unwrap(), &owner("n2")));
        let desired = compute(&nodes, &[borrowed], &pool("Always"), None);
        let single: Vec<_> = desired
            .routes
            .iter()
            .filter(|(range, _)| range.addr().octets()[3] > 0)
            .collect();
        assert_eq!(
            single,
            [(
                &range("10.244.2.5/32"),
                &Way::Tunnel("10.244.3.0".parse().unwrap())
            )]
        );
    }

    #[test]
    fn within_a_subnet_cross_subnet_needs_no_tunnel() {
        let nodes = [migrated("n1", 1), migrated("n2", 2)];
        let blocks = [block::new(range("10.244.2.0/26"), "n2", 1)];
        let desired = compute(&nodes, &blocks, &pool("CrossSubnet"), None);
        assert_eq!(
            desired.routes[&range("10.244.2.0/26")],
            Way::Direct("172.30.0.2".parse().unwrap())
        );
    }

    #[test]
    fn without_vxlan_there_is_neither_device_nor_route() {
        let nodes = [migrated("n1", 1), migrated("n2", 2)];
        let blocks = [block::new(range("10.244.1.0/26"), "n1", 1)];
        for (mode, enabled) in [("Never", None), ("Always", Some(false))] {
            let desired = compute(&nodes, &blocks, &pool(mode), enabled);
            assert!(!desired.vxlan && desired.routes.is_empty() && desired.own.is_none());
            assert_eq!(desired.rules.tunnel, None);
        }
        assert!(compute(&nodes, &blocks, &pool("Never"), Some(true)).vxlan);
    }

    #[test]
    fn a_disabled_pool_keeps_its_routes_and_its_place_among_the_pools_and_a_deleted_one_loses_both() {
        let nodes = [migrated("n1", 1), migrated("n2", 2)];
        let blocks = [
            block::new(range("10.244.1.0/26"), "n1", 1),
            block::new(range("10.244.2.0/26"), "n2", 1),
            block::new(range("10.200.1.0/26"), "n1", 1),
            block::new(range("10.200.2.0/26"), "n2", 1),
        ];
        let mut old = pool("Always");
        old.disabled = true;
        let new = IPPoolSpec {
            cidr: "10.200.0.0/16".to_owned(),
            ..pool("Always")
        };
        let of = |pools: &[&IPPoolSpec]| {
            desired(&World {
                node: "n1",
                nodes: &nodes.iter().collect::<Vec<_>>(),
                blocks: &blocks.iter().collect::<Vec<_>>(),
                pools,
                pods: &[],
                vxlan_enabled: None,
                port: 4789,
            })
        };
        let both = of(&[&new, &old]);
        assert_eq!(both.routes.len(), 5, "{:?}", both.routes);
        assert_eq!(both.routes[&range("10.244.1.0/26")], Way::Blackhole);
        assert!(both.rules.pools.contains(&range("10.244.0.0/16")));
        assert!(both.rules.masqueraded.contains(&range("10.244.0.0/16")));
        let one = of(&[&new]);
        let old: Vec<_> = one
            .routes
            .keys()
            .filter(|to| to.addr().octets()[1] == 244)
            .collect();
        assert!(old.is_empty(), "{old:?}");
        assert_eq!(one.routes.len(), 2, "{:?}", one.routes);
        assert_eq!(one.rules.pools, [range("10.200.0.0/16")].into());
    }

    #[test]
    fn a_pod_has_a_route_while_it_lives() {
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
