//! Properties of all policies and connections.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::super::*;
use crate::class::Classes;
use crate::cluster::Facts;
use crate::fixture::{address, declare, node, pod, policy};
use crate::flow::State;
use crate::pod::Pod;
use crate::rules::Policy;
use crate::settings::Settings;

/// Addresses of pods and of others, so small that rules often match.
const ADDRESSES: [&str; 12] = [
    "10.244.1.5",
    "10.244.1.6",
    "10.244.1.7",
    "10.244.2.5",
    "10.244.2.6",
    "10.244.2.7",
    "10.244.1.99",
    "10.244.2.99",
    "10.244.2.0",
    "192.0.2.11",
    "192.0.2.12",
    "198.51.100.9",
];

fn pods() -> Vec<Pod> {
    let web = |name: &str, node: &str, ip: &str| {
        let pod = pod("shop", name, node, ip, &[("app", "web"), ("pod", name)]);
        let pod = declare(pod, "http", 8080);
        Pod {
            workload: Arc::from("web"),
            ..pod
        }
    };
    vec![
        web("web-1", "n1", "10.244.1.5"),
        web("web-2", "n2", "10.244.2.5"),
        // Of the same workload as web-1, and not adopted yet.
        Pod {
            is_enforced: false,
            ..web("web-3", "n1", "10.244.1.6")
        },
        declare(
            pod("shop", "db", "n2", "10.244.2.6", &[("app", "db")]),
            "http",
            81,
        ),
        pod("crm", "web", "n1", "10.244.1.7", &[("app", "web")]),
        Pod {
            is_enforced: false,
            ..pod("crm", "db", "n2", "10.244.2.7", &[("app", "db")])
        },
    ]
}

fn cluster(policies: Vec<Policy>) -> Cluster {
    Cluster::new(Facts {
        settings: Settings {
            pod_ranges: vec!["10.244.0.0/16".parse().unwrap()],
            ..Settings::default()
        },
        nodes: vec![
            // The range of n2 is not known.
            Node {
                ranges: vec!["10.244.1.0/24".parse().unwrap()],
                ..node("n1", "192.0.2.11", "10.244.1.0")
            },
            node("n2", "192.0.2.12", "10.244.2.0"),
        ],
        namespaces: [("shop", "a"), ("crm", "b")]
            .map(|(name, team)| (name.into(), [("team", team)].into()))
            .into(),
        pods: pods(),
        policies,
        admin_policies: Vec::new(),
    })
}

fn selector() -> impl Strategy<Value = Value> {
    select(vec![
        json!({}),
        json!({"matchLabels": {"app": "web"}}),
        json!({"matchLabels": {"app": "db"}}),
        json!({"matchLabels": {"pod": "web-1"}}),
        json!({"matchExpressions": [{"key": "pod", "operator": "Exists"}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]}),
        json!({"matchLabels": {"app": "it's"}}),
    ])
}

fn peer() -> impl Strategy<Value = Value> {
    let ranges = select(vec![
        "0.0.0.0/0",
        "10.244.1.0/24",
        "10.244.2.0/31",
        "192.0.2.0/24",
        "198.51.100.9/32",
        "010.1.0.0/16",
    ]);
    let excepted = select(vec![
        json!([]),
        json!(["10.244.1.5/32"]),
        json!(["10.244.1.4/30", "192.0.2.12/32"]),
    ]);
    let namespaces = select(vec![
        json!({}),
        json!({"matchLabels": {"team": "b"}}),
        json!({"matchLabels": {"projectcalico.org/name": "shop"}}),
    ]);
    prop_oneof![
        selector().prop_map(|pods| json!({"podSelector": pods})),
        (selector(), namespaces)
            .prop_map(|(pods, namespaces)| json!({"podSelector": pods, "namespaceSelector": namespaces})),
        (ranges, excepted).prop_map(|(cidr, except)| json!({"ipBlock": {"cidr": cidr, "except": except}})),
    ]
}

fn port() -> impl Strategy<Value = Value> {
    select(vec![
        json!({}),
        json!({"port": 80}),
        json!({"port": 8000, "endPort": 8080}),
        json!({"port": "http"}),
        json!({"protocol": "UDP"}),
        json!({"protocol": "UDP", "port": 81}),
    ])
}

fn rules(side: &'static str) -> impl Strategy<Value = Value> {
    let rule = (vec(peer(), 0..3), vec(port(), 0..3));
    let rule = rule.prop_map(move |(peers, ports)| json!({side: peers, "ports": ports}));
    vec(rule, 0..3).prop_map(Value::from)
}

fn spec() -> impl Strategy<Value = Value> {
    let types = select(vec![
        json!(["Ingress"]),
        json!(["Egress"]),
        json!(["Ingress", "Egress"]),
    ]);
    let all = (selector(), types, rules("from"), rules("to"));
    all.prop_map(|(pods, types, ingress, egress)| {
        json!({"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress})
    })
}

fn policies() -> impl Strategy<Value = Vec<Policy>> {
    let named = (select(vec!["shop", "crm"]), spec());
    vec(named, 0..5).prop_map(|specs| {
        let read = |(place, (namespace, spec)): (usize, (&str, Value))| {
            policy(namespace, &format!("p{place}"), &spec)
        };
        specs.into_iter().enumerate().map(read).collect()
    })
}

fn flow() -> impl Strategy<Value = Flow> {
    let addresses = || select(&ADDRESSES[..]);
    let protocols = select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp, Protocol::Icmp]);
    let ports = select(vec![1, 80, 81, 4789, 8000, 8080, 8081, 65535]);
    (
        select(vec!["n1", "n2"]),
        addresses(),
        addresses(),
        protocols,
        ports,
    )
        .prop_map(|(node, source, destination, protocol, port)| Flow {
            node: node.into(),
            source: address(source),
            destination: address(destination),
            protocol,
            port: (protocol != Protocol::Icmp).then_some(port),
            state: State::New,
        })
}

