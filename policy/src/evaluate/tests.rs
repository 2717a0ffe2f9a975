mod properties;

use ipnet::IpNet;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::admin::AdminPolicy;
use crate::cluster::Facts;
use crate::fixture::{address, declare, node, pod, policy};
use crate::flow::State;
use crate::name::ObjectKind;
use crate::settings::{Encapsulation, Settings};

/// `shop/web` on n1, `shop/db` on n1, `crm/cli` on n2; the namespace of `lost/pod` is not known.
fn facts(policies: &[(&str, Value)]) -> Facts {
    let ranges: Vec<IpNet> = vec!["10.244.1.0/24".parse().unwrap()];
    Facts {
        settings: Settings {
            pod_ranges: vec!["10.244.0.0/16".parse().unwrap()],
            ..Settings::default()
        },
        nodes: vec![
            Node {
                ranges,
                ..node("n1", "192.0.2.11", "10.244.1.0")
            },
            node("n2", "192.0.2.12", "10.244.2.0"),
        ],
        namespaces: [("shop", "a"), ("crm", "b")]
            .map(|(name, team)| (name.into(), [("team", team)].into()))
            .into(),
        pods: vec![
            pod("shop", "web", "n1", "10.244.1.5", &[("app", "web")]),
            declare(
                pod("shop", "db", "n1", "10.244.1.6", &[("app", "db")]),
                "pg",
                5432,
            ),
            pod("crm", "cli", "n2", "10.244.2.8", &[("app", "web")]),
            pod("lost", "pod", "n2", "10.244.2.9", &[("app", "web")]),
        ],
        policies: policies
            .iter()
            .map(|(name, spec)| policy("shop", name, spec))
            .collect(),
        admin_policies: Vec::new(),
    }
}

fn to_db(source: &str) -> Flow {
    Flow {
        node: "n1".into(),
        source: address(source),
        destination: address("10.244.1.6"),
        protocol: Protocol::Tcp,
        port: Some(5432),
        state: State::New,
    }
}

fn from_web(destination: &str) -> Flow {
    Flow {
        source: address("10.244.1.5"),
        destination: address(destination),
        ..to_db("10.244.1.5")
    }
}

fn judged(facts: Facts, flow: &Flow) -> Verdict {
    evaluate(&Cluster::new(facts), flow)
}

/// The reason and the names of the objects of an unknown verdict.
fn unknown_with(verdict: Verdict) -> (UnknownReason, Vec<String>) {
    let Verdict::Unknown { why, objects } = verdict else {
        panic!("{verdict:?} is not unknown");
    };
    (why, objects.iter().map(ToString::to_string).collect())
}

const UNREADABLE: &str = r#"{"matchLabels": {"app": "it's"}}"#;

fn unreadable() -> Value {
    serde_json::from_str(UNREADABLE).unwrap()
}

fn isolate_db(ingress: &Value) -> Value {
    json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"], "ingress": ingress})
}

#[test]
fn a_node_that_is_not_in_the_cluster_judges_nothing() {
    let flow = Flow {
        node: "n9".into(),
        ..to_db("10.244.1.5")
    };
    assert_eq!(judged(facts(&[]), &flow), unknown(UnknownReason::NodeMissing));
}

#[rstest]
#[case::both_elsewhere("n2", "10.244.1.5", "10.244.1.6", AllowReason::NotJudgedHere)]
#[case::outside_to_host("n1", "198.51.100.9", "192.0.2.11", AllowReason::HostNetwork)]
#[case::through_an_entry_node("n2", "198.51.100.9", "10.244.1.6", AllowReason::NotJudgedHere)]
fn a_node_without_the_pods_judges_nothing(
    #[case] node: &str,
    #[case] source: &str,
    #[case] destination: &str,
    #[case] why: AllowReason,
) {
    let flow = Flow {
        node: node.into(),
        destination: address(destination),
        ..to_db(source)
    };
    assert_eq!(
        judged(facts(&[("db", isolate_db(&json!([])))]), &flow),
        allowed(why)
    );
}

