use std::net::Ipv4Addr;

use rstest::rstest;

use super::super::settings::{Ipv6Settings, PodNetwork, Settings};
use super::*;
use engine::cluster::{IpPool, Node};
use engine::sourced::{Source, Sourced};

fn sourced<T>(value: T) -> Sourced<T> {
    Sourced {
        value,
        source: Source::Default,
    }
}

fn settings() -> Settings {
    Settings {
        flannel_network: sourced("10.244.0.0/16".parse().unwrap()),
        flannel_daemon_set_name: sourced("kube-flannel-ds".to_owned()),
        flannel_daemon_set_namespace: sourced("kube-flannel".to_owned()),
        flannel_mtu: sourced(1450),
        flannel_ip_masquerade: sourced(true),
        flannel_subnet_length: sourced(24),
        flannel_annotation_prefix: sourced("flannel.alpha.coreos.com".to_owned()),
        flannel_vni: sourced(7),
        flannel_port: sourced(8473),
        calico_daemon_set_name: sourced("calico-node".to_owned()),
        calico_daemon_set_namespace: sourced("kube-system".to_owned()),
        ip_pool_block_size: sourced(26),
        cni_configuration_directory: sourced("/etc/cni/net.d".to_owned()),
        ipv6: None,
    }
}

fn network() -> PodNetwork {
    settings().pod_networks()[0]
}

/// The new pools for these settings.
fn new_pools(settings: &Settings) -> Vec<Pool> {
    pools(settings, &BTreeMap::new()).unwrap()
}

fn node() -> Node {
    let annotations = [
        ("flannel.alpha.coreos.com/backend-type", "vxlan"),
        (
            "flannel.alpha.coreos.com/backend-data",
            r#"{"VNI":7,"VtepMAC":"AA:bb:cc:00:00:01"}"#,
        ),
        ("flannel.alpha.coreos.com/public-ip", "192.168.0.11"),
        ("flannel.alpha.coreos.com/kube-subnet-manager", "true"),
    ];
    Node {
        name: "n1".to_owned(),
        pod_cidrs: vec!["fd00:1::/64".to_owned(), "10.244.1.0/24".to_owned()],
        annotations: annotations
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..Node::default()
    }
}

fn existing() -> IpPool {
    IpPool {
        name: "mine".to_owned(),
        cidr: "10.244.0.0/16".parse().unwrap(),
        block_size: 24,
        vxlan_mode: "Always".to_owned(),
        ipip_mode: "Never".to_owned(),
        nat_outgoing: true,
        disabled: false,
        node_selector: "all()".to_owned(),
    }
}

fn by_name(pools: impl IntoIterator<Item = IpPool>) -> BTreeMap<String, IpPool> {
    pools.into_iter().map(|pool| (pool.name.clone(), pool)).collect()
}

#[test]
fn a_new_pool_covers_flannels_network() {
    let found = pool(&settings(), &network(), &BTreeMap::new()).unwrap();
    assert_eq!(
        (found.name.as_str(), found.block_size),
        ("default-ipv4-ippool", 26)
    );
    assert_eq!(
        found.create.unwrap(),
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
            "metadata": {"name": "default-ipv4-ippool"},
            "spec": {
                "cidr": "10.244.0.0/16", "blockSize": 26, "ipipMode": "Never", "vxlanMode": "Always",
                "natOutgoing": true, "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"],
            },
        })
    );
}

#[test]
fn a_block_is_at_most_as_large_as_the_subnet_of_a_node() {
    let mut settings = settings();
    settings.flannel_subnet_length.value = 28;
    assert_eq!(
        pool(&settings, &settings.pod_networks()[0], &BTreeMap::new())
            .unwrap()
            .block_size,
        28
    );
}

