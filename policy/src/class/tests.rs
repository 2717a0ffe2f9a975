use serde_json::json;

use super::*;
use crate::cluster::Facts;
use crate::fixture::{address, declare, node, pod, policy};
use crate::flow::State;
use crate::settings::Settings;

fn cluster() -> Cluster {
    let of_workload = |name: &str, ip: &str| {
        let pod = pod(
            "shop",
            name,
            "n1",
            ip,
            &[("app", "web"), ("pod-template-hash", name)],
        );
        declare(
            Pod {
                workload: "web".into(),
                ..pod
            },
            "http",
            8080,
        )
    };
    let spec = json!({
        "podSelector": {"matchLabels": {"app": "web"}},
        "ingress": [{
            "from": [{"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.128/25"]}}],
            "ports": [{"port": 8000, "endPort": 8079}, {"port": "http"}],
        }],
    });
    Cluster::new(Facts {
        settings: Settings {
            pod_ranges: vec!["10.244.0.0/16".parse().unwrap()],
            ..Settings::default()
        },
        nodes: vec![
            Node {
                ranges: vec!["10.244.1.0/24".parse().unwrap()],
                others: vec![address("198.51.100.2")],
                ..node("n1", "192.0.2.11", "10.244.1.0")
            },
            node("n2", "192.0.2.12", "198.51.100.4"),
        ],
        pods: vec![of_workload("1", "10.244.1.5"), of_workload("2", "10.244.1.6")],
        policies: vec![policy("shop", "web", &spec)],
        ..Facts::default()
    })
}

fn key(source: &str, destination: &str, port: u16) -> Key {
    let flow = Flow {
        node: "n1".into(),
        source: address(source),
        destination: address(destination),
        protocol: Protocol::Tcp,
        port: Some(port),
        state: State::New,
    };
    let cluster = cluster();
    Classes::of(&cluster).key(&cluster, &flow).unwrap()
}

#[test]
fn pods_of_a_workload_are_one_class() {
    let one = key("198.51.100.9", "10.244.1.5", 8080);
    assert_eq!(one, key("198.51.100.10", "10.244.1.6", 8080));
    let Side::Workload { labels, .. } = &one.destination else {
        panic!("a workload");
    };
    // No selector names the other label.
    assert_eq!(**labels, [("app".into(), "web".into())]);
    assert_eq!(one.role, Role::Destination);
}

#[test]
fn addresses_are_told_apart_as_policies_do() {
    let source = |text: &str| key(text, "10.244.1.5", 80).source;
    let range = |text: &str| Side::Outside(Range::Of(text.parse().unwrap()));
    assert_eq!(source("198.51.100.9"), range("198.51.100.0/24"));
    assert_eq!(source("198.51.100.200"), range("198.51.100.128/25"));
    assert_eq!(source("203.0.113.1"), Side::Outside(Range::OtherIpv4));
    assert_eq!(source("2001:db8::1"), Side::Outside(Range::OtherIpv6));
    assert_eq!(source("192.0.2.11"), Side::OwnNode(Range::OtherIpv4));
}

#[test]
fn addresses_of_the_own_node_are_told_apart_for_egress() {
    let destination = |text: &str| key("10.244.1.5", text, 80).destination;
    let in_range = Side::OwnNode(Range::Of("198.51.100.0/24".parse().unwrap()));
    assert_eq!(destination("198.51.100.2"), in_range);
    assert_eq!(destination("192.0.2.11"), Side::OwnNode(Range::OtherIpv4));
}

#[test]
fn another_node_keeps_its_address_as_a_destination_and_not_as_a_source() {
    let of = |ranges: &[Range]| Side::OtherNode {
        ranges: ranges.into(),
        is_complete: true,
    };
    let in_range = Range::Of("198.51.100.0/24".parse().unwrap());
    let destination = |text: &str| key("10.244.1.5", text, 80).destination;
    assert_eq!(destination("192.0.2.12"), of(&[Range::OtherIpv4]));
    assert_eq!(destination("198.51.100.4"), of(&[in_range]));
    let Side::OtherNode { ranges, .. } = key("192.0.2.12", "10.244.1.5", 80).source else {
        panic!("another node");
    };
    assert_eq!(ranges.len(), 2);
    assert!(ranges.contains(&in_range));
}

#[test]
fn a_pod_that_is_not_known_may_be_on_the_node() {
    let may_be_here = |text: &str| match key(text, "10.244.1.5", 80).source {
        Side::Unknown { may_be_here, .. } => may_be_here,
        other => panic!("{other:?}"),
    };
    assert!(may_be_here("10.244.1.99") && !may_be_here("10.244.9.9"));
}

#[test]
fn ports_are_told_apart_as_policies_do() {
    let numbers = |port| key("198.51.100.9", "10.244.1.5", port).port.numbers.unwrap();
    assert_eq!([numbers(1), numbers(4788)], [(0, 4788); 2]);
    assert_eq!(numbers(4789), (4789, 4789));
    assert_eq!([numbers(8000), numbers(8079)], [(8000, 8079); 2]);
    assert_eq!([numbers(8080), numbers(65535)], [(8080, 65535); 2]);
    let names = |port| key("198.51.100.9", "10.244.1.5", port).port.names;
    assert_eq!(*names(8080), ["http".into()]);
    assert!(names(8081).is_empty());
}

#[test]
fn a_key_survives_its_way_to_the_coordinator() {
    let key = key("198.51.100.9", "10.244.1.5", 8080);
    let text = serde_json::to_string(&key).unwrap();
    assert_eq!(serde_json::from_str::<Key>(&text).unwrap(), key);
}
