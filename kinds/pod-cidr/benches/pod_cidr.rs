//! Duration of one pass in a large cluster: `cargo bench -p replumb-pod-cidr --bench pod_cidr`. Medians are in docs/limits.md.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use engine::drain::Pod;
use engine::pods::Pods;
use ipnet::{IpNet, Ipv4Net};
use pod_cidr::calico_node::{CalicoNode, TunnelAddresses};
use pod_cidr::former_address::{NodeTunnelEnds, to_release};
use pod_cidr::holder::{Cluster, holders};
use pod_cidr::ipam::{Allocation, Block, Ipam};
use pod_cidr::tunnel_address;

const NODES: u32 = 5_000;
const PODS_OF_A_NODE: u32 = 30;
const ADDRESSES_OF_A_BLOCK: u32 = 64;
const TUNNEL: &str = "IPv4VXLANTunnelAddr";
const RUNS: usize = 5;

/// An address of the block of this node, in the range that starts at `range`.
fn address(range: u32, node: u32, place: u32) -> Ipv4Addr {
    Ipv4Addr::from(range + node * ADDRESSES_OF_A_BLOCK + place)
}

const OLD: u32 = 0x0a00_0000;
const NEW: u32 = 0x0b00_0000;

fn name(node: u32) -> String {
    format!("node-{node}")
}

fn pod(node: u32, place: u32) -> Pod {
    Pod {
        namespace: "shop".to_owned(),
        name: format!("web-{node}-{place}"),
        node: name(node),
        ready: true,
        addresses: vec![IpAddr::V4(address(OLD, node, place))],
        ..Pod::default()
    }
}

fn allocation(address: Ipv4Addr, attributes: &[(&str, String)]) -> Allocation {
    Allocation {
        address: IpAddr::V4(address),
        handle: Some(format!("k8s-pod-network.{address}")),
        attributes: attributes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
    }
}

/// A block in each range for every node: the old one has its tunnel address and the addresses of all its pods.
fn ipam() -> Ipam {
    let block = |range: u32, node: u32, allocations: Vec<Allocation>| Block {
        range: IpNet::V4(Ipv4Net::new_assert(address(range, node, 0), 26)),
        affinity: Some(format!("host:{}", name(node))),
        allocations,
    };
    let old = |node: u32| {
        let of_tunnel = [("node", name(node)), ("type", "vxlanTunnelAddress".to_owned())];
        let tunnel = allocation(address(OLD, node, 0), &of_tunnel);
        let of_pod = |place: u32| {
            let pod = pod(node, place);
            [
                ("node", pod.node),
                ("namespace", pod.namespace),
                ("pod", pod.name),
            ]
        };
        let pods = (1..=PODS_OF_A_NODE).map(|place| allocation(address(OLD, node, place), &of_pod(place)));
        block(OLD, node, std::iter::once(tunnel).chain(pods).collect())
    };
    let blocks = (0..NODES).flat_map(|node| [old(node), block(NEW, node, Vec::new())]);
    Ipam::new(blocks.collect(), Vec::new(), Vec::new())
}

#[expect(clippy::disallowed_methods, reason = "time is what is measured")]
fn median<T>(what: &str, run: impl Fn() -> T) {
    let mut times = [(); RUNS].map(|()| {
        let start = Instant::now();
        black_box(run());
        start.elapsed()
    });
    times.sort();
    println!("{what:<32} {:>10.1} ms", times[RUNS / 2].as_secs_f64() * 1000.0);
}

fn main() {
    let ipam = ipam();
    let nodes: BTreeMap<String, CalicoNode> = (0..NODES)
        .map(|node| {
            let ends = TunnelAddresses::from([(TUNNEL.to_owned(), IpAddr::V4(address(OLD, node, 0)))]);
            (
                name(node),
                CalicoNode {
                    ends,
                    ..CalicoNode::default()
                },
            )
        })
        .collect();
    let pods: Pods = (0..NODES)
        .flat_map(|node| (1..=PODS_OF_A_NODE).map(move |place| pod(node, place)))
        .collect();
    let [old, new] = [OLD, NEW].map(|range| IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::from(range), 8)));
    println!(
        "{NODES} nodes, {} blocks, {} pods",
        ipam.blocks().len(),
        pods.len()
    );
    median("missing blocks", || {
        tunnel_address::is_missing(&nodes, "old", &ipam, &old, &new)
    });
    median("tunnel address of one node", || {
        nodes.first_key_value().map(|(node, found)| {
            tunnel_address::given(NodeTunnelEnds { node, ends: &[] }, &found.ends, &ipam, &old, &new)
        })
    });
    median("tunnel addresses to release", || {
        let nodes = nodes.iter().map(|(name, node)| (name.as_str(), node)).collect();
        to_release(&nodes, &ipam, &old, &new)
    });
    let unnamed: Vec<Allocation> = (0..NODES)
        .map(|node| allocation(address(OLD, node, 0), &[]))
        .collect();
    median("holders without attributes", || {
        let cluster = Cluster {
            pods: &pods,
            nodes: &nodes,
            calico: "kube-system",
        };
        holders(&unnamed, cluster)
    });
    median("holders", || {
        let allocations = ipam.blocks().iter().flat_map(|block| &block.allocations);
        holders(
            allocations,
            Cluster {
                pods: &pods,
                nodes: &nodes,
                calico: "kube-system",
            },
        )
    });
}
