use std::collections::BTreeMap;
use std::sync::Arc;

use engine::check::Verdict::{Fail, Pass, Unknown, Warn};
use engine::labels::Labels;
use jiff::Timestamp;
use policy::conntrack::{Entry, Host, Tuple};
use policy::dormant::dormant;
use policy::pod::{Life, Lifetime};
use policy::rules::Rules;
use policy::selector::Selector;
use policy::tally::Seen;
use policy::{Cluster, Facts, Node, Pod, Policy, Protocol, Settings, Tally};

use super::super::fixture;
use super::*;
use crate::preview::NodeObservation;

fn pod(namespace: &str, name: &str, address: &str) -> Pod {
    Pod {
        namespace: namespace.into(),
        name: name.into(),
        workload: name.into(),
        labels: Labels::from([("app", name)]),
        node: "a".into(),
        ipv4: address.parse().ok(),
        ipv6: None,
        ports: Arc::default(),
        life: Life::Live,
        is_host_network: false,
        is_enforced: true,
        lifetime: Lifetime::default(),
    }
}

/// Nothing may connect to the pods of a namespace.
fn deny(namespace: &str) -> Policy {
    Policy {
        namespace: namespace.into(),
        name: "deny".into(),
        selector: Selector::everything(),
        ingress: Some(Rules::Listed(Box::default())),
        egress: None,
    }
}

fn cluster() -> Cluster {
    Cluster::new(Facts {
        settings: Settings {
            pod_ranges: vec!["10.244.0.0/16".parse().unwrap()],
            ..Settings::default()
        },
        nodes: vec![Node {
            name: "a".into(),
            ..Node::default()
        }],
        namespaces: vec![
            ("shop".into(), Labels::default()),
            ("crm".into(), Labels::default()),
        ],
        pods: vec![
            pod("shop", "web", "10.244.1.5"),
            pod("shop", "db", "10.244.1.9"),
            pod("crm", "cli", "10.244.1.7"),
        ],
        policies: vec![deny("shop")],
        ..Facts::default()
    })
}

/// As many TCP connections to the port 5432.
fn seen(source: &str, destination: &str, count: u64) -> Seen {
    let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
    let tuple = |source, destination, source_port, destination_port| Tuple {
        source,
        destination,
        source_port,
        destination_port,
    };
    Seen {
        entry: Entry {
            protocol: Protocol::Tcp,
            original: tuple(source, destination, 40000, 5432),
            reply: tuple(destination, source, 5432, 40000),
            is_replied: true,
        },
        has_port: true,
        count,
        replied: count,
        first: Timestamp::UNIX_EPOCH,
        last: Timestamp::UNIX_EPOCH,
    }
}

fn preview(all: &[Seen]) -> Preview {
    let cluster = cluster();
    let host = Host {
        node: "a".into(),
        client_ports: 32768..=60999,
        tunnel_ports: Vec::new(),
    };
    let mut tally = Tally::new(16);
    for seen in all {
        tally.add(&cluster, &host, seen);
    }
    let complete = NodeObservation {
        seconds: Some(600),
        ..NodeObservation::default()
    };
    Preview {
        dormant: dormant(&cluster),
        policies: 1,
        selected_pods: 2,
        observation: Some(Observation {
            since: Some(Timestamp::UNIX_EPOCH),
            nodes: BTreeMap::from([("a".to_owned(), complete.clone()), ("b".to_owned(), complete)]),
            tally,
            missing: 0,
        }),
        ..Preview::default()
    }
}

fn with_node(mut preview: Preview, name: &str, node: NodeObservation) -> Preview {
    let observation = preview.observation.as_mut().unwrap();
    observation.nodes.insert(name.to_owned(), node);
    preview
}

fn judge(preview: Option<Preview>, spec: PolicyPreview) -> Vec<Check> {
    let facts = ClusterFacts {
        policy_preview: preview.map_or(PreviewState::Unread, |preview| {
            PreviewState::Known(Arc::new(preview))
        }),
        ..fixture::cluster()
    };
    let policy = CheckPolicy {
        policy_preview: spec,
        ..fixture::policy()
    };
    check(&facts, &policy)
}

fn by_default(preview: Preview) -> Check {
    one(judge(Some(preview), PolicyPreview::default()))
}

