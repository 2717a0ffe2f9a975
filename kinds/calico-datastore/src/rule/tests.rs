use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::decode::read;
use crate::finding::Findings;
use crate::validate::rule;

fn convert(old: &Value) -> (Vec<Rule>, usize) {
    let rules: Vec<OldRule> = read(&old.to_string()).unwrap();
    let mut notes = 0;
    (converted(&rules, "inbound_rules", &mut |_| notes += 1), notes)
}

/// The rule in v3, and the fields that v3 refuses.
fn checked(old: &Value) -> (Value, Vec<String>) {
    let (rules, _) = convert(&json!([old]));
    let mut findings = Findings::default();
    rule::rules("spec.ingress", &rules, &mut findings);
    let report = findings.0.iter().map(ToString::to_string).collect();
    (serde_json::to_value(&rules).unwrap()[0].clone(), report)
}

#[test]
fn an_empty_rule_allows_everything() {
    let (rule, report) = checked(&json!({}));
    assert_eq!(
        rule,
        json!({ "action": "Allow", "source": {}, "destination": {} })
    );
    assert_eq!(report, [""; 0]);
}

#[test]
fn the_single_network_comes_last_and_all_are_masked() {
    let (rule, report) = checked(&json!({
        "src_net": "192.168.0.129/25", "src_nets": ["30.0.0.3/24", "40.0.0.4"], "!dst_net": "20.0.0.2/24", "dst_net": "",
    }));
    assert_eq!(
        rule["source"],
        json!({ "nets": ["30.0.0.0/24", "40.0.0.4/32", "192.168.0.128/25"] })
    );
    assert_eq!(rule["destination"], json!({ "notNets": ["20.0.0.0/24"] }));
    assert_eq!(report, [""; 0]);
}

#[test]
fn tags_and_the_namespace_label_become_parts_of_selectors() {
    let (rule, report) = checked(&json!({
        "src_tag": "tag1", "src_selector": "has(calico/k8s_ns) || bake == 'cake'", "!src_tag": "bad",
    }));
    assert_eq!(
        rule["source"],
        json!({
            "selector": "(has(projectcalico.org/namespace) || bake == 'cake') && tag1 == ''",
            "notSelector": "bad == ''",
        })
    );
    assert_eq!(report, [""; 0]);
}

#[rstest]
#[case("", "Allow")]
#[case("allow", "Allow")]
#[case("DENY", "Deny")]
#[case("next-tier", "Pass")]
#[case("pass", "Pass")]
#[case("log", "Log")]
#[case("Next-Tier", "Next-Tier")]
#[case("reject", "reject")]
fn an_action_is_converted_to_v3(#[case] old: &str, #[case] new: &str) {
    let (rule, report) = checked(&json!({ "action": old }));
    assert_eq!(rule["action"], new);
    assert_eq!(report.is_empty(), ACTIONS.contains(&new));
}

#[test]
fn icmp_types_and_codes_are_converted() {
    let (rule, report) =
        checked(&json!({ "protocol": "icmp", "icmp_type": 8, "icmp_code": 0, "!icmp_type": 0 }));
    assert_eq!(rule["icmp"], json!({ "type": 8, "code": 0 }));
    assert_eq!(rule["notICMP"], json!({ "type": 0 }));
    assert_eq!(report, [""; 0]);
}

