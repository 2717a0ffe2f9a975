use proptest::prelude::*;
use rstest::rstest;

use super::*;

const SUBNET: &str =
    "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

#[test]
fn a_subnet_environment_of_flannel_is_parsed() {
    let found = SubnetEnvironment::parse(SUBNET).unwrap();
    assert_eq!(
        found,
        SubnetEnvironment {
            network: "10.244.0.0/16".parse().unwrap(),
            subnet: "10.244.1.1/24".parse().unwrap(),
            mtu: 1450,
            ip_masquerade: true,
            ipv6: None,
        }
    );
}

#[test]
fn a_dual_stack_subnet_environment_needs_both_ipv6_keys() {
    let text =
        format!("{SUBNET}FLANNEL_IPV6_NETWORK=fd00:10:244::/56\nFLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\n");
    assert_eq!(
        SubnetEnvironment::parse(&text).unwrap().ipv6,
        Some(Ipv6Subnet {
            network: "fd00:10:244::/56".parse().unwrap(),
            subnet: "fd00:10:244:1::1/64".parse().unwrap(),
        })
    );
    let half = format!("{SUBNET}FLANNEL_IPV6_NETWORK=fd00:10:244::/56\n");
    assert_eq!(
        SubnetEnvironment::parse(&half).unwrap_err().to_string(),
        "subnet.env: key FLANNEL_IPV6_SUBNET is missing, needed one IPv6 network such as fd00:10:244::/56"
    );
}

#[rstest]
#[case("# comment\n\nFLANNEL_SOMETHING=fd00::/48\n")]
#[case("FLANNEL_MTU=9000\n")]
#[case("   \t\n")]
fn earlier_lines_do_not_change_the_result(#[case] before: &str) {
    let with = SubnetEnvironment::parse(&format!("{before}{SUBNET}")).unwrap();
    assert_eq!(with, SubnetEnvironment::parse(SUBNET).unwrap());
}

#[test]
fn windows_line_ends_do_not_change_the_result() {
    assert_eq!(
        SubnetEnvironment::parse(&SUBNET.replace('\n', "\r\n")),
        SubnetEnvironment::parse(SUBNET)
    );
}

#[rstest]
#[case(
    "FLANNEL_NETWORK=10.244.0.0/16",
    "",
    "subnet.env: key FLANNEL_NETWORK is missing, needed one IPv4 network such as 10.244.0.0/16"
)]
#[case(
    "FLANNEL_SUBNET=10.244.1.1/24",
    "",
    "subnet.env: key FLANNEL_SUBNET is missing, needed one IPv4 network such as 10.244.0.0/16"
)]
#[case(
    "FLANNEL_MTU=1450",
    "",
    "subnet.env: key FLANNEL_MTU is missing, needed a number of bytes from 68 to 65535"
)]
#[case(
    "FLANNEL_IPMASQ=true",
    "",
    "subnet.env: key FLANNEL_IPMASQ is missing, needed true or false"
)]
#[case(
    "FLANNEL_MTU=1450",
    "FLANNEL_MTU=fast",
    "subnet.env: key FLANNEL_MTU: found \"fast\", needed a number of bytes from 68 to 65535"
)]
#[case(
    "FLANNEL_MTU=1450",
    "FLANNEL_MTU=0",
    "subnet.env: key FLANNEL_MTU: found \"0\", needed a number of bytes from 68 to 65535"
)]
#[case(
    "FLANNEL_MTU=1450",
    "FLANNEL_MTU=65536",
    "subnet.env: key FLANNEL_MTU: found \"65536\", needed a number of bytes from 68 to 65535"
)]
#[case(
    "FLANNEL_MTU=1450",
    "FLANNEL_MTU",
    "subnet.env: line 3: found \"FLANNEL_MTU\", needed KEY=VALUE"
)]
#[case(
    "FLANNEL_IPMASQ=true",
    "FLANNEL_IPMASQ=yes",
    "subnet.env: key FLANNEL_IPMASQ: found \"yes\", needed true or false"
)]
#[case(
    "10.244.0.0/16",
    "10.244.0.0/16,10.245.0.0/16",
    "subnet.env: key FLANNEL_NETWORK: found \"10.244.0.0/16,10.245.0.0/16\", needed one IPv4 network such as 10.244.0.0/16"
)]
#[case(
    "10.244.1.1/24",
    "fd00::/64",
    "subnet.env: key FLANNEL_SUBNET: found \"fd00::/64\", needed one IPv4 network such as 10.244.0.0/16"
)]
#[case(
    "10.244.1.1/24",
    "10.244.1.1/33",
    "subnet.env: key FLANNEL_SUBNET: found \"10.244.1.1/33\", needed one IPv4 network such as 10.244.0.0/16"
)]
fn a_malformed_subnet_environment_is_an_error(#[case] from: &str, #[case] to: &str, #[case] message: &str) {
    let text = SUBNET.replacen(from, to, 1);
    assert_ne!(text, SUBNET);
    assert_eq!(SubnetEnvironment::parse(&text).unwrap_err().to_string(), message);
}

