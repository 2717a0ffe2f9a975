use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn read(spec: &Value) -> Policy {
    let policy = json!({"metadata": {"namespace": "shop", "name": "p"}, "spec": spec});
    Policy::read(&serde_json::from_value(policy).unwrap())
}

#[rstest]
#[case::nothing(json!({}), true, false)]
#[case::empty_egress(json!({"egress": []}), true, false)]
#[case::egress_rule(json!({"egress": [{}]}), true, true)]
#[case::egress_only(json!({"policyTypes": ["Egress"], "ingress": [{}]}), false, true)]
#[case::ingress_only(json!({"policyTypes": ["Ingress"], "egress": [{}]}), true, false)]
#[case::both(json!({"policyTypes": ["Egress", "Ingress"]}), true, true)]
fn types_default_as_in_the_api_server(#[case] spec: Value, #[case] ingress: bool, #[case] egress: bool) {
    let policy = read(&spec);
    assert_eq!(
        (policy.ingress.is_some(), policy.egress.is_some()),
        (ingress, egress)
    );
}

fn ports(port: &Value) -> Option<Ports> {
    let policy = read(&json!({"ingress": [{"ports": [port]}]}));
    let rules = policy.ingress.unwrap();
    rules.listed().first().map(|rule| rule.ports[0].ports.clone())
}

#[rstest]
#[case::number(json!({"port": 80}), Some(Ports::Range(80, 80)))]
#[case::number_as_text(json!({"port": "80"}), Some(Ports::Range(80, 80)))]
#[case::range(json!({"port": 80, "endPort": 90}), Some(Ports::Range(80, 90)))]
#[case::no_port(json!({"protocol": "UDP"}), Some(Ports::All))]
#[case::name(json!({"port": "http"}), Some(Ports::Named("http".into())))]
#[case::other_protocol(json!({"protocol": "ICMP"}), Some(Ports::Unreadable))]
#[case::reversed(json!({"port": 90, "endPort": 80}), None)]
#[case::too_large(json!({"port": 65536}), None)]
#[case::negative(json!({"port": -1}), None)]
#[case::name_with_end(json!({"port": "http", "endPort": 90}), None)]
#[case::no_name(json!({"port": "a b"}), None)]
fn ports_are_read_as_calico_reads_them(#[case] port: Value, #[case] expected: Option<Ports>) {
    assert_eq!(ports(&port), expected);
}

fn peer(peer: &Value) -> Peer {
    let policy = read(&json!({"ingress": [{"from": [peer]}]}));
    policy.ingress.unwrap().listed()[0].peers[0].clone()
}

#[test]
fn an_unreadable_range_is_no_restriction_in_calico() {
    assert_eq!(peer(&json!({"ipBlock": {"cidr": "010.0.0.0/8"}})), Peer::Anything);
}

#[test]
fn exceptions_after_an_unreadable_one_are_lost() {
    let block = json!({"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "010.2.0.0/16", "10.3.0.0/16"]});
    let expected = Peer::Block {
        range: "10.0.0.0/8".parse().unwrap(),
        except: ["10.1.0.0/16".parse().unwrap()].into(),
    };
    assert_eq!(peer(&json!({"ipBlock": block})), expected);
}

#[test]
fn a_peer_without_a_selector_of_namespaces_is_in_the_namespace_of_the_policy() {
    let of_namespace = |peer: Peer| matches!(peer, Peer::Pods { namespaces: None, .. });
    assert!(of_namespace(peer(&json!({"podSelector": {}}))));
    assert!(!of_namespace(peer(&json!({"namespaceSelector": {}}))));
}

#[test]
fn missing_and_empty_lists_are_the_same() {
    let missing = read(&json!({"ingress": [{}]}));
    let empty = read(&json!({"ingress": [{"from": [], "ports": []}]}));
    assert_eq!(missing, empty);
    assert_eq!(missing.ingress.unwrap().listed(), [Rule::default()]);
}

#[test]
fn a_policy_that_is_too_large_keeps_no_rules() {
    let peers: Vec<Value> = (0..9000)
        .map(|number| json!({"ipBlock": {"cidr": format!("10.{}.{}.0/24", number / 250, number % 250)}}))
        .collect();
    let policy = read(&json!({"ingress": [{"from": peers}]}));
    assert_eq!(
        policy.ingress,
        Some(Rules::Unreadable(UnknownReason::PolicyTooLarge))
    );
}
