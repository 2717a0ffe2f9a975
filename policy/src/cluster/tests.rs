use rstest::rstest;

use super::*;
use crate::fixture::{address, node, pod};

fn cluster(pods: Vec<Pod>, encapsulation: Encapsulation) -> Cluster {
    let second = Node {
        others: vec![address("10.244.2.1"), address("169.254.20.10")],
        ..node("n2", "192.0.2.12", "10.244.2.0")
    };
    let first = Node {
        others: vec![address("10.244.1.1"), address("169.254.20.10")],
        ..node("n1", "192.0.2.11", "10.244.1.0")
    };
    let mut settings = Settings {
        encapsulation,
        ..Settings::default()
    };
    settings.pod_ranges = vec!["10.244.0.0/16".parse().unwrap()];
    Cluster::new(Facts {
        settings,
        nodes: vec![first, second, node("n3", "192.0.2.13", "10.244.3.0")],
        pods,
        ..Facts::default()
    })
}

fn candidates(addresses: &[&str], is_complete: bool) -> Owner<'static> {
    Owner::OtherNode(Candidates {
        addresses: addresses.iter().map(|text| address(text)).collect(),
        is_complete,
    })
}

#[rstest]
#[case::node("192.0.2.11", Owner::OwnNode)]
#[case::tunnel("10.244.1.0", Owner::OwnNode)]
#[case::bridge("10.244.1.1", Owner::OwnNode)]
#[case::name_server_of_the_node("169.254.20.10", Owner::OwnNode)]
#[case::outside("198.51.100.9", Owner::Outside)]
#[case::free_address("10.244.9.9", Owner::NoPod)]
#[case::tunnel_of_another("10.244.2.0", candidates(&["10.244.2.0"], true))]
#[case::bridge_of_another("10.244.2.1", candidates(&["10.244.2.0"], true))]
#[case::another_node("192.0.2.12", candidates(&["192.0.2.12", "10.244.2.0"], true))]
fn an_address_has_an_owner(#[case] text: &str, #[case] expected: Owner<'static>) {
    let cluster = cluster(Vec::new(), Encapsulation::Always);
    let seen_by = cluster.node("n1").unwrap();
    assert_eq!(cluster.owner(address(text), seen_by), expected);
}

#[rstest]
#[case(Encapsulation::Never, "10.244.2.0", candidates(&["192.0.2.12"], true))]
#[case(Encapsulation::Never, "192.0.2.12", candidates(&["192.0.2.12"], true))]
#[case(Encapsulation::CrossSubnet, "192.0.2.12", candidates(&["192.0.2.12", "10.244.2.0"], true))]
#[case(Encapsulation::CrossSubnet, "10.244.2.1", candidates(&["192.0.2.12", "10.244.2.0"], true))]
fn the_address_of_another_node_follows_the_encapsulation(
    #[case] encapsulation: Encapsulation,
    #[case] text: &str,
    #[case] expected: Owner<'static>,
) {
    let cluster = cluster(Vec::new(), encapsulation);
    let seen_by = cluster.node("n1").unwrap();
    assert_eq!(cluster.owner(address(text), seen_by), expected);
}

#[test]
fn the_name_server_of_every_node_is_outside_for_a_third_one() {
    let cluster = cluster(Vec::new(), Encapsulation::Always);
    let seen_by = cluster.node("n3").unwrap();
    assert_eq!(cluster.owner(address("169.254.20.10"), seen_by), Owner::Outside);
}

#[test]
fn an_address_of_two_pods_has_no_owner() {
    let pods = ["a", "b"].map(|name| pod("shop", name, "n1", "10.244.1.5", &[]));
    let cluster = cluster(pods.into(), Encapsulation::Always);
    let seen_by = cluster.node("n1").unwrap();
    assert_eq!(cluster.owner(address("10.244.1.5"), seen_by), Owner::Several);
}

#[test]
fn a_tunnel_that_is_not_assigned_yet_is_an_open_question() {
    let mut facts = Facts::default();
    let without = Node {
        tunnels: Vec::new(),
        ..node("n2", "192.0.2.12", "10.244.2.0")
    };
    facts.nodes = vec![node("n1", "192.0.2.11", "10.244.1.0"), without];
    let cluster = Cluster::new(facts);
    let seen_by = cluster.node("n1").unwrap();
    let expected = candidates(&["192.0.2.12"], false);
    assert_eq!(cluster.owner(address("192.0.2.12"), seen_by), expected);
}

#[test]
fn pods_share_labels_and_ports() {
    let pods = ["a", "b"].map(|name| pod("shop", name, "n1", "10.244.1.5", &[("app", "web")]));
    let cluster = cluster(pods.into(), Encapsulation::Always);
    let [one, other] = cluster.pods() else {
        panic!("two pods");
    };
    assert!(one.labels.is_shared() && Arc::ptr_eq(&one.ports, &other.ports));
    assert!(Arc::ptr_eq(&one.namespace, &other.namespace));
}

#[test]
fn policies_of_a_namespace_are_found() {
    let policy = |namespace: &str, name: &str| Policy {
        namespace: Arc::from(namespace),
        name: Arc::from(name),
        selector: crate::selector::Selector::everything(),
        ingress: None,
        egress: None,
    };
    let cluster = Cluster::new(Facts {
        policies: vec![
            policy("b", "2"),
            policy("a", "1"),
            policy("b", "1"),
            policy("c", "1"),
        ],
        ..Facts::default()
    });
    let names: Vec<&str> = cluster
        .policies_of("b")
        .iter()
        .map(|policy| &*policy.name)
        .collect();
    assert_eq!(names, ["1", "2"]);
    assert!(cluster.policies_of("d").is_empty());
}
