//! A store of Calico v2 of any size, with keys of every kind.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Addresses of a block.
const BLOCK: usize = 64;
/// Pods of a node.
const PODS: usize = 20;

/// A store with about this number of keys.
pub fn store(keys: usize) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut put = |key: String, value: String| {
        all.insert(key, value);
    };
    for (key, value) in [
        ("/calico/v1/Ready", "true"),
        ("/calico/v1/config/CalicoVersion", "v2.6.12"),
        (
            "/calico/v1/config/ClusterGUID",
            "5eed5eed5eed5eed5eed5eed5eed5eed",
        ),
        ("/calico/v1/config/ClusterType", "k8s,bgp,kops"),
        ("/calico/v1/config/LogSeverityScreen", "info"),
        ("/calico/v1/config/RouteRefreshInterval", "12.345"),
        ("/calico/v1/config/FailsafeInboundHostPorts", "tcp:22, udp:68"),
        ("/calico/bgp/v1/global/as_num", "64512"),
        ("/calico/bgp/v1/global/node_mesh", "{\"enabled\": true}"),
        (
            "/calico/bgp/v1/global/peer_v4/192.168.9.9",
            "{\"ip\": \"192.168.9.9\", \"as_num\": \"64513\"}",
        ),
        (
            "/calico/v1/ipam/v4/pool/10.0.0.0-8",
            "{\"cidr\": \"10.0.0.0/8\", \"ipip\": \"tunl0\", \"masquerade\": true, \"ipam\": true, \"disabled\": false}",
        ),
        (
            "/calico/ipam/v2/config",
            "{\"strict_affinity\": true, \"auto_allocate_blocks\": true}",
        ),
        (
            "/calico/v1/policy/profile/k8s_ns.default/rules",
            "{\"inbound_rules\": [{\"action\": \"allow\"}]}",
        ),
    ] {
        put(key.to_owned(), value.to_owned());
    }
    // Each node has five keys of its own, a block with its claim, and for each pod an endpoint and a handle.
    let of_node = 7 + 2 * PODS;
    for node in 0..(keys / of_node).max(1) {
        nodes(node, &mut put);
    }
    for number in 0..(keys / 40).max(4) {
        put(
            format!("/calico/v1/policy/tier/default/policy/Team.{number}%2fweb"),
            policy(number).to_string(),
        );
        put(
            format!("/calico/v1/policy/profile/team-{number}/labels"),
            format!("{{\"team\": \"t{number}\"}}"),
        );
        put(
            format!("/calico/v1/policy/profile/team-{number}/tags"),
            format!("[\"tag{number}\"]"),
        );
    }
    all
}

fn policy(number: usize) -> Value {
    json!({
        "order": number, "selector": format!("calico/k8s_ns == 'team-{number}'"), "types": ["ingress", "egress"],
        "inbound_rules": [
            { "action": "allow", "protocol": "tcp", "dst_ports": [80, "443:444"], "src_tag": format!("tag{number}") },
            { "action": "deny", "src_nets": ["10.1.2.3/24"] },
        ],
        "outbound_rules": [{ "action": "allow" }],
    })
}

fn nodes(node: usize, put: &mut impl FnMut(String, String)) {
    let name = format!("node-{node}.example");
    let host = format!("/calico/v1/host/{name}");
    let bgp = format!("/calico/bgp/v1/host/{name}");
    let [high, low] = [node / 250, node % 250 + 1];
    put(format!("{host}/metadata"), "{}".to_owned());
    put(format!("{host}/bird_ip"), format!("172.20.{high}.{low}"));
    put(
        format!("{host}/config/IpInIpTunnelAddr"),
        format!("10.{high}.{low}.0"),
    );
    put(format!("{bgp}/ip_addr_v4"), format!("172.20.{high}.{low}"));
    put(format!("{bgp}/network_v4"), format!("172.20.{high}.0/24"));
    let block = format!("10.{high}.{low}.0/26");
    let of_key = block.replace('/', "-");
    let mut allocations: Vec<Option<usize>> = vec![None; BLOCK];
    let mut attributes = Vec::new();
    for pod in 0..PODS {
        let handle = format!("k8s-pod-network.{node:04}{pod:04}");
        allocations[pod + 1] = Some(pod);
        attributes
            .push(json!({ "handle_id": handle, "secondary": { "node": name, "pod": format!("web-{pod}") } }));
        put(
            format!("/calico/ipam/v2/handle/{handle}"),
            json!({ "block": { &block: 1 } }).to_string(),
        );
        put(
            format!("{host}/workload/k8s/default.web-{node}-{pod}/endpoint/eth0"),
            json!({
                "state": "active", "name": format!("cali{node:05}{pod:04}"), "active_instance_id": format!("{node:08}{pod:08}"),
                "mac": "ee:ee:ee:ee:ee:ee", "profile_ids": ["k8s_ns.default"], "ipv4_nets": [format!("10.{high}.{low}.{}/32", pod + 1)],
                "ipv6_nets": [], "labels": { "calico/k8s_ns": "default", "app": "web" },
            })
            .to_string(),
        );
    }
    let free: Vec<usize> = (0..BLOCK).filter(|place| allocations[*place].is_none()).collect();
    put(
        format!("/calico/ipam/v2/assignment/ipv4/block/{of_key}"),
        json!({
            "cidr": block, "affinity": format!("host:{name}"), "strictAffinity": true, "allocations": allocations, "unallocated": free,
            "attributes": attributes,
        })
        .to_string(),
    );
    put(
        format!("/calico/ipam/v2/host/{name}/ipv4/block/{of_key}"),
        "{}".to_owned(),
    );
}

#[cfg(test)]
mod tests {
    use calico_datastore::convert::convert;
    use calico_datastore::v2::Tree;

    use super::*;

    #[test]
    fn a_sample_has_the_requested_size_and_can_be_converted() {
        for keys in [200, 5000] {
            let all = store(keys);
            assert!(
                (keys * 9 / 10..keys * 5 / 4).contains(&all.len()),
                "{} of {keys}",
                all.len()
            );
            let conversion = convert(&Tree::of(all));
            assert!(
                conversion.is_clean(),
                "{:?} {:?}",
                conversion.conversion_errors,
                conversion.validation_errors
            );
        }
    }
}