#[test]
fn a_pool_with_the_same_range_is_used() {
    let apart = IpPool {
        name: "v6".to_owned(),
        cidr: "fd00::/48".parse().unwrap(),
        ..existing()
    };
    let found = pool(&settings(), &network(), &by_name([existing(), apart])).unwrap();
    assert_eq!(
        found,
        Pool {
            name: "mine".to_owned(),
            range: "10.244.0.0/16".parse().unwrap(),
            block_size: 24,
            create: None
        }
    );
}

#[rstest]
#[case::inside("mine", "10.244.128.0/17")]
#[case::around("mine", "10.0.0.0/8")]
#[case::same_name("default-ipv4-ippool", "192.168.0.0/16")]
fn an_overlapping_pool_or_its_name_is_a_conflict(#[case] name: &str, #[case] cidr: &str) {
    let conflicting = IpPool {
        name: name.to_owned(),
        cidr: cidr.parse().unwrap(),
        ..existing()
    };
    let error = pool(&settings(), &network(), &by_name([conflicting])).unwrap_err();
    assert_eq!(
        (error.name.as_str(), error.field, error.found.as_str()),
        (name, "cidr", cidr)
    );
}

#[rstest]
#[case::vxlan("vxlanMode", IpPool { vxlan_mode: "CrossSubnet".to_owned(), ..existing() })]
#[case::ipip("ipipMode", IpPool { ipip_mode: "Always".to_owned(), ..existing() })]
#[case::nat("natOutgoing", IpPool { nat_outgoing: false, ..existing() })]
#[case::large_blocks("blockSize", IpPool { block_size: 23, ..existing() })]
#[case::disabled("disabled", IpPool { disabled: true, ..existing() })]
#[case::some_nodes("nodeSelector", IpPool { node_selector: "zone == 'a'".to_owned(), ..existing() })]
fn a_pool_that_would_break_traffic_is_a_conflict(#[case] field: &str, #[case] found: IpPool) {
    assert_eq!(
        pool(&settings(), &network(), &by_name([found]))
            .unwrap_err()
            .field,
        field
    );
}

#[test]
fn felix_gets_the_parameters_of_flannels_device() {
    let object = felix_configuration(&settings());
    assert_eq!(object["spec"]["vxlanVNI"], 7);
    assert_eq!(object["spec"]["vxlanPort"], 8473);
    assert_eq!(object["spec"]["vxlanMTU"], 1450);
    assert_eq!(object["spec"]["floatingIPs"], "Disabled");
    assert_eq!(felix_configuration_change(&settings(), &object["spec"]), None);
}

#[rstest]
#[case::empty(json!({}), json!({"vxlanVNI": 7, "vxlanPort": 8473, "vxlanMTU": 1450}))]
#[case::null(Value::Null, json!({"vxlanVNI": 7, "vxlanPort": 8473, "vxlanMTU": 1450}))]
#[case::one_differs(json!({"vxlanVNI": 7, "vxlanPort": 8472, "vxlanMTU": 1450, "ipv6Support": false}), json!({"vxlanPort": 8473}))]
#[case::left_disabled(
    json!({"vxlanVNI": 7, "vxlanPort": 8473, "vxlanMTU": 1450, "vxlanEnabled": false}),
    json!({"vxlanEnabled": null})
)]
fn only_fields_of_replumb_are_patched(#[case] spec: Value, #[case] expected: Value) {
    let mut change = felix_configuration_change(&settings(), &spec).unwrap();
    for (key, value) in felix_startup_values() {
        assert_eq!(
            change.as_object_mut().unwrap().remove(key),
            Some(value.into()),
            "{key} is filled in"
        );
    }
    assert_eq!(change, expected);
}

#[test]
fn the_listed_fields_are_exactly_the_written_fields() {
    let keys =
        |object: &Value| -> Vec<String> { object["spec"].as_object().unwrap().keys().cloned().collect() };
    let mut felix = keys(&felix_configuration(&dual_stack().0));
    felix.push("vxlanEnabled".to_owned());
    felix.sort();
    let mut listed = FELIX_CONFIGURATION_FIELDS.to_vec();
    listed.sort_unstable();
    assert_eq!(felix, listed);
    let mut listed = IPAM_CONFIG_FIELDS.to_vec();
    listed.sort_unstable();
    assert_eq!(keys(&ipam_config()), listed);
}