#[test]
fn missing_keys_of_the_network_configuration_have_defaults() {
    let found =
        NetworkConfiguration::parse(r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}"#).unwrap();
    assert_eq!(
        found,
        NetworkConfiguration {
            network: "10.244.0.0/16".parse().unwrap(),
            subnet_length: None,
            ipv6_network: None,
            nftables: false,
            backend: "vxlan".to_owned(),
            vni: 1,
            port: 8472,
            direct_routing: false,
            learning: false,
            group_policy: false,
            mtu: None,
        }
    );
}

#[test]
fn keys_of_the_network_configuration_match_in_any_case() {
    let found = NetworkConfiguration::parse(
        r#"{"NETWORK": "10.1.2.3/16", "subnetlen": 25, "enableipv6": true, "ipv6network": "fd00:10:244::1/56", "enableipv4": true, "ENABLENFTABLES": true, "SubnetMin": "x",
            "backend": {"type": "VXLAN", "vni": 4096, "PORT": 8473, "directrouting": true, "LEARNING": true,
            "mtu": 1400, "GBP": true}}"#,
    )
    .unwrap();
    assert_eq!(
        found,
        NetworkConfiguration {
            network: "10.1.0.0/16".parse().unwrap(),
            subnet_length: Some(25),
            ipv6_network: Some("fd00:10:244::/56".parse().unwrap()),
            nftables: true,
            backend: "VXLAN".to_owned(),
            vni: 4096,
            port: 8473,
            direct_routing: true,
            learning: true,
            group_policy: true,
            mtu: Some(1400),
        }
    );
    assert!(found.is_vxlan());
}

#[rstest]
#[case::port_zero(r#""Port": 0"#)]
#[case::port_null(r#""Port": null"#)]
#[case::mtu_zero(r#""MTU": 0"#)]
fn zero_and_null_give_the_default(#[case] pair: &str) {
    let text = format!(r#"{{"Network": "10.244.0.0/16", "Backend": {{"Type": "vxlan", {pair}}}}}"#);
    let found = NetworkConfiguration::parse(&text).unwrap();
    assert_eq!((found.port, found.mtu), (DEFAULT_PORT, None));
}

#[test]
fn a_missing_backend_is_flannels_oldest() {
    let found = NetworkConfiguration::parse(r#"{"Network": "10.244.0.0/16"}"#).unwrap();
    assert_eq!(found.backend, "udp");
    assert!(!found.is_vxlan());
}

#[rstest]
#[case(
    "",
    "net-conf.json: not a JSON object: EOF while parsing a value at line 1 column 0"
)]
#[case("[]", "net-conf.json: not a JSON object: found a list")]
#[case(
    "{}",
    "net-conf.json: key Network is missing, needed one IPv4 network such as 10.244.0.0/16"
)]
#[case(
    r#"{"Network": 10}"#,
    "net-conf.json: key Network: found 10, needed one IPv4 network such as 10.244.0.0/16"
)]
#[case(
    r#"{"Network": "10.244.0.0"}"#,
    "net-conf.json: key Network: found \"10.244.0.0\", needed one IPv4 network such as 10.244.0.0/16"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "Backend": "vxlan"}"#,
    "net-conf.json: key Backend: found \"vxlan\", needed an object with a Type"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "Backend": {}}"#,
    "net-conf.json: key Backend.Type is missing, needed the name of a backend, such as vxlan"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": "1"}}"#,
    "net-conf.json: key Backend.VNI: found \"1\", needed a number from 0 to 16777215"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 16777216}}"#,
    "net-conf.json: key Backend.VNI: found 16777216, needed a number from 0 to 16777215"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "Port": 65536}}"#,
    "net-conf.json: key Backend.Port: found 65536, needed a UDP port from 1 to 65535"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "Port": -1}}"#,
    "net-conf.json: key Backend.Port: found -1, needed a UDP port from 1 to 65535"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "DirectRouting": "yes"}}"#,
    "net-conf.json: key Backend.DirectRouting: found \"yes\", needed true or false"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 1, "vni": 2}}"#,
    "net-conf.json: key Backend.VNI is written 2 times: VNI, vni; needed once"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "EnableIPv6": true}"#,
    "net-conf.json: key IPv6Network is missing, needed one IPv6 network such as fd00:10:244::/56"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "10.1.0.0/16"}"#,
    "net-conf.json: key IPv6Network: found \"10.1.0.0/16\", needed one IPv6 network such as fd00:10:244::/56"
)]
#[case(
    r#"{"Network": "10.244.0.0/16", "SubnetLen": 31}"#,
    "net-conf.json: key SubnetLen: found 31, needed a prefix length up to 30"
)]
fn a_malformed_network_configuration_is_an_error(#[case] text: &str, #[case] message: &str) {
    assert_eq!(
        NetworkConfiguration::parse(text).unwrap_err().to_string(),
        message
    );
}

