use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::fixture::converted;

/// A value of every kind.
const STORE: [(&str, &str); 17] = [
    ("/calico/v1/Ready", "true"),
    ("/calico/v1/config/CalicoVersion", "v2.6.12"),
    ("/calico/v1/config/InterfacePrefix", "cali"),
    ("/calico/v1/host/a/config/LogPrefix", "x"),
    ("/calico/v1/host/a/endpoint/eth0", r#"{"name": "eth0"}"#),
    (
        "/calico/v1/host/a/workload/k8s/ns.pod/endpoint/eth0",
        r#"{"name": "cali1", "ipv4_nets": ["10.1.0.1/32"]}"#,
    ),
    (
        "/calico/v1/ipam/v4/pool/10.1.0.0-16",
        r#"{"cidr": "10.1.0.0/16", "ipam": true}"#,
    ),
    ("/calico/v1/policy/profile/p/tags", "[]"),
    ("/calico/v1/policy/tier/default/policy/p", "{}"),
    ("/calico/bgp/v1/global/as_num", "64512"),
    (
        "/calico/bgp/v1/global/peer_v4/10.0.0.9",
        r#"{"ip": "10.0.0.9", "as_num": "1"}"#,
    ),
    ("/calico/bgp/v1/host/a/ip_addr_v4", "10.0.0.1"),
    (
        "/calico/bgp/v1/host/a/peer_v4/10.0.0.8",
        r#"{"ip": "10.0.0.8", "as_num": "1"}"#,
    ),
    (
        "/calico/ipam/v2/assignment/ipv4/block/10.1.0.0-26",
        r#"{"cidr": "10.1.0.0/26", "affinity": "host:a"}"#,
    ),
    ("/calico/ipam/v2/config", "{}"),
    ("/calico/ipam/v2/handle/h", r#"{"block": {}}"#),
    (
        "/calico/ipam/v2/host/a/ipv4/block/10.1.0.0-26",
        r#"{"state": "confirmed"}"#,
    ),
];

#[test]
fn a_whole_store_is_converted_in_the_order_of_writing() {
    let conversion = converted(&STORE);
    assert!(conversion.is_clean() && conversion.has_resources());
    let keys: Vec<&str> = conversion
        .objects
        .iter()
        .map(|object| {
            object
                .key
                .trim_start_matches("/calico/resources/v3/projectcalico.org/")
        })
        .collect();
    assert_eq!(
        keys,
        [
            "felixconfigurations/default",
            "clusterinformations/default",
            "felixconfigurations/node.a",
            "bgpconfigurations/default",
            "nodes/a",
            "bgppeers/10-0-0-9",
            "bgppeers/a.10-0-0-8",
            "hostendpoints/a.eth0",
            "ippools/10-1-0-0-16",
            "globalnetworkpolicies/default.p",
            "profiles/p",
            "workloadendpoints/ns/a-k8s-pod-eth0",
            "/calico/ipam/v2/config",
            "/calico/ipam/v2/assignment/ipv4/block/10.1.0.0-26",
            "/calico/ipam/v2/host/a/ipv4/block/10.1.0.0-26",
            "/calico/ipam/v2/handle/h",
        ]
    );
    assert_eq!(
        conversion.names(),
        [
            "Node(name=a) -> Node(a)",
            "BGPPeer(global, ip=10.0.0.9) -> BGPPeer(10-0-0-9)",
            "BGPPeer(node=a, ip=10.0.0.8) -> BGPPeer(a.10-0-0-8)",
            "HostEndpoint(node=a, name=eth0) -> HostEndpoint(a.eth0)",
            "IPPool(cidr=10.1.0.0/16) -> IPPool(10-1-0-0-16)",
            "Policy(name=p) -> GlobalNetworkPolicy(p)",
            "Profile(name=p) -> Profile(p)",
            "WorkloadEndpoint(node=a, orchestrator=k8s, workload=ns.pod, name=eth0) -> WorkloadEndpoint(ns/a-k8s-pod-eth0)",
        ]
    );
}

#[test]
fn the_same_store_gives_the_same_conversion() {
    assert_eq!(converted(&STORE), converted(&STORE));
}

#[test]
fn an_empty_store_gives_an_empty_conversion() {
    let conversion = converted(&[]);
    assert!(conversion.is_clean() && !conversion.has_resources());
    assert_eq!(conversion, Conversion::default());
}

/// No invalid value is omitted without a line in a report.
#[test]
fn any_invalid_value_is_reported_in_one_line() {
    for invalid in 0..STORE.len() {
        let (key, _) = STORE[invalid];
        let is_raw = ["/calico/v1/Ready", "/calico/v1/config/", "/config/"]
            .iter()
            .any(|part| key.contains(part));
        if is_raw {
            continue;
        }
        let mut store = STORE;
        store[invalid].1 = "\u{0}";
        let conversion = converted(&store);
        assert_eq!(
            conversion.conversion_errors.len(),
            1,
            "{key}: {:?}",
            conversion.report_lines()
        );
        assert!(conversion.conversion_errors[0].path.starts_with(key), "{key}");
        assert!(
            conversion.differences().len() <= 2,
            "{key}: {:?}",
            conversion.differences()
        );
    }
}

/// Arbitrary values below the keys that are read.
fn store() -> impl Strategy<Value = Vec<(String, String)>> {
    let name = prop::sample::select(vec![
        "a",
        "A",
        "a.b",
        "A_b",
        "ns.pod",
        "x%2fy",
        "k8s_ns.n",
        "10.0.0.0-26",
        "fd00::-122",
        "---",
    ]);
    let key = prop::sample::select(vec![
        "/calico/v1/config/@",
        "/calico/v1/config/IptablesMarkMask",
        "/calico/v1/host/@/config/FailsafeInboundHostPorts",
        "/calico/v1/host/@/config/IpInIpTunnelAddr",
        "/calico/v1/host/@/orchestrator_refs",
        "/calico/v1/host/@/endpoint/@",
        "/calico/v1/host/@/workload/k8s/@/endpoint/@",
        "/calico/v1/host/@/workload/@/@/endpoint/eth0",
        "/calico/v1/ipam/v4/pool/@",
        "/calico/v1/policy/tier/default/policy/@",
        "/calico/v1/policy/profile/@/labels",
        "/calico/v1/policy/profile/@/rules",
        "/calico/v1/policy/profile/@/tags",
        "/calico/bgp/v1/global/node_mesh",
        "/calico/bgp/v1/global/peer_v4/@",
        "/calico/bgp/v1/host/@/ip_addr_v4",
        "/calico/bgp/v1/host/@/peer_v6/@",
        "/calico/ipam/v2/assignment/ipv4/block/@",
        "/calico/ipam/v2/host/@/ipv6/block/@",
        "/calico/ipam/v2/handle/@",
        "/calico/ipam/v2/config",
    ]);
    let value = prop::sample::select(vec![
        "",
        "null",
        "{}",
        "[]",
        "true",
        "-1",
        "0x7f",
        "10.0.0.1",
        "tcp:1,2",
        "{\"",
        "[null]",
        "[{}]",
        "[\"t\", \"t\"]",
        r#"{"name": "eth0", "ipv4_nets": [""], "ipv4_nat": [{}], "ports": [{}]}"#,
        r#"{"name": "cali1", "ipv4_nets": ["10.0.0.1/8"], "labels": {"a b": "c d"}}"#,
        r#"{"cidr": "10.0.0.0/26", "affinity": "host:A", "allocations": [5, null], "attributes": [{}]}"#,
        r#"{"ip": "10.0.0.1", "as_num": "1.10"}"#,
        r#"{"inbound_rules": [{"src_nets": [null]}], "types": ["x"]}"#,
        r#"{"inbound_rules": [{"src_tag": "!", "dst_ports": [0], "ip_version": 0}], "pre_dnat": true, "outbound_rules": [{}]}"#,
        r#"{"block": {"10.0.0.0/26": -1}, "deleted": true}"#,
        r#"{"enabled": true}"#,
    ]);
    prop::collection::vec(
        (key, name.clone(), name, value).prop_map(|(key, one, other, value)| {
            (
                key.replacen('@', one, 1).replacen('@', other, 1),
                value.to_owned(),
            )
        }),
        0..12,
    )
}

proptest! {
    #[test]
    fn every_value_is_converted_or_reported(values in store()) {
        let tree = Tree::of(values.into_iter().collect());
        let conversion = convert(&tree);
        let keys: BTreeSet<&str> = conversion.objects.iter().map(|object| object.key.as_str()).collect();
        prop_assert_eq!(keys.len(), conversion.objects.len(), "a key occurs twice");
        for key in keys {
            prop_assert!(!key.contains("//") && !key.ends_with('/') || !conversion.is_clean(), "{}", key);
        }
        let lines = conversion.conversion_errors.iter().chain(&conversion.validation_errors);
        for line in lines {
            prop_assert!(!line.to_string().contains('\n'), "more than one line: {}", line);
            prop_assert!(line.path.starts_with("/calico/"), "{}", line.path);
        }
    }
}