#[test]
fn an_address_without_a_pod_stays_unknown() {
    let flow = to_db("10.244.1.99");
    assert_eq!(
        judged(facts(&[]), &flow),
        unknown(UnknownReason::AddressWithoutPod)
    );
    // The pod cannot be on this node: its own node judges its egress. Labels of the pod decide here.
    let flow = to_db("10.244.9.9");
    assert_eq!(judged(facts(&[]), &flow), allowed(AllowReason::NotIsolated));
    let by_label = isolate_db(&json!([{"from": [{"podSelector": {}}]}]));
    let expected = (
        UnknownReason::AddressWithoutPod,
        vec!["NetworkPolicy shop/db".to_owned()],
    );
    assert_eq!(unknown_with(judged(facts(&[("db", by_label)]), &flow)), expected);
    // Its address is known.
    let by_range = isolate_db(&json!([{"from": [{"ipBlock": {"cidr": "10.244.9.0/24"}}]}]));
    assert_eq!(
        judged(facts(&[("db", by_range)]), &flow),
        allowed(AllowReason::Rule)
    );
}

#[test]
fn a_namespace_that_is_missing_makes_its_selectors_unknown() {
    let by_namespace =
        isolate_db(&json!([{"from": [{"namespaceSelector": {"matchLabels": {"team": "b"}}}]}]));
    let verdict = judged(facts(&[("db", by_namespace)]), &to_db("10.244.2.9"));
    assert_eq!(unknown_with(verdict).0, UnknownReason::NamespaceMissing);
    // The labels of the pod exclude the peer, whatever its namespace is.
    let by_both = isolate_db(&json!([{"from": [{
        "namespaceSelector": {"matchLabels": {"team": "b"}},
        "podSelector": {"matchLabels": {"app": "other"}},
    }]}]));
    assert!(judged(facts(&[("db", by_both)]), &to_db("10.244.2.9")).is_refused());
}

#[test]
fn an_unreadable_selector_of_pods_may_isolate() {
    let odd = json!({"podSelector": unreadable(), "policyTypes": ["Ingress"]});
    let verdict = judged(facts(&[("odd", odd.clone())]), &to_db("10.244.1.5"));
    let expected = (
        UnknownReason::UnreadableSelector,
        vec!["NetworkPolicy shop/odd".to_owned()],
    );
    assert_eq!(unknown_with(verdict), expected);
    // The policy has no rule that could allow, so another one that isolates decides.
    let policies = [("odd", odd), ("db", isolate_db(&json!([])))];
    let Verdict::Refused { policies, .. } = judged(facts(&policies), &to_db("10.244.1.5")) else {
        panic!("refused");
    };
    assert_eq!(policies[0].to_string(), "NetworkPolicy shop/db");
}

#[rstest]
#[case::peer(json!([{"from": [{"podSelector": {"matchLabels": {"app": "it's"}}}]}]), UnknownReason::UnreadableSelector)]
#[case::port(json!([{"ports": [{"protocol": "ICMP"}]}]), UnknownReason::UnreadablePort)]
fn an_unreadable_rule_may_allow(#[case] ingress: Value, #[case] why: UnknownReason) {
    let policies = [("db", isolate_db(&ingress)), ("none", isolate_db(&json!([])))];
    let verdict = judged(facts(&policies), &to_db("10.244.1.5"));
    assert_eq!(
        unknown_with(verdict),
        (why, vec!["NetworkPolicy shop/db".to_owned()])
    );
    let certain = (
        "web",
        isolate_db(&json!([{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}])),
    );
    let policies = [&policies[..], &[certain]].concat();
    let verdict = judged(facts(&policies), &to_db("10.244.1.5"));
    assert_eq!(verdict, allowed(AllowReason::Rule));
}