fn one(mut checks: Vec<Check>) -> Check {
    assert_eq!(checks.len(), 1, "{checks:?}");
    checks.remove(0)
}

fn accepting(names: &[&str]) -> PolicyPreview {
    PolicyPreview {
        accepted_denials: names.iter().map(|&name| name.to_owned()).collect(),
        ..PolicyPreview::default()
    }
}

#[test]
fn a_preview_that_was_not_read_is_unknown() {
    assert_eq!(one(judge(None, PolicyPreview::default())).verdict, Unknown);
    let refused = Preview {
        unread: vec!["listing NetworkPolicies: forbidden".to_owned()],
        ..Preview::default()
    };
    let check = by_default(refused);
    assert_eq!(check.verdict, Unknown);
    assert!(check.found.contains("forbidden"), "{check:?}");
}

#[test]
fn no_policies_and_policies_for_no_pod_pass_without_an_observation() {
    let none = by_default(Preview::default());
    assert_eq!(
        (none.verdict, none.found.as_str()),
        (Pass, "no policy begins to hold")
    );
    let idle = Preview {
        policies: 2,
        ..Preview::default()
    };
    let idle = by_default(idle);
    assert_eq!(
        (idle.verdict, idle.found.as_str()),
        (Pass, "2 policies begin to hold, for no pod")
    );
}

#[test]
fn connections_that_would_be_refused_name_workloads_and_policy() {
    let found = preview(&[seen("10.244.1.7", "10.244.1.9", 214)]);
    let check = by_default(found);
    assert_eq!(check.verdict, Fail);
    assert_eq!(check.object, "NetworkPolicy shop/deny");
    assert_eq!(
        check.found,
        "would be refused: crm/cli → shop/db:5432 TCP, seen 214 times; policy shop/deny"
    );
    assert!(
        check.fix.ends_with("--accept-policy-denials shop/deny"),
        "{check:?}"
    );
}

#[test]
fn accepted_denials_are_warnings() {
    let found = || preview(&[seen("10.244.1.7", "10.244.1.9", 1)]);
    let accepted = one(judge(Some(found()), accepting(&["shop/deny"])));
    assert_eq!(accepted.verdict, Warn);
    assert!(
        accepted
            .found
            .ends_with("seen 1 time; policy shop/deny; accepted"),
        "{accepted:?}"
    );
    let another = one(judge(Some(found()), accepting(&["shop/other", "deny"])));
    assert_eq!(another.verdict, Fail);
}

#[test]
fn an_observation_that_is_too_short_refuses_and_says_how_long() {
    let short = |seconds| NodeObservation {
        seconds,
        ..NodeObservation::default()
    };
    let found = with_node(preview(&[]), "b", short(Some(40)));
    let check = by_default(with_node(found, "c", short(None)));
    assert_eq!((check.verdict, check.object.as_str()), (Fail, "Nodes b, c"));
    assert_eq!(check.found, "observed 0 s of 600 s");
    assert!(check.fix.starts_with("wait 600 s; or"), "{check:?}");
    // The same observation is long enough for another time.
    let spec = PolicyPreview {
        observe_seconds: 30,
        ..PolicyPreview::default()
    };
    let found = with_node(preview(&[]), "b", short(Some(40)));
    assert_eq!(one(judge(Some(found), spec)).verdict, Pass);
    // Nothing was observed at all.
    let begun = Preview {
        observation: None,
        ..preview(&[])
    };
    let check = by_default(begun);
    assert_eq!(
        (check.verdict, check.found.as_str()),
        (Fail, "observed 0 s of 600 s")
    );
}

#[test]
fn a_node_that_came_late_only_has_to_report() {
    let late = |seconds| NodeObservation {
        seconds,
        later_by: 301,
        problem: None,
    };
    assert_eq!(
        by_default(with_node(preview(&[]), "c", late(Some(1)))).verdict,
        Pass
    );
    assert_eq!(by_default(with_node(preview(&[]), "c", late(None))).verdict, Fail);
}