#[test]
fn a_startup_value_that_exists_is_not_changed() {
    let mut spec = felix_configuration(&settings())["spec"].clone();
    spec["logSeverityScreen"] = "Debug".into();
    assert_eq!(felix_configuration_change(&settings(), &spec), None);
}

#[test]
fn ipam_config_restricts_allocation_to_the_nodes_blocks() {
    let object = ipam_config();
    assert_eq!(
        object["spec"],
        json!({"strictAffinity": true, "autoAllocateBlocks": false})
    );
    assert_eq!(ipam_config_change(&object["spec"]), None);
    assert_eq!(
        ipam_config_change(
            &json!({"strictAffinity": true, "autoAllocateBlocks": true, "maxBlocksPerHost": 4})
        ),
        Some(json!({"autoAllocateBlocks": false}))
    );
}

#[test]
fn a_claim_has_the_labels_of_calico() {
    let block = "10.244.1.64/26".parse().unwrap();
    let object = block_affinity("n1", block, ClaimState::Pending);
    assert_eq!(object["metadata"]["name"], "n1-10-244-1-64-26");
    assert_eq!(
        object["metadata"]["labels"]["projectcalico.org/affinity-type"],
        "host"
    );
    assert_eq!(object["metadata"]["labels"]["projectcalico.org/ip-version"], "4");
    assert_eq!(
        object["metadata"]["labels"]["projectcalico.org/hostname-hash"],
        hostname_hash("n1")
    );
    assert_eq!(
        object["spec"],
        json!({"state": "pending", "node": "n1", "type": "host", "cidr": "10.244.1.64/26", "deleted": "false"})
    );
}

#[rstest]
#[case("pending", ClaimState::Confirmed, Some("confirmed"))]
#[case("pendingDeletion", ClaimState::Confirmed, Some("confirmed"))]
#[case("pendingDeletion", ClaimState::Pending, Some("pending"))]
#[case("pending", ClaimState::Pending, None)]
#[case("confirmed", ClaimState::Pending, None)]
#[case("confirmed", ClaimState::Confirmed, None)]
fn a_claim_never_becomes_pending_again(
    #[case] found: &str,
    #[case] state: ClaimState,
    #[case] expected: Option<&str>,
) {
    let change = block_affinity_change(&json!({"state": found}), state);
    assert_eq!(change, expected.map(|state| json!({"state": state})));
}

#[test]
fn a_handle_counts_addresses_by_block() {
    let block = "10.244.1.0/26".parse().unwrap();
    let object = handle("vxlan-tunnel-addr-N1", block, 1);
    assert_eq!(object["metadata"]["name"], "vxlan-tunnel-addr-n1");
    assert_eq!(
        object["spec"],
        json!({"handleID": "vxlan-tunnel-addr-N1", "block": {"10.244.1.0/26": 1}, "deleted": false})
    );
    assert_eq!(handle_change(&object["spec"], block, 1), None);
    let other = json!({"block": {"10.244.9.0/26": 2}});
    assert_eq!(
        handle_change(&other, block, 1),
        Some(json!({"block": {"10.244.1.0/26": 1}}))
    );
}

#[rstest]
#[case("10.244.1.0/24", 26, &["10.244.1.0/26", "10.244.1.64/26", "10.244.1.128/26", "10.244.1.192/26"])]
#[case("10.244.1.0/26", 26, &["10.244.1.0/26"])]
fn a_subnet_is_split_into_blocks(#[case] range: &str, #[case] size: u8, #[case] expected: &[&str]) {
    let found: Vec<String> = blocks(range.parse().unwrap(), size)
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, expected);
}

