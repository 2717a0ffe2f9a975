//! Cases of `netpol.yaml`: truth tables of pod × pod × port × protocol after the public conformance suite for `NetworkPolicy`.

#![expect(clippy::unwrap_used, reason = "a test says that it failed by a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use policy::pod::{ContainerPort, Life, Lifetime};
use policy::{
    Client, Cluster, Connection, Facts, Node, Pod, Policy, Protocol, Route, Settings, State, Verdict,
    forecast,
};
use serde::Deserialize;
use serde_json::{Value, json};

const NAMES: [&str; 3] = ["a", "b", "c"];
const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const PORTS: [u16; 2] = [80, 81];
const PROTOCOLS: [(&str, Protocol); 3] = [
    ("TCP", Protocol::Tcp),
    ("UDP", Protocol::Udp),
    ("SCTP", Protocol::Sctp),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    test: String,
    steps: Vec<Step>,
}

type Labels = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Step {
    #[serde(default)]
    policies: BTreeMap<String, Value>,
    #[serde(default)]
    labels_of_namespaces: Labels,
    #[serde(default)]
    labels_of_pods: Labels,
    expect: Vec<Line>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(default = "any")]
    from: String,
    #[serde(default = "any")]
    to: String,
    #[serde(default)]
    ports: Vec<u16>,
    #[serde(default)]
    protocols: Vec<String>,
    is: String,
}

fn any() -> String {
    "*/*".to_owned()
}

fn cases() -> Vec<Case> {
    yaml_serde::from_str(include_str!("netpol.yaml")).unwrap()
}

/// `x/a` is 10.244.1.11, `x/b` 10.244.2.12, `y/b` 10.244.1.22.
fn address(namespace: usize, name: usize) -> (usize, Ipv4Addr) {
    let node = 1 + (namespace + name) % 2;
    let host = 10 * (namespace + 1) + name + 1;
    (node, format!("10.244.{node}.{host}").parse().unwrap())
}

fn pods(step: &Step) -> BTreeMap<String, Pod> {
    let ports: Arc<[ContainerPort]> = PORTS
        .iter()
        .flat_map(|number| {
            PROTOCOLS.map(|(name, protocol)| ContainerPort {
                name: Some(format!("serve-{number}-{}", name.to_lowercase()).into()),
                protocol,
                number: *number,
                is_init: false,
            })
        })
        .collect();
    let mut pods = BTreeMap::new();
    for (row, namespace) in NAMESPACES.into_iter().enumerate() {
        for (column, name) in NAMES.into_iter().enumerate() {
            let (node, ipv4) = address(row, column);
            let path = format!("{namespace}/{name}");
            let more = step.labels_of_pods.get(&path).into_iter().flatten();
            let more = more.map(|(key, value)| (key.as_str(), value.as_str()));
            let pod = Pod {
                namespace: namespace.into(),
                name: name.into(),
                workload: name.into(),
                labels: [("pod", name)].into_iter().chain(more).collect(),
                node: format!("n{node}").into(),
                ipv4: Some(ipv4),
                ipv6: None,
                ports: Arc::clone(&ports),
                life: Life::Live,
                is_host_network: false,
                is_enforced: true,
                lifetime: Lifetime::default(),
            };
            pods.insert(path, pod);
        }
    }
    pods
}

fn cluster(step: &Step) -> Cluster {
    let node = |number: u8| Node {
        name: format!("n{number}").into(),
        addresses: vec![[192, 0, 2, number].into()],
        tunnels: vec![[10, 244, number, 0].into()],
        ..Node::default()
    };
    let policy = |(path, spec): (&String, &Value)| {
        let (namespace, name) = path.split_once('/').unwrap();
        let policy = json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec});
        Policy::read(&serde_json::from_value(policy).unwrap())
    };
    let namespace = |name: &str| {
        let more = step.labels_of_namespaces.get(name).into_iter().flatten();
        let more = more.map(|(key, value)| (key.as_str(), value.as_str()));
        let own = [("kubernetes.io/metadata.name", name)].into_iter();
        (Arc::from(name), own.chain(more).collect())
    };
    Cluster::new(Facts {
        settings: Settings {
            pod_ranges: vec!["10.244.0.0/16".parse().unwrap()],
            ..Settings::default()
        },
        nodes: vec![node(1), node(2)],
        namespaces: NAMESPACES.map(namespace).into(),
        pods: pods(step).into_values().collect(),
        policies: step.policies.iter().map(policy).collect(),
        admin_policies: Vec::new(),
    })
}

fn fits(pattern: &str, path: &str) -> bool {
    pattern == "*/*"
        || pattern == path
        || pattern
            .strip_suffix('*')
            .is_some_and(|start| path.starts_with(start))
}

fn is_allowed(step: &Step, from: &str, to: &str, port: u16, protocol: &str) -> bool {
    let is_about = |line: &&Line| {
        fits(&line.from, from)
            && fits(&line.to, to)
            && (line.ports.is_empty() || line.ports.contains(&port))
            && (line.protocols.is_empty() || line.protocols.iter().any(|name| name == protocol))
    };
    match step.expect.iter().rev().find(is_about).map(|line| &*line.is) {
        None | Some("allowed") => true,
        Some("refused") => false,
        Some(other) => unreachable!("{other}"),
    }
}

/// Differences of a step from its truth table, and the size of the table.
fn differences(step: &Step) -> (Vec<String>, usize) {
    let (cluster, pods) = (cluster(step), pods(step));
    let mut found = Vec::new();
    let mut size = 0;
    for (from, client) in &pods {
        for (to, server) in pods.iter().filter(|(to, _)| *to != from) {
            for port in PORTS {
                for (name, protocol) in PROTOCOLS {
                    size += 1;
                    let connection = Connection {
                        client: Client::Address(client.ipv4.unwrap().into()),
                        server: server.ipv4.unwrap().into(),
                        port: Some(port),
                        protocol,
                        route: Route::Direct,
                        state: State::New,
                    };
                    let verdict = forecast(&cluster, &connection);
                    let is_right = match verdict {
                        Verdict::Allowed { .. } => is_allowed(step, from, to, port, name),
                        Verdict::Refused { .. } => !is_allowed(step, from, to, port, name),
                        Verdict::Unknown { .. } => false,
                    };
                    if !is_right {
                        found.push(format!("{from} → {to} {name} {port}: {verdict:?}"));
                    }
                }
            }
        }
    }
    (found, size)
}

#[test]
fn verdicts_are_those_of_the_conformance_suite() {
    let mut asked = 0;
    for case in cases() {
        for (place, step) in case.steps.iter().enumerate() {
            let (found, size) = differences(step);
            assert!(
                found.is_empty(),
                "{}, step {}: {} differences, such as {}",
                case.test,
                place + 1,
                found.len(),
                found[0],
            );
            asked += size;
        }
    }
    // 58 truth tables of 9 × 8 pairs, 2 ports and 3 protocols.
    assert_eq!(asked, 58 * 9 * 8 * 2 * 3);
}

#[test]
fn every_test_of_the_suite_is_there_once() {
    let names: BTreeSet<String> = cases().into_iter().map(|case| case.test).collect();
    assert_eq!((names.len(), cases().len()), (48, 48));
}