#[rstest]
#[case::assigned(true, "10.244.2.0", "10.244.2.0/32", AllowReason::Rule)]
#[case::not_needed(false, "10.244.2.0", "0.0.0.0/0", AllowReason::Rule)]
fn the_tunnel_of_another_node_is_its_address(
    #[case] is_assigned: bool,
    #[case] source: &str,
    #[case] range: &str,
    #[case] why: AllowReason,
) {
    let peer = json!([{"from": [{"ipBlock": {"cidr": range}}]}]);
    let mut facts = facts(&[("db", isolate_db(&peer))]);
    if !is_assigned {
        facts.nodes[1].others = std::mem::take(&mut facts.nodes[1].tunnels);
        let verdict = judged(facts, &to_db(source));
        assert_eq!(unknown_with(verdict).0, UnknownReason::TunnelAddressMissing);
        return;
    }
    assert_eq!(judged(facts, &to_db(source)), allowed(why));
}

#[test]
fn an_address_of_a_node_that_was_seen_may_be_that_of_its_tunnel() {
    let of_nodes = isolate_db(&json!([{"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]));
    let verdict = judged(facts(&[("db", of_nodes.clone())]), &to_db("192.0.2.12"));
    assert_eq!(unknown_with(verdict).0, UnknownReason::AddressOfNode);
    let mut without_tunnels = facts(&[("db", of_nodes)]);
    without_tunnels.settings.encapsulation = Encapsulation::Never;
    assert!(judged(without_tunnels, &to_db("192.0.2.12")).is_allowed());
}

#[test]
fn neighbor_discovery_to_the_host_precedes_policies() {
    let web = json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"]});
    let ask = |kind, destination: &str| Flow {
        protocol: Protocol::Icmpv6(kind),
        port: None,
        ..from_web(destination)
    };
    let verdict = judged(facts(&[("web", web.clone())]), &ask(135, "192.0.2.11"));
    assert_eq!(verdict, allowed(AllowReason::NeighborDiscovery));
    assert!(judged(facts(&[("web", web.clone())]), &ask(128, "192.0.2.11")).is_refused());
    assert!(judged(facts(&[("web", web)]), &ask(135, "192.0.2.12")).is_refused());
}

fn with_admin(objects: &[Value], policies: &[(&str, Value)]) -> Facts {
    let read = |object: &Value| {
        let kind = match object["kind"].as_str().unwrap() {
            "ClusterNetworkPolicy" => ObjectKind::ClusterNetworkPolicy,
            "NetworkPolicy" => ObjectKind::CalicoNetworkPolicy,
            "GlobalNetworkPolicy" => ObjectKind::GlobalNetworkPolicy,
            other => panic!("{other}"),
        };
        AdminPolicy::read(kind, object).unwrap()
    };
    Facts {
        admin_policies: objects.iter().map(read).collect(),
        ..facts(policies)
    }
}

fn for_shop(name: &str, tier: &str, priority: i64, action: &str) -> Value {
    json!({
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "tier": tier,
            "priority": priority,
            "subject": {"namespaces": {"matchLabels": {"team": "a"}}},
            "ingress": [{"action": action, "from": [{"pods": {
                "namespaceSelector": {},
                "podSelector": {"matchLabels": {"app": "web"}},
            }}]}],
        },
    })
}

#[rstest]
#[case::admin_denies(&[("Admin", 1, "Deny")], true, "AdminRule", false)]
#[case::admin_allows(&[("Admin", 1, "Accept")], false, "AdminRule", true)]
#[case::admin_passes_to_an_allowing_policy(&[("Admin", 1, "Pass"), ("Admin", 2, "Deny")], true, "Rule", true)]
#[case::admin_passes_to_a_refusing_policy(&[("Admin", 1, "Pass"), ("Admin", 2, "Accept")], false, "NoRuleMatches", false)]
#[case::lower_number_first(&[("Admin", 5, "Deny"), ("Admin", 4, "Accept")], false, "AdminRule", true)]
#[case::baseline_is_not_reached(&[("Baseline", 1, "Deny")], true, "Rule", true)]
fn tiers_are_evaluated_in_their_order(
    #[case] tiers: &[(&str, i64, &str)],
    #[case] allows: bool,
    #[case] reason: &str,
    #[case] is_allowed: bool,
) {
    let objects: Vec<Value> = tiers
        .iter()
        .map(|(tier, priority, action)| for_shop("p", tier, *priority, action))
        .collect();
    let rules = if allows { json!([{}]) } else { json!([]) };
    let verdict = judged(
        with_admin(&objects, &[("db", isolate_db(&rules))]),
        &to_db("10.244.1.5"),
    );
    let found = match &verdict {
        Verdict::Allowed { why } => why.as_str(),
        Verdict::Refused { why, .. } => why.as_str(),
        Verdict::Unknown { why, .. } => why.as_str(),
    };
    assert_eq!((found, verdict.is_allowed()), (reason, is_allowed), "{verdict:?}");
}

#[test]
fn the_baseline_decides_for_pods_that_no_policy_isolates() {
    let objects = [for_shop("base", "Baseline", 1, "Deny")];
    let Verdict::Refused { policies, .. } = judged(with_admin(&objects, &[]), &to_db("10.244.1.5")) else {
        panic!("refused");
    };
    assert_eq!(policies[0].to_string(), "ClusterNetworkPolicy base");
    let flow = to_db("198.51.100.9");
    assert_eq!(
        judged(with_admin(&objects, &[]), &flow),
        allowed(AllowReason::NotIsolated)
    );
}

#[test]
fn a_rule_of_an_administrator_that_may_match_is_unknown() {
    let verdict = judged(
        with_admin(&[for_shop("p", "Admin", 1, "Deny")], &[]),
        &to_db("10.244.9.9"),
    );
    let expected = (
        UnknownReason::AddressWithoutPod,
        vec!["ClusterNetworkPolicy p".to_owned()],
    );
    assert_eq!(unknown_with(verdict), expected);
}

#[rstest]
#[case::of_the_cluster(json!({"kind": "GlobalNetworkPolicy", "metadata": {"name": "g"}}), Some("GlobalNetworkPolicy g"))]
#[case::of_the_namespace(
    json!({"kind": "NetworkPolicy", "metadata": {"name": "n", "namespace": "shop"}}),
    Some("Calico NetworkPolicy shop/n")
)]
#[case::of_another_namespace(json!({"kind": "NetworkPolicy", "metadata": {"name": "n", "namespace": "crm"}}), None)]
#[case::of_the_other_direction(
    json!({"kind": "GlobalNetworkPolicy", "metadata": {"name": "g"}, "spec": {"types": ["Egress"]}}),
    None
)]
fn a_policy_of_calico_leaves_nothing_certain(#[case] object: Value, #[case] named: Option<&str>) {
    // Calico's policy may come first and allow what Kubernetes' refuses, or refuse what that allows.
    for rules in [json!([]), json!([{}])] {
        let facts = with_admin(std::slice::from_ref(&object), &[("db", isolate_db(&rules))]);
        let verdict = judged(facts, &to_db("198.51.100.9"));
        match named {
            Some(name) => {
                let expected = (UnknownReason::CalicoPolicy, vec![name.to_owned()]);
                assert_eq!(unknown_with(verdict), expected);
            }
            None => assert!(!matches!(verdict, Verdict::Unknown { .. })),
        }
    }
}

#[test]
fn names_of_ports_are_those_of_the_destination() {
    let egress = json!({
        "podSelector": {"matchLabels": {"app": "web"}},
        "policyTypes": ["Egress"],
        "egress": [{"ports": [{"port": "pg"}]}],
    });
    let ask = |port| Flow {
        port: Some(port),
        ..to_db("10.244.1.5")
    };
    assert!(judged(facts(&[("web", egress.clone())]), &ask(5432)).is_allowed());
    assert!(judged(facts(&[("web", egress.clone())]), &ask(5433)).is_refused());
    let to_unknown = Flow {
        destination: address("10.244.9.9"),
        ..ask(5432)
    };
    let verdict = judged(facts(&[("web", egress)]), &to_unknown);
    assert_eq!(unknown_with(verdict).0, UnknownReason::AddressWithoutPod);
}
