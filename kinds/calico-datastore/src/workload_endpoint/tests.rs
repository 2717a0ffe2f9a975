use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::difference::Difference;
use crate::fixture::{converted, converted_value};

fn value() -> Value {
    json!({
        "state": "active", "name": "cali0ef24ba", "active_instance_id": "abc123", "mac": "CA:fe:1d:52:bb:e9",
        "profile_ids": ["k8s_ns.default"], "ipv4_nets": ["100.96.1.5/32"], "ipv6_nets": ["fd00::5"],
        "labels": { "app": "frontend", "calico/k8s_ns": "default" },
    })
}

fn at(place: &str, value: &Value) -> Conversion {
    converted_value(&format!("/calico/v1/host/Rack1/workload/{place}"), value)
}

fn with(field: &str, of_field: Value) -> Value {
    let mut value = value();
    value[field] = of_field;
    value
}

#[test]
fn an_endpoint_of_a_pod_is_converted() {
    let conversion = at("k8s/default.front.end/endpoint/eth0", &value());
    assert_eq!(conversion.report_lines(), [""; 0]);
    let object = conversion.value("workloadendpoints/default/rack1-k8s-front.end-eth0");
    assert_eq!(
        object["metadata"],
        json!({
            "name": "rack1-k8s-front.end-eth0", "namespace": "default",
            "labels": { "app": "frontend", "projectcalico.org/namespace": "default" },
        })
    );
    assert_eq!(
        object["spec"],
        json!({
            "orchestrator": "k8s", "node": "rack1", "containerID": "abc123", "pod": "front.end", "endpoint": "eth0",
            "ipNetworks": ["100.96.1.5/32", "fd00::5/128"], "profiles": ["kns.default"],
            "interfaceName": "cali0ef24ba", "mac": "ca:fe:1d:52:bb:e9",
        })
    );
}

#[rstest]
#[case(
    "cni/1234abcd/endpoint/eth0",
    "rack1-cni-1234abcd-eth0",
    "containerID",
    "1234abcd"
)]
#[case(
    "libnetwork/libnetwork/endpoint/epid1",
    "rack1-libnetwork-libnetwork-epid1",
    "workload",
    "libnetwork"
)]
#[case(
    "Mesos/My_Task/endpoint/eth0",
    "rack1-mesos--e3d4373f-my--task--70be8f60-eth0",
    "workload",
    "my-task-70be8f60"
)]
fn an_endpoint_of_another_orchestrator_is_converted(
    #[case] place: &str,
    #[case] name: &str,
    #[case] field: &str,
    #[case] wanted: &str,
) {
    let conversion = at(place, &value());
    let object = conversion.value(&format!("workloadendpoints/default/{name}"));
    assert_eq!(object["spec"][field], wanted);
}

#[test]
fn nats_and_gateways_are_converted() {
    let mut value = with(
        "ipv4_nat",
        json!([{ "int_ip": "100.96.1.5", "ext_ip": "1.2.3.4" }]),
    );
    value["ipv4_gateway"] = json!("169.254.1.1");
    value["ipv6_gateway"] = Value::Null;
    let conversion = at("k8s/a.b/endpoint/eth0", &value);
    assert!(conversion.is_clean(), "{:?}", conversion.report_lines());
    let spec = &conversion.value("workloadendpoints/a/rack1-k8s-b-eth0")["spec"];
    assert_eq!(spec["ipv4Gateway"], "169.254.1.1");
    assert_eq!(
        spec["ipNATs"],
        json!([{ "internalIP": "100.96.1.5", "externalIP": "1.2.3.4" }])
    );
}

#[test]
fn a_protocol_of_a_port_is_written_in_the_form_of_v3() {
    let ports = json!([{ "name": "web", "protocol": "tcp", "port": 80 }, { "name": "dns", "protocol": "UDP", "port": 53 }]);
    let conversion = at("k8s/a.b/endpoint/eth0", &with("ports", ports));
    assert!(conversion.is_clean() && conversion.differs_by(Difference::WorkloadPorts));
    let spec = &conversion.value("workloadendpoints/a/rack1-k8s-b-eth0")["spec"];
    assert_eq!(spec["ports"][0]["protocol"], "TCP");
    assert_eq!(conversion.notes.len(), 1);
}