#[rstest]
#[case("10.244.1.0/27", 26)]
#[case("10.244.1.0/24", 33)]
fn a_subnet_without_whole_blocks_is_an_error(#[case] range: &str, #[case] block_size: u8) {
    let range = range.parse().unwrap();
    assert_eq!(blocks(range, block_size), Err(RangeError { range, block_size }));
}

#[test]
fn a_node_has_blocks_a_tunnel_address_and_annotations() {
    let found = of_node(&node(), &settings(), &new_pools(&settings())).unwrap();
    let [ipv4] = found.ranges.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(ipv4.range, "10.244.1.0/24".parse().unwrap());
    assert_eq!(ipv4.blocks.len(), 4);
    assert_eq!(ipv4.tunnel.address, Ipv4Addr::new(10, 244, 1, 0));
    assert_eq!(ipv4.tunnel.handle, "vxlan-tunnel-addr-n1");
    assert_eq!(ipv4.tunnel.attributes["type"], "vxlanTunnelAddress");
    assert_eq!(
        found.allocations(ipv4.blocks[0]),
        std::slice::from_ref(&ipv4.tunnel)
    );
    assert_eq!(found.allocations(ipv4.blocks[1]), []);
    assert_eq!(
        found.annotations,
        BTreeMap::from([
            ("projectcalico.org/IPv4Address", "192.168.0.11/32".to_owned()),
            ("projectcalico.org/IPv4VXLANTunnelAddr", "10.244.1.0".to_owned()),
            (
                "projectcalico.org/VXLANTunnelMACAddr",
                "aa:bb:cc:00:00:01".to_owned()
            ),
        ])
    );
}