#[rstest]
#[case::ports_without_protocol(json!({ "dst_ports": [80] }), &["protocol is missing", "destination.ports"])]
#[case::not_ports(json!({ "!src_ports": [80] }), &["source.notPorts"])]
#[case::ports_of_icmp(json!({ "protocol": "icmp", "dst_ports": [80] }), &["protocol is \"ICMP\""])]
#[case::protocol(json!({ "protocol": "gre" }), &["\"gre\""])]
#[case::not_protocol(json!({ "!protocol": 0 }), &["notProtocol is 0"])]
#[case::port_zero(json!({ "protocol": 6, "dst_ports": [0] }), &["destination.ports[0] is \"0\""])]
#[case::range_from_zero(json!({ "protocol": 6, "dst_ports": ["0:5"] }), &["\"0:5\""])]
#[case::port_name(json!({ "protocol": 6, "dst_ports": ["not_a_name"] }), &["\"not_a_name\""])]
#[case::icmp_type(json!({ "protocol": "icmp", "icmp_type": 255 }), &["icmp.type is 255", "0 to 254"])]
#[case::icmp_code(json!({ "protocol": "icmp", "icmp_type": 0, "icmp_code": 256 }), &["0 to 255"])]
#[case::negative(json!({ "protocol": "icmp", "icmp_type": -1 }), &["icmp.type is -1"])]
#[case::code_alone(json!({ "!icmp_code": 1 }), &["notICMP.code is 1", "a type"])]
#[case::icmp_by_number(json!({ "protocol": 1, "icmp_type": 1 }), &["protocol is 1", "as a name"])]
#[case::version(json!({ "ip_version": 5 }), &["ipVersion is 5"])]
#[case::version_zero(json!({ "ip_version": 0 }), &["ipVersion is 0"])]
#[case::icmp_of_six(json!({ "protocol": "icmp", "ip_version": 6 }), &["ipVersion is 6", "4"])]
#[case::not_icmpv6_of_four(json!({ "!protocol": "icmpv6", "ip_version": 4 }), &["ipVersion is 4"])]
#[case::family(json!({ "ip_version": 6, "src_net": "10.0.0.0/8" }), &["networks of IPv6"])]
#[case::families(json!({ "src_net": "10.0.0.0/8", "dst_net": "fd00::/64" }), &["destination.nets", "one family"])]
#[case::families_in_a_list(json!({ "src_nets": ["10.0.0.0/8", "fd00::/64"] }), &["source.nets", "one family"])]
#[case::selector(json!({ "src_selector": "role = bad" }), &["\"role = bad\"", "byte 5"])]
#[case::tag(json!({ "!dst_tag": "bad tag" }), &["notSelector"])]
fn a_rule_that_v3_refuses_is_reported(#[case] old: Value, #[case] words: &[&str]) {
    let (_, report) = checked(&old);
    assert_eq!(report.len(), 1, "{report:?}");
    for word in words {
        assert!(report[0].contains(word), "{report:?}");
    }
}

#[rstest]
#[case(json!([{ "src_nets": [null] }]))]
#[case(json!([{ "!dst_nets": [""] }]))]
#[case(json!([{ "src_net": "10.0.0.0/99" }]))]
#[case(json!([{ "protocol": 256 }]))]
#[case(json!([{ "icmp_type": "8" }]))]
#[case(json!([{ "log_prefix": 5 }]))]
#[case(json!([{ "http": { "methods": "GET" } }]))]
fn an_invalid_rule_is_refused(#[case] old: Value) {
    assert!(read::<Vec<OldRule>>(&old.to_string()).is_err());
}

#[test]
fn a_lost_prefix_and_a_changed_selector_have_notes() {
    let (_, notes) = convert(&json!([
        { "log_prefix": "seen", "src_selector": "a == 'calico/k8s_ns'" },
        { "!dst_selector": "calico/k8s_ns == 'a'" },
    ]));
    assert_eq!(notes, 2);
}

fn old_rule() -> impl Strategy<Value = Value> {
    let network = prop_oneof![
        (any::<u32>(), 0_u8..=32)
            .prop_map(|(bits, length)| format!("{}/{length}", std::net::Ipv4Addr::from(bits))),
        any::<u32>().prop_map(|bits| std::net::Ipv4Addr::from(bits).to_string()),
    ];
    let networks = prop::collection::vec(network, 0..3);
    let ports = prop::collection::vec(
        prop_oneof![
            (1_u16..).prop_map(|port| json!(port)),
            Just(json!("http")),
            Just(json!("80:443"))
        ],
        0..3,
    );
    let selector = prop::sample::select(vec!["", "has(calico/k8s_ns)", "a == 'b' || c in {'d'}"]);
    let tag = prop::sample::select(vec!["", "tag1"]);
    let protocol = prop::sample::select(vec!["tcp", "Udp", "sctp", "17"]);
    let action = prop::sample::select(vec!["", "allow", "deny", "log", "next-tier"]);
    (action, protocol, networks, ports, selector, tag).prop_map(
        |(action, protocol, networks, ports, selector, tag)| {
            json!({
                "action": action, "protocol": protocol, "src_nets": networks, "!dst_nets": networks, "dst_ports": ports,
                "src_selector": selector, "!dst_selector": selector, "dst_tag": tag,
            })
        },
    )
}

proptest! {
    #[test]
    fn every_valid_rule_of_v2_is_valid_in_v3(old in old_rule()) {
        let (rule, report) = checked(&old);
        prop_assert!(report.is_empty(), "{:?}", report);
        let count = |value: &Value| value.as_array().map_or(0, Vec::len);
        prop_assert_eq!(count(&rule["source"]["nets"]), count(&old["src_nets"]));
        prop_assert_eq!(count(&rule["destination"]["ports"]), count(&old["dst_ports"]));
    }
}