/// Felix of v3.31.7 ignores the whole endpoint when it has a number: "Validation failed; treating as missing".
#[test]
fn a_protocol_number_of_a_port_is_written_as_a_name() {
    let ports = json!([
        { "name": "web", "protocol": 6, "port": 80 },
        { "name": "dns", "protocol": "17", "port": 53 },
        { "name": "sip", "protocol": 132, "port": 5060 },
    ]);
    let conversion = at("k8s/a.b/endpoint/eth0", &with("ports", ports));
    assert!(conversion.is_clean() && conversion.differs_by(Difference::PortNumber));
    let spec = &conversion.value("workloadendpoints/a/rack1-k8s-b-eth0")["spec"];
    let protocols: Vec<&Value> = (0..3).map(|port| &spec["ports"][port]["protocol"]).collect();
    assert_eq!(protocols, ["TCP", "UDP", "SCTP"]);
    assert_eq!(conversion.notes.len(), 3);
}

#[rstest]
#[case::no_dot(
    "k8s/nodots/endpoint/eth0",
    "WorkloadEndpoint(node=Rack1, orchestrator=k8s, workload=nodots, name=eth0): "
)]
#[case::no_pod(
    "k8s/ns./endpoint/eth0",
    "WorkloadEndpoint(node=Rack1, orchestrator=k8s, workload=ns., name=eth0): "
)]
#[case::dash(
    "cni/-a/endpoint/eth0",
    "WorkloadEndpoint(node=Rack1, orchestrator=cni, workload=-a, name=eth0): "
)]
fn an_endpoint_without_a_name_in_v3_is_reported(#[case] place: &str, #[case] start: &str) {
    let conversion = at(place, &value());
    assert_eq!(conversion.conversion_errors.len(), 1);
    let report = conversion.conversion_errors[0].to_string();
    assert!(report.starts_with(start), "{report}");
    assert_eq!(conversion.differences().len(), 0);
}

#[rstest]
#[case::interface("name", json!(""), "spec.interfaceName is \"\"", None)]
#[case::network("ipv4_nets", json!(["10.0.0.5/24"]), "spec.ipNetworks[0] is \"10.0.0.5/24\"", None)]
#[case::no_network("ipv4_nets", json!([""]), "spec.ipNetworks[0] is \"<nil>\"", Some(Difference::Crash))]
#[case::gateway("ipv4_gateway", json!("fd00::1"), "spec.ipv4Gateway is \"fd00::1\"", None)]
#[case::no_gateway("ipv6_gateway", json!(""), "spec.ipv6Gateway is \"<nil>\"", Some(Difference::Crash))]
#[case::family("ipv4_nat", json!([{ "int_ip": "100.96.1.5", "ext_ip": "fd00::9" }]), "ipNATs[0].externalIP", None)]
#[case::other("ipv4_nat", json!([{ "int_ip": "100.96.1.6", "ext_ip": "1.2.3.4" }]), "ipNATs[0].internalIP", None)]
#[case::no_outer("ipv4_nat", json!([{ "int_ip": "100.96.1.5" }]), "externalIP is \"<nil>\"", Some(Difference::Crash))]
#[case::container("active_instance_id", json!("a.b"), "spec.containerID is \"a.b\"", None)]
#[case::label("labels", json!({ "a": "b c" }), "metadata.labels[\"a\"]", None)]
fn an_endpoint_that_v3_refuses_is_reported(
    #[case] field: &str,
    #[case] of_field: Value,
    #[case] words: &str,
    #[case] difference: Option<Difference>,
) {
    let conversion = at("k8s/a.b/endpoint/eth0", &with(field, of_field));
    assert_eq!(
        conversion.validation_errors.len(),
        1,
        "{:?}",
        conversion.report_lines()
    );
    let report = conversion.validation_errors[0].to_string();
    assert!(report.contains(words), "{report}");
    assert_eq!(conversion.differences().into_iter().next(), difference);
}

#[rstest]
#[case("k8s/.pod/endpoint/eth0")]
#[case("k8s/a%2fb.pod/endpoint/eth0")]
fn an_invalid_namespace_is_reported(#[case] place: &str) {
    let conversion = at(place, &value());
    assert!(conversion.differs_by(Difference::Namespace));
}

#[rstest]
#[case("mac", json!(""))]
#[case("ipv4_nets", json!(["x"]))]
#[case("state", json!(1))]
fn an_invalid_endpoint_is_reported_in_one_line(#[case] field: &str, #[case] of_field: Value) {
    let conversion = at("k8s/a.b/endpoint/eth0", &with(field, of_field));
    assert!(conversion.conversion_errors.len() == 1 && conversion.differs_by(Difference::UnparsableValue));
}

#[test]
fn endpoints_of_openstack_are_counted_in_a_note() {
    let conversion = converted(&[(
        "/calico/v1/host/h4/workload/openstack/os%2fwl/endpoint/ep",
        "{not json",
    )]);
    assert!(conversion.is_clean());
    assert_eq!(conversion.objects.len(), 1, "the host");
    assert!(conversion.report_lines()[0].starts_with("endpoints of OpenStack: 1 not copied"));
}