fn dual_stack() -> (Settings, Node) {
    let settings = Settings {
        ipv6: Some(Ipv6Settings {
            flannel_network: sourced("fd00:1::/56".parse().unwrap()),
            flannel_subnet_length: sourced(64),
            ip_pool_block_size: sourced(122),
        }),
        ..settings()
    };
    let mut node = node();
    for (key, value) in [
        ("public-ipv6", "fd00:172::b"),
        ("backend-v6-data", r#"{"VNI":7,"VtepMAC":"AA:bb:cc:00:00:06"}"#),
    ] {
        node.annotations
            .insert(format!("flannel.alpha.coreos.com/{key}"), value.to_owned());
    }
    (settings, node)
}

#[test]
fn a_dual_stack_node_has_objects_of_both_families() {
    let (settings, node) = dual_stack();
    let pools = new_pools(&settings);
    let names: Vec<(&str, u8)> = pools
        .iter()
        .map(|pool| (pool.name.as_str(), pool.block_size))
        .collect();
    assert_eq!(names, [("default-ipv4-ippool", 26), ("default-ipv6-ippool", 122)]);
    let found = of_node(&node, &settings, &pools).unwrap();
    let ipv6 = &found.ranges[1];
    assert_eq!(ipv6.range, "fd00:1::/64".parse().unwrap());
    let blocks: Vec<String> = ipv6.blocks.iter().map(ToString::to_string).collect();
    assert_eq!(
        blocks,
        [
            "fd00:1::/122",
            "fd00:1::40/122",
            "fd00:1::80/122",
            "fd00:1::c0/122"
        ],
        "a whole /64 is never claimed"
    );
    assert_eq!(ipv6.tunnel.address.to_string(), "fd00:1::");
    assert_eq!(ipv6.tunnel.handle, "vxlan-v6-tunnel-addr-n1");
    assert_eq!(ipv6.tunnel.attributes["type"], "vxlanV6TunnelAddress");
    assert_eq!(found.blocks().count(), 8);
    let annotation = |key: &str| found.annotations[key].as_str();
    assert_eq!(annotation("projectcalico.org/IPv4Address"), "192.168.0.11/32");
    assert_eq!(annotation("projectcalico.org/IPv6Address"), "fd00:172::b/128");
    assert_eq!(annotation("projectcalico.org/IPv6VXLANTunnelAddr"), "fd00:1::");
    assert_eq!(
        annotation("projectcalico.org/VXLANTunnelMACAddrV6"),
        "aa:bb:cc:00:00:06"
    );
    assert_eq!(felix_configuration(&settings)["spec"]["ipv6Support"], true);
}

#[test]
fn a_node_without_an_address_family_is_an_error() {
    let (settings, node) = dual_stack();
    let pools = new_pools(&settings);
    let mut without = node.clone();
    without.annotations.remove("flannel.alpha.coreos.com/public-ipv6");
    assert_eq!(
        of_node(&without, &settings, &pools).unwrap_err().to_string(),
        "Node n1: flannel's public-ipv6 is missing, needed the node's IPv6 address, which flannel takes from the interface of \
         the default route"
    );
    let mut without = node;
    without.pod_cidrs.remove(0);
    assert_eq!(
        of_node(&without, &settings, &pools).unwrap_err().to_string(),
        "Node n1: spec.podCIDRs is [\"10.244.1.0/24\"], needed an IPv6 subnet"
    );
}

#[test]
fn equal_annotations_are_not_written() {
    let mut node = node();
    // calico-node writes the prefix length of the host's subnet.
    for (key, value) in [
        (family::IPV4.address_annotation, "192.168.0.11/24"),
        (family::IPV4.tunnel_address_annotation, "10.244.1.0"),
        (family::IPV4.tunnel_mac_annotation, "AA:BB:CC:00:00:01"),
    ] {
        node.annotations.insert(key.to_owned(), value.to_owned());
    }
    assert_eq!(
        of_node(&node, &settings(), &new_pools(&settings()))
            .unwrap()
            .annotations,
        BTreeMap::new()
    );
    node.annotations.insert(
        family::IPV4.address_annotation.to_owned(),
        "192.168.0.1/24".to_owned(),
    );
    let changes = of_node(&node, &settings(), &new_pools(&settings()))
        .unwrap()
        .annotations;
    assert_eq!(
        changes,
        BTreeMap::from([(family::IPV4.address_annotation, "192.168.0.11/32".to_owned())])
    );
}

#[rstest]
#[case::no_range(|node: &mut Node| node.pod_cidrs = vec!["fd00::/64".to_owned()],
    "Node n1: spec.podCIDRs is [\"fd00::/64\"], needed an IPv4 subnet")]
#[case::small_range(|node: &mut Node| node.pod_cidrs = vec!["10.244.1.0/27".to_owned()],
    "Node n1: podCIDR 10.244.1.0/27 holds no block of size /26; needed a podCIDR of /26 or shorter")]
#[case::not_yet(|node: &mut Node| node.annotations.clear(),
    "Node n1: no annotations flannel.alpha.coreos.com/…; flannel has not run on this node")]
#[case::other_backend(
    |node: &mut Node| {
        node.annotations.insert("flannel.alpha.coreos.com/backend-type".to_owned(), "host-gw".to_owned());
    },
    "Node n1: flannel's backend is host-gw, needed vxlan")]
#[case::other_family(
    |node: &mut Node| {
        node.annotations.insert("flannel.alpha.coreos.com/public-ip".to_owned(), "fd00::1".to_owned());
    },
    "Node n1: flannel's public-ip is fd00::1, needed an IPv4 address")]
fn a_node_that_does_not_fit_is_an_error(#[case] change: fn(&mut Node), #[case] expected: &str) {
    let mut node = node();
    change(&mut node);
    assert_eq!(
        of_node(&node, &settings(), &new_pools(&settings()))
            .unwrap_err()
            .to_string(),
        expected
    );
}

#[test]
fn only_defaults_of_the_definition_are_defaults() {
    assert!(is_default("nftablesMode", &json!("Auto")));
    assert!(!is_default("nftablesMode", &json!("Enabled")));
    assert!(!is_default("bpfEnabled", &json!("Auto")));
}