#[test]
fn a_node_that_cannot_be_observed_is_unknown() {
    let odd = NodeObservation {
        seconds: Some(600),
        later_by: 0,
        problem: Some("operation not permitted".to_owned()),
    };
    let check = by_default(with_node(preview(&[]), "c", odd));
    assert_eq!((check.verdict, check.object.as_str()), (Unknown, "Node c"));
    assert!(check.found.contains("operation not permitted"), "{check:?}");
}

#[test]
fn unknown_connections_and_missing_samples_warn() {
    let mut found = preview(&[
        seen("10.244.1.200", "10.244.1.9", 3),
        seen("10.244.1.9", "10.244.1.7", 5),
    ]);
    // A policy without rules refuses every client.
    assert_eq!(by_default(found.clone()).verdict, Fail);
    found = preview(&[seen("10.244.1.7", "10.244.1.200", 3)]);
    let check = by_default(found.clone());
    assert_eq!(check.verdict, Warn);
    assert_eq!(
        check.found,
        "not known whether 3 connections would be refused: an address of the pod range belongs to no known pod; such as crm/cli → \
         10.244.1.200:5432 TCP"
    );
    found.observation.as_mut().unwrap().missing = 7;
    let checks = judge(Some(found), PolicyPreview::default());
    assert_eq!(checks.len(), 2);
    assert!(checks[1].found.ends_with("at most 7 missing"), "{checks:?}");
}

#[test]
fn nothing_is_judged_without_an_observation_on_request() {
    let spec = PolicyPreview {
        observe_seconds: 0,
        ..PolicyPreview::default()
    };
    let found = preview(&[seen("10.244.1.7", "10.244.1.9", 214)]);
    let status = found.status(&spec);
    assert_eq!(
        (status.policies, status.selected_pods, status.refused.len()),
        (1, 2, 0)
    );
    let check = one(judge(Some(found), spec));
    assert_eq!(check.verdict, Warn);
    assert!(
        check.found.starts_with("1 policy begins to hold, for 2 pods"),
        "{check:?}"
    );
}

#[test]
fn the_status_has_the_most_frequent_refusals() {
    let ports = |port: u16| {
        let mut one = seen("10.244.1.7", "10.244.1.9", u64::from(port));
        one.entry.reply.source_port = port;
        one.entry.original.destination_port = port;
        one
    };
    let all: Vec<Seen> = (1..=30).map(ports).collect();
    let mut found = preview(&all);
    found.observation.as_mut().unwrap().tally = {
        let mut tally = Tally::new(64);
        let host = Host {
            node: "a".into(),
            client_ports: 32768..=60999,
            tunnel_ports: Vec::new(),
        };
        for seen in &all {
            tally.add(&cluster(), &host, seen);
        }
        tally
    };
    let status = found.status(&accepting(&["shop/deny"]));
    assert_eq!((status.refused.len(), status.refused_kinds), (20, 30));
    assert_eq!(status.connections.refused, (1..=30).sum::<u64>());
    let first = &status.refused[0];
    assert_eq!(
        (
            first.client.as_str(),
            first.server.as_str(),
            first.port,
            first.count
        ),
        ("crm/cli", "shop/db", Some(30), 30)
    );
    assert_eq!(first.policies, ["NetworkPolicy shop/deny"]);
    assert!(first.is_accepted);
    assert_eq!(status.dormant_policies[0].pods, Some(2));
    assert_eq!((status.observed_seconds, status.incomplete_node_count), (600, 0));
}

#[test]
fn refusals_without_a_name_refuse_by_their_policies() {
    let mut tally = Tally::new(1);
    let host = Host {
        node: "a".into(),
        client_ports: 32768..=60999,
        tunnel_ports: Vec::new(),
    };
    for source in ["10.244.1.7", "10.244.1.5"] {
        tally.add(&cluster(), &host, &seen(source, "10.244.1.9", 2));
    }
    let mut found = preview(&[]);
    found.observation.as_mut().unwrap().tally = tally;
    let checks = judge(Some(found.clone()), PolicyPreview::default());
    assert_eq!(checks.len(), 2);
    assert!(checks.iter().all(|check| check.verdict == Fail));
    assert!(
        checks[1].found.contains("2 more connections; policy shop/deny"),
        "{checks:?}"
    );
    let checks = judge(Some(found), accepting(&["shop/deny"]));
    assert!(checks.iter().all(|check| check.verdict == Warn), "{checks:?}");
}
