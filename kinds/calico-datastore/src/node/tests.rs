use rstest::rstest;
use serde_json::json;

use super::*;
use crate::convert::convert as whole;
use crate::fixture::{converted, tree};

#[test]
fn a_host_with_all_values_is_converted() {
    let conversion = converted(&[
        ("/calico/v1/host/Node1.Example/metadata", "{}"),
        ("/calico/v1/host/Node1.Example/bird_ip", "10.0.0.1"),
        (
            "/calico/v1/host/Node1.Example/config/IpInIpTunnelAddr",
            "100.96.1.1",
        ),
        (
            "/calico/v1/host/Node1.Example/orchestrator_refs",
            r#"[{"orchestrator": "k8s", "nodeName": "node1"}, {}]"#,
        ),
        ("/calico/bgp/v1/host/Node1.Example/ip_addr_v4", "10.0.0.1"),
        ("/calico/bgp/v1/host/Node1.Example/network_v4", "10.0.0.0/24"),
        ("/calico/bgp/v1/host/Node1.Example/ip_addr_v6", "fd00::2"),
        ("/calico/bgp/v1/host/Node1.Example/network_v6", ""),
        ("/calico/bgp/v1/host/Node1.Example/as_num", "1.10"),
    ]);
    assert_eq!(conversion.report_lines(), [""; 0]);
    assert_eq!(
        conversion.names(),
        ["Node(name=Node1.Example) -> Node(node1.example)"]
    );
    assert_eq!(
        conversion.value("nodes/node1.example"),
        &json!({
            "kind": "Node", "apiVersion": "projectcalico.org/v3", "metadata": { "name": "node1.example" },
            "spec": {
                "bgp": {
                    "asNumber": 65546, "ipv4Address": "10.0.0.1/24", "ipv6Address": "fd00::2/128",
                    "ipv4IPIPTunnelAddr": "100.96.1.1",
                },
                "orchRefs": [{ "nodeName": "node1", "orchestrator": "k8s" }, { "orchestrator": "" }],
            },
        })
    );
}

#[test]
fn a_directory_or_a_value_below_host_is_a_node() {
    let mut tree = tree(&[("/calico/v1/host/b", "x")]);
    tree.directories.insert("/calico/v1/host/a".to_owned());
    let conversion = whole(&tree);
    assert_eq!(
        conversion.names(),
        ["Node(name=a) -> Node(a)", "Node(name=b) -> Node(b)"]
    );
    assert_eq!(conversion.value("nodes/a")["spec"], json!({}));
}

#[test]
fn two_hosts_with_one_name_clash() {
    let conversion = converted(&[
        ("/calico/v1/host/Node-A/metadata", "{}"),
        ("/calico/v1/host/node-a/metadata", "{}"),
        ("/calico/v1/host/node_a/metadata", "{}"),
    ]);
    let clashes: Vec<String> = conversion.clashes.iter().map(ToString::to_string).collect();
    assert_eq!(
        clashes,
        [
            "Node(name=node-a) and Node(name=Node-A) -> Node(node-a)",
            "Node(name=node_a) and Node(name=node-a) -> Node(node-a)",
        ]
    );
    assert_eq!(conversion.names(), ["Node(name=Node-A) -> Node(node-a)"]);
    assert!(!conversion.is_clean());
}

#[rstest]
#[case("ip_addr_v4", "10.0.0.300", Difference::NodeValue)]
#[case("network_v6", "fd00::", Difference::NodeValue)]
#[case("as_num", "seventy", Difference::NodeValue)]
fn an_invalid_value_is_reported_and_the_others_are_converted(
    #[case] name: &str,
    #[case] value: &str,
    #[case] difference: Difference,
) {
    let conversion = converted(&[
        ("/calico/v1/host/a/metadata", "{}"),
        ("/calico/bgp/v1/host/a/ip_addr_v6", "fd00::1"),
        (&format!("/calico/bgp/v1/host/a/{name}"), value),
    ]);
    let report = conversion.report_lines();
    assert!(
        report.len() == 1 && report[0].starts_with(&format!("HostBGPConfig(node=a; name={name}): ")),
        "{report:?}"
    );
    assert!(conversion.differs_by(difference));
    assert_eq!(
        conversion.value("nodes/a")["spec"],
        json!({ "bgp": { "ipv6Address": "fd00::1/128" } })
    );
}

#[test]
fn invalid_orchestrator_references_are_reported_in_one_line() {
    let conversion = converted(&[("/calico/v1/host/a/orchestrator_refs", "k8s")]);
    let report = conversion.report_lines();
    assert!(
        report.len() == 1 && report[0].starts_with("OrchRefs(nodename=a): "),
        "{report:?}"
    );
}

#[rstest]
#[case::six_in_four("ip_addr_v4", "fd00::1", "spec.bgp.ipv4Address is \"fd00::1/128\"")]
#[case::four_in_six("ip_addr_v6", "10.0.0.1", "spec.bgp.ipv6Address is \"10.0.0.1/32\"")]
fn an_address_of_the_other_family_is_refused(#[case] name: &str, #[case] value: &str, #[case] words: &str) {
    let conversion = converted(&[
        ("/calico/v1/host/a/metadata", "{}"),
        (&format!("/calico/bgp/v1/host/a/{name}"), value),
    ]);
    let report = conversion.report_lines();
    assert!(report.len() == 1 && report[0].contains(words), "{report:?}");
    assert!(report[0].starts_with("Node(name=a) -> Node(a): "), "{report:?}");
}

#[test]
fn an_address_and_a_network_of_two_families_are_refused() {
    let conversion = converted(&[
        ("/calico/v1/host/a/metadata", "{}"),
        ("/calico/bgp/v1/host/a/ip_addr_v6", "fd00::1"),
        ("/calico/bgp/v1/host/a/network_v6", "10.0.0.0/24"),
    ]);
    assert_eq!(conversion.validation_errors.len(), 1);
}

#[test]
fn an_invalid_tunnel_address_is_reported() {
    let values = [
        ("/calico/v1/host/A/config/IpInIpTunnelAddr", "<none>"),
        ("/calico/bgp/v1/host/A/ip_addr_v4", "10.0.0.1"),
    ];
    let conversion = converted(&values);
    let report = conversion.report_lines();
    assert!(
        report[0].starts_with("HostConfig(node=a,name=IpInIpTunnelAddr): found \"<none>\""),
        "{report:?}"
    );
    assert!(conversion.differs_by(Difference::TunnelAddress));
}

#[test]
fn settings_without_a_place_in_v3_have_notes() {
    let conversion = converted(&[
        ("/calico/v1/host/a/config/IpInIpTunnelAddr", "10.0.0.1"),
        ("/calico/bgp/v1/host/gone/ip_addr_v4", "10.0.0.9"),
        ("/calico/bgp/v1/host/a/loglevel", "debug"),
    ]);
    let report = conversion.report_lines();
    assert!(conversion.is_clean() && report.len() == 3, "{report:?}");
    for (line, words) in report
        .iter()
        .zip(["10.0.0.1 is not copied", "host gone", "/loglevel"])
    {
        assert!(line.contains(words), "{report:?}");
    }
}

#[test]
fn a_host_without_a_letter_is_reported() {
    let conversion = converted(&[("/calico/v1/host/---/metadata", "{}")]);
    let report = conversion.report_lines();
    assert!(
        report.len() == 1 && report[0].starts_with("Node(name=---) -> Node(): metadata.name is \"\""),
        "{report:?}"
    );
}
