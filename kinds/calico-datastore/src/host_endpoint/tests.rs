use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::difference::Difference;
use crate::fixture::{converted, converted_value};

fn endpoint(value: &Value) -> Conversion {
    converted_value("/calico/v1/host/MyHost/endpoint/eth0", value)
}

fn report(value: &Value) -> String {
    let conversion = endpoint(value);
    assert_eq!(
        conversion.validation_errors.len(),
        1,
        "{:?}",
        conversion.report_lines()
    );
    conversion.validation_errors[0].to_string()
}

#[test]
fn an_endpoint_with_all_fields_is_converted() {
    let conversion = endpoint(&json!({
        "name": "eth0", "expected_ipv4_addrs": ["192.168.0.1"], "expected_ipv6_addrs": ["fd00::1"],
        "profile_ids": ["profile1", "k8s_ns.default", "My_Profile"], "labels": { "type": "production" },
        "ports": [{ "name": "web", "protocol": "tcp", "port": 80 }],
    }));
    assert_eq!(conversion.report_lines(), [""; 0]);
    let object = conversion.value("hostendpoints/myhost.eth0");
    assert_eq!(
        object["metadata"],
        json!({ "name": "myhost.eth0", "labels": { "type": "production" } })
    );
    assert_eq!(
        object["spec"],
        json!({
            "node": "myhost", "interfaceName": "eth0", "expectedIPs": ["192.168.0.1", "fd00::1"],
            "profiles": ["profile1", "kns.default", names::name("My_Profile")],
            "ports": [{ "name": "web", "protocol": "TCP", "port": 80 }],
        })
    );
}

/// Felix of v3.31.7 treats an endpoint with a number there as missing, so its policies would have no effect.
#[test]
fn a_protocol_number_of_a_port_is_written_as_a_name() {
    let conversion = endpoint(&json!({
        "name": "eth0", "ports": [{ "name": "web", "protocol": 6, "port": 80 }],
    }));
    assert!(conversion.is_clean() && conversion.differs_by(Difference::PortNumber));
    let object = conversion.value("hostendpoints/myhost.eth0");
    assert_eq!(
        object["spec"]["ports"],
        json!([{ "name": "web", "protocol": "TCP", "port": 80 }])
    );
}

#[test]
fn a_name_is_unescaped_and_converted_to_v3() {
    let conversion = converted(&[("/calico/v1/host/myhost2/endpoint/Eth0%2f1", r#"{"name": "*"}"#)]);
    assert_eq!(
        conversion.names()[1],
        "HostEndpoint(node=myhost2, name=Eth0/1) -> HostEndpoint(myhost2.eth0.1-5f5bd1df)"
    );
}

#[test]
fn the_old_namespace_label_stays_with_a_note() {
    let conversion = endpoint(&json!({ "name": "eth0", "labels": { "calico/k8s_ns": "default" } }));
    let object = conversion.value("hostendpoints/myhost.eth0");
    assert_eq!(object["metadata"]["labels"]["calico/k8s_ns"], "default");
    assert!(conversion.is_clean() && conversion.report_lines()[0].contains("calico/k8s_ns"));
}

#[rstest]
#[case::nothing(json!({}), &["spec.interfaceName is \"\"", "no expectedIPs"])]
#[case::interface(json!({ "name": "eth0:1" }), &["\"eth0:1\""])]
#[case::address(json!({ "expected_ipv4_addrs": [""] }), &["spec.expectedIPs[0] is \"<nil>\""])]
#[case::label(json!({ "name": "eth0", "labels": { "bad key!": "v" } }), &["bad key!"])]
#[case::profile(json!({ "name": "eth0", "profile_ids": ["a", null] }), &["spec.profiles[1] is \"\""])]
#[case::port_name(json!({ "name": "eth0", "ports": [{ "protocol": "tcp", "port": 1 }] }), &["ports[0].name is \"\""])]
#[case::port(json!({ "name": "eth0", "ports": [{ "name": "a", "protocol": "tcp" }] }), &["ports[0].port is 0"])]
#[case::protocol(
    json!({ "name": "eth0", "ports": [{ "name": "a", "protocol": "icmp", "port": 1 }] }),
    &["ports[0].protocol is \"ICMP\""]
)]
fn an_endpoint_that_v3_refuses_is_reported(#[case] value: Value, #[case] words: &[&str]) {
    let report = report(&value);
    assert!(
        report.starts_with("HostEndpoint(node=MyHost, name=eth0) -> HostEndpoint(myhost.eth0): "),
        "{report}"
    );
    for word in words {
        assert!(report.contains(word), "{report}");
    }
}

#[test]
fn a_name_of_more_than_253_bytes_is_reported() {
    let name = "a".repeat(250);
    let conversion = converted(&[(
        &format!("/calico/v1/host/node/endpoint/{name}"),
        r#"{"name": "*"}"#,
    )]);
    assert!(
        conversion.report_lines()[0].contains("255 bytes, needed at most 253 bytes"),
        "{:?}",
        conversion.report_lines()
    );
}

#[test]
fn all_problems_of_an_endpoint_are_reported() {
    let report =
        report(&json!({ "name": "eth 0", "labels": { "a": "b c", "d e": "f" }, "profile_ids": ["."] }));
    assert_eq!(report.matches(", needed ").count(), 4, "{report}");
}