#[rstest]
#[case("flannel.alpha.coreos.com", Some("flannel.alpha.coreos.com/public-ip"))]
#[case("flannel.alpha.coreos.com/", Some("flannel.alpha.coreos.com/public-ip"))]
#[case("example.com/blue", Some("example.com/blue-public-ip"))]
#[case("example.com/blue-", Some("example.com/blue-public-ip"))]
#[case("example", None)]
#[case("example.com/blue/green", None)]
#[case("Example.com", None)]
#[case("example..com", None)]
#[case("", None)]
fn a_prefix_gives_the_key_that_flannel_uses(#[case] prefix: &str, #[case] key: Option<&str>) {
    assert_eq!(annotation_key(prefix, "public-ip").ok().as_deref(), key);
}

fn annotations(prefix: &str, pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| (format!("{prefix}{key}"), (*value).to_owned()))
        .collect()
}

const GOOD: [(&str, &str); 4] = [
    ("backend-type", "vxlan"),
    ("backend-data", r#"{"VNI":1,"VtepMAC":"8E:AA:bb:cc:dd:01"}"#),
    ("public-ip", "192.168.0.11"),
    ("kube-subnet-manager", "true"),
];

#[rstest]
#[case("flannel.alpha.coreos.com/", "flannel.alpha.coreos.com")]
#[case("example.com/blue-", "example.com/blue")]
fn node_annotations_are_parsed_with_their_prefix(#[case] written: &str, #[case] prefix: &str) {
    let found = NodeAnnotations::read(&annotations(written, &GOOD), prefix)
        .unwrap()
        .unwrap();
    assert_eq!(
        found,
        NodeAnnotations {
            backend: "vxlan".to_owned(),
            vtep_mac: "8e:aa:bb:cc:dd:01".to_owned(),
            vni: Some(1),
            public_address: "192.168.0.11".parse().unwrap(),
            kube_subnet_manager: true,
            ipv6: None,
        }
    );
}

#[test]
fn dual_stack_annotations_need_both_ipv6_keys() {
    let mut pairs = GOOD.to_vec();
    pairs.push(("public-ipv6", "fd00:172:30::b"));
    let error = NodeAnnotations::read(&annotations("a.b/", &pairs), "a.b").unwrap_err();
    assert!(
        error.to_string().contains("key a.b/backend-v6-data is missing"),
        "{error}"
    );
    pairs.push(("backend-v6-data", r#"{"VNI":1,"VtepMAC":"8E:AA:bb:cc:dd:06"}"#));
    let found = NodeAnnotations::read(&annotations("a.b/", &pairs), "a.b")
        .unwrap()
        .unwrap();
    let ipv6 = Ipv6Annotations {
        vtep_mac: "8e:aa:bb:cc:dd:06".to_owned(),
        public_address: "fd00:172:30::b".parse().unwrap(),
    };
    assert_eq!(found.ipv6, Some(ipv6));
}

#[test]
fn annotations_with_another_prefix_are_ignored() {
    let found = NodeAnnotations::read(&annotations("example.com/blue-", &GOOD), "example.com/green");
    assert_eq!(found, Ok(None));
}

#[test]
fn keys_of_backend_data_match_in_any_case() {
    let mut pairs = GOOD;
    pairs[1].1 = r#"{"vni": 7, "vtepmac": "8e-aa-bb-cc-dd-01"}"#;
    let found = NodeAnnotations::read(&annotations("a.b/", &pairs), "a.b")
        .unwrap()
        .unwrap();
    assert_eq!(
        (found.vni, found.vtep_mac.as_str()),
        (Some(7), "8e:aa:bb:cc:dd:01")
    );
}

#[test]
fn another_backend_than_vxlan_has_no_vtep_mac() {
    let pairs = [
        ("backend-type", "host-gw"),
        ("backend-data", "null"),
        ("public-ip", "192.168.0.11"),
    ];
    let found = NodeAnnotations::read(&annotations("a.b/", &pairs), "a.b")
        .unwrap()
        .unwrap();
    assert_eq!((found.backend.as_str(), found.vtep_mac.as_str()), ("host-gw", ""));
    assert!(!found.kube_subnet_manager);
}

#[rstest]
#[case(
    0,
    "",
    "annotations a.b: key a.b/backend-type is missing, needed the name of a backend, such as vxlan"
)]
#[case(
    1,
    "",
    "annotations a.b: key a.b/backend-data is missing, needed JSON such as {\"VNI\":1,\"VtepMAC\":\"…\"}"
)]
#[case(
    2,
    "",
    "annotations a.b: key a.b/public-ip is missing, needed the node's address"
)]
#[case(
    2,
    "node-1",
    "annotation: key a.b/public-ip: found \"node-1\", needed an IP address"
)]
#[case(
    1,
    "{",
    "annotation a.b/backend-data: not a JSON object: EOF while parsing an object at line 1 column 1"
)]
#[case(1, "null", "annotation a.b/backend-data: not a JSON object: found null")]
#[case(
    1,
    "{}",
    "annotation a.b/backend-data: key VtepMAC is missing, needed a MAC address of six bytes"
)]
#[case(
    1,
    r#"{"VtepMAC":"8e:aa"}"#,
    "annotation a.b/backend-data: key VtepMAC: found \"8e:aa\", needed a MAC address of six bytes"
)]
#[case(
    1,
    r#"{"VtepMAC":"8e:aa:bb:cc:dd:01","VNI":"1"}"#,
    "annotation a.b/backend-data: key VNI: found \"1\", needed a number from 0 to 16777215"
)]
fn a_malformed_node_annotation_is_an_error(#[case] index: usize, #[case] value: &str, #[case] message: &str) {
    let mut pairs = GOOD.to_vec();
    if value.is_empty() {
        pairs.remove(index);
    } else {
        pairs[index].1 = value;
    }
    let error = NodeAnnotations::read(&annotations("a.b/", &pairs), "a.b").unwrap_err();
    assert_eq!(error.to_string(), message);
}