/// Whether a policy isolates a side of the connection that no policy isolated before.
fn isolates_more(cluster: &Cluster, added: &Policy, flow: &Flow) -> bool {
    let sides = [
        (flow.source, Direction::Egress),
        (flow.destination, Direction::Ingress),
    ];
    sides.into_iter().any(|(of, direction)| {
        let isolates = |policy: &Policy, pod: &Pod| {
            policy.namespace == pod.namespace
                && policy.rules(direction).is_some()
                && policy.selector.matches(&pod.labels) != crate::certainty::Match::No
        };
        let is_certain = |policy: &Policy, pod: &Pod| {
            isolates(policy, pod) && policy.selector.matches(&pod.labels) == crate::certainty::Match::Yes
        };
        cluster
            .pods()
            .iter()
            .filter(|pod| pod.addresses().any(|known| known == of))
            .any(|pod| {
                let before = cluster.policies().iter().any(|policy| is_certain(policy, pod));
                isolates(added, pod) && !before
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 1 << 20, failure_persistence: None, ..ProptestConfig::default() })]

    /// Policies are a union: one more for a pod that is isolated already refuses nothing more.
    #[test]
    fn a_policy_for_an_isolated_pod_refuses_nothing_more(policies in policies(), more in spec(), flow in flow()) {
        let before = cluster(policies.clone());
        let added = policy("shop", "more", &more);
        prop_assume!(!isolates_more(&before, &added, &flow));
        let after = cluster([policies, vec![added]].concat());
        let (before, after) = (evaluate(&before, &flow), evaluate(&after, &flow));
        prop_assert!(!before.is_allowed() || after.is_allowed(), "{before:?} became {after:?}");
        prop_assert!(before.is_refused() || !after.is_refused(), "{before:?} became {after:?}");
    }

    #[test]
    fn the_order_of_policies_changes_nothing(
        (policies, other) in policies().prop_flat_map(|policies| (Just(policies.clone()), Just(policies).prop_shuffle())),
        flow in flow(),
    ) {
        prop_assert_eq!(evaluate(&cluster(policies), &flow), evaluate(&cluster(other), &flow));
    }

    /// What an exception cuts from its own item, another item may still mean.
    #[test]
    fn an_exception_cuts_its_own_item_only(peers in vec(peer(), 1..3), flow in flow()) {
        // A node may have the address of its tunnel instead.
        let of_nodes: ipnet::IpNet = "192.0.2.0/24".parse().unwrap();
        prop_assume!(!of_nodes.contains(&flow.source));
        let block = |except: Value| json!({"ipBlock": {"cidr": "10.244.0.0/16", "except": except}});
        let allowing = |peers: Vec<Value>| {
            let rules = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": peers}]});
            let of = |namespace| policy(namespace, "p", &rules);
            evaluate(&cluster(vec![of("shop"), of("crm")]), &flow)
        };
        let without = allowing(peers.clone());
        let cut = allowing([vec![block(json!(["10.244.1.0/24"]))], peers.clone()].concat());
        let whole = allowing([vec![block(json!([]))], peers].concat());
        // The item with its exception adds peers, and never removes one.
        prop_assert!(!without.is_allowed() || cut.is_allowed());
        prop_assert!(!cut.is_allowed() || whole.is_allowed());
        let is_cut = "10.244.1.0/24".parse::<ipnet::IpNet>().unwrap().contains(&flow.source);
        if is_cut {
            prop_assert_eq!(cut, without);
        } else {
            prop_assert_eq!(cut, whole);
        }
    }

    /// A class is exact: it has one verdict.
    #[test]
    fn connections_of_a_class_have_the_same_verdict(policies in policies(), flows in vec(flow(), 2..60)) {
        let cluster = cluster(policies);
        let classes = Classes::of(&cluster);
        let mut verdicts = std::collections::BTreeMap::new();
        for flow in &flows {
            let verdict = evaluate(&cluster, flow);
            let key = classes.key(&cluster, flow).unwrap();
            let known = verdicts.entry(key).or_insert_with(|| (flow, verdict.clone()));
            prop_assert_eq!(&known.1, &verdict, "{:?} and {:?}", known.0, flow);
        }
    }

    /// A connection without a pod on the node is none of its business.
    #[test]
    fn a_verdict_depends_on_policies_of_the_pods_of_the_node(policies in policies(), flow in flow()) {
        let verdict = evaluate(&cluster(policies.clone()), &flow);
        let is_here = |pod: &&Pod| pod.node == flow.node && pod.is_enforced;
        let of = |address| pods().iter().filter(is_here).any(|pod| pod.addresses().any(|known| known == address));
        if let Verdict::Refused { direction, policies, .. } = verdict {
            let judged = if direction == Direction::Ingress { flow.destination } else { flow.source };
            prop_assert!(of(judged));
            prop_assert!(policies.iter().all(|policy| policy.namespace.is_some()));
        }
    }
}
