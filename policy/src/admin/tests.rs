use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::flow::Protocol;
use crate::rules::{Peer, PortMatch, Ports};

fn cluster_policy(rule: &Value) -> Option<AdminPolicy> {
    let object = json!({"metadata": {"name": "p"}, "spec": {
        "tier": "Baseline",
        "priority": 7,
        "subject": {"namespaces": {}},
        "egress": [rule],
    }});
    AdminPolicy::read(ObjectKind::ClusterNetworkPolicy, &object)
}

fn egress(policy: AdminPolicy) -> Vec<AdminRule> {
    let Content::Rules(rules) = policy.content else {
        panic!("rules");
    };
    assert_eq!((rules.tier, rules.priority), (Tier::Baseline, 7));
    rules.egress.into_vec()
}

fn deny_everything() -> AdminRule {
    AdminRule {
        action: Action::Deny,
        rule: Rule::default(),
    }
}

#[rstest]
#[case::deny("Deny", true)]
#[case::pass("Pass", true)]
#[case::accept("Accept", false)]
#[case::another("Log", false)]
fn a_rule_with_an_unsupported_peer_fails_closed(#[case] action: &str, #[case] denies: bool) {
    for peer in [
        json!({"nodes": {}}),
        json!({"domainNames": ["example.com"]}),
        json!({}),
    ] {
        let rule = json!({"action": action, "to": [{"namespaces": {}}, peer]});
        let expected = if denies {
            vec![deny_everything()]
        } else {
            Vec::new()
        };
        assert_eq!(egress(cluster_policy(&rule).unwrap()), expected);
    }
}

#[test]
fn a_network_that_cannot_be_parsed_fails_closed() {
    let rule = json!({"action": "Deny", "to": [{"networks": ["10.0.0.0/8", "010.0.0.0/8"]}]});
    assert_eq!(egress(cluster_policy(&rule).unwrap()), [deny_everything()]);
}

#[test]
fn a_rule_without_peers_has_no_effect() {
    for to in [json!([]), Value::Null] {
        assert_eq!(
            egress(cluster_policy(&json!({"action": "Deny", "to": to})).unwrap()),
            []
        );
    }
}

#[test]
fn networks_are_peers() {
    let rule = json!({"action": "Accept", "to": [{"networks": ["10.0.0.0/8", "192.0.2.0/24"]}]});
    let rules = egress(cluster_policy(&rule).unwrap());
    let block = |range: &str| Peer::Block {
        range: range.parse().unwrap(),
        except: Box::default(),
    };
    assert_eq!(*rules[0].rule.peers, [block("10.0.0.0/8"), block("192.0.2.0/24")]);
}

fn port(protocol: Option<Protocol>, ports: Ports) -> PortMatch {
    PortMatch { protocol, ports }
}

#[rstest]
#[case::number(json!([{"tcp": {"destinationPort": {"number": 80}}}]), &[port(Some(Protocol::Tcp), Ports::Range(80, 80))])]
#[case::range(
    json!([{"udp": {"destinationPort": {"range": {"start": 1, "end": 9}}}}]),
    &[port(Some(Protocol::Udp), Ports::Range(1, 9))]
)]
#[case::protocol(json!([{"sctp": {}}]), &[port(Some(Protocol::Sctp), Ports::All)])]
#[case::name(json!([{"destinationNamedPort": "http"}]), &[port(None, Ports::Named("http".into()))])]
#[case::everything(json!([{"tcp": {}}, {}]), &[])]
#[case::none(Value::Null, &[])]
fn protocols_are_read_as_calico_reads_them(#[case] protocols: Value, #[case] expected: &[PortMatch]) {
    let rule = json!({"action": "Deny", "to": [{"namespaces": {}}], "protocols": protocols});
    let rules = egress(cluster_policy(&rule).unwrap());
    assert_eq!(&*rules[0].rule.ports, expected);
    assert_eq!(rules[0].rule.peers.len(), 1);
}

#[test]
fn a_reversed_range_of_ports_fails_closed() {
    let protocols = json!([{"tcp": {"destinationPort": {"range": {"start": 9, "end": 1}}}}]);
    let rule = json!({"action": "Deny", "to": [{"namespaces": {}}], "protocols": protocols});
    assert_eq!(egress(cluster_policy(&rule).unwrap()), [deny_everything()]);
}

#[rstest]
#[case::number(json!([{"portNumber": {"port": 80}}]), &[port(Some(Protocol::Tcp), Ports::Range(80, 80))])]
#[case::range(
    json!([{"portRange": {"protocol": "UDP", "start": 1, "end": 9}}]),
    &[port(Some(Protocol::Udp), Ports::Range(1, 9))]
)]
#[case::name_is_no_restriction(json!([{"namedPort": "http"}]), &[])]
fn ports_of_the_older_kind_are_read(#[case] ports: Value, #[case] expected: &[PortMatch]) {
    let object = json!({"metadata": {"name": "p"}, "spec": {
        "subject": {"namespaces": {}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {}}], "ports": ports}],
    }});
    let policy = AdminPolicy::read(ObjectKind::BaselineAdminNetworkPolicy, &object).unwrap();
    let Content::Rules(rules) = policy.content else {
        panic!("rules");
    };
    assert_eq!(
        (rules.tier, &*rules.ingress[0].rule.ports),
        (Tier::Baseline, expected)
    );
}

#[rstest]
#[case::no_tier(json!({"subject": {"namespaces": {}}}))]
#[case::another_tier(json!({"tier": "Custom", "subject": {"namespaces": {}}}))]
#[case::no_subject(json!({"tier": "Admin", "subject": {}}))]
fn a_malformed_policy_is_skipped_as_calico_skips_it(#[case] spec: Value) {
    let object = json!({"metadata": {"name": "p"}, "spec": spec});
    assert_eq!(AdminPolicy::read(ObjectKind::ClusterNetworkPolicy, &object), None);
}

#[rstest]
#[case(ObjectKind::AdminNetworkPolicy, [false, true, true, false])]
#[case(ObjectKind::BaselineAdminNetworkPolicy, [false, false, true, false])]
#[case(ObjectKind::ClusterNetworkPolicy, [false, false, false, true])]
#[case(ObjectKind::GlobalNetworkPolicy, [true; 4])]
fn versions_read_different_kinds(#[case] kind: ObjectKind, #[case] expected: [bool; 4]) {
    let spec = json!({"tier": "Admin", "subject": {"namespaces": {}}});
    let policy = AdminPolicy::read(kind, &json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
    let versions = [(3, 28), (3, 29), (3, 31), (3, 32)];
    let read = versions.map(|(major, minor)| policy.is_read_by(Version::new(major, minor)));
    assert_eq!(read, expected);
}