proptest! {
    #[test]
    fn subnet_environment_never_panics(text in "\\PC*") {
        let _ = SubnetEnvironment::parse(&text);
    }

    #[test]
    fn network_configuration_never_panics(text in "\\PC*") {
        let _ = NetworkConfiguration::parse(&text);
    }

    #[test]
    fn network_configuration_with_any_value_never_panics(key in "(Network|SubnetLen|EnableIPv4|EnableIPv6|IPv6Network|Backend)", value in any_json()) {
        let _ = NetworkConfiguration::parse(&serde_json::json!({key: value}).to_string());
    }

    #[test]
    fn backend_with_any_value_stays_in_bounds(key in "(Type|VNI|Port|MTU|Learning)", value in any_json()) {
        let document = serde_json::json!({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", key: value}});
        if let Ok(found) = NetworkConfiguration::parse(&document.to_string()) {
            prop_assert!(found.vni <= LARGEST_VNI);
            prop_assert!(found.port > 0);
        }
    }

    #[test]
    fn annotations_never_panic(data in "\\PC*", address in "\\PC*", prefix in "\\PC{0,12}") {
        let pairs = [("backend-type", "vxlan"), ("backend-data", data.as_str()), ("public-ip", address.as_str())];
        let _ = NodeAnnotations::read(&annotations("a.b/", &pairs), "a.b");
        let _ = annotation_key(&prefix, "public-ip");
    }

    #[test]
    fn any_valid_subnet_environment_is_parsed(
        octet in any::<u8>(), length in 8u8..=30, mtu in 68u32..=65535, masquerade in any::<bool>(),
    ) {
        let text = format!(
            "FLANNEL_NETWORK=10.{octet}.0.0/{length}\nFLANNEL_SUBNET=10.{octet}.0.1/{length}\n\
             FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ={masquerade}\n"
        );
        let found = SubnetEnvironment::parse(&text).unwrap();
        prop_assert_eq!((found.mtu, found.ip_masquerade), (mtu, masquerade));
        prop_assert_eq!(found.subnet.prefix_len(), length);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC*".prop_map(Value::from),
        Just(serde_json::json!([])),
        Just(serde_json::json!({})),
    ]
}
