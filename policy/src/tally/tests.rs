use serde_json::json;

use super::*;
use crate::cluster::Facts;
use crate::conntrack::Tuple;
use crate::fixture::{address, node, pod, policy};
use crate::pod::{Lifetime, Pod};
use crate::settings::Settings;

fn second(number: i64) -> Timestamp {
    Timestamp::from_second(number).unwrap()
}

fn host() -> Host {
    Host {
        node: "n1".into(),
        client_ports: 32768..=60999,
        tunnel_ports: vec![8472],
    }
}

/// TCP to the port 5432 of 10.244.1.9, seen in the seconds 10 to 20.
fn seen(source: &str, count: u64) -> Seen {
    let tuple = |source: &str, destination: &str, source_port, destination_port| Tuple {
        source: address(source),
        destination: address(destination),
        source_port,
        destination_port,
    };
    Seen {
        entry: Entry {
            protocol: Protocol::Tcp,
            original: tuple(source, "10.244.1.9", 40000, 5432),
            reply: tuple("10.244.1.9", source, 5432, 40000),
            is_replied: true,
        },
        has_port: true,
        count,
        replied: count,
        first: second(10),
        last: second(20),
    }
}

/// Only `shop/web` may connect to `shop/db` (10.244.1.9); the other pods are given.
fn cluster(pods: Vec<Pod>) -> Cluster {
    let spec = json!({
        "podSelector": {"matchLabels": {"app": "db"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
    });
    let db = pod("shop", "db", "n1", "10.244.1.9", &[("app", "db")]);
    Cluster::new(Facts {
        settings: Settings {
            pod_ranges: vec!["10.244.0.0/16".parse().unwrap()],
            ..Settings::default()
        },
        nodes: vec![node("n1", "192.0.2.11", "10.244.1.0")],
        namespaces: vec![("shop".into(), [("team", "a")].into())],
        pods: pods.into_iter().chain([db]).collect(),
        policies: vec![policy("shop", "db-only-web", &spec)],
        ..Facts::default()
    })
}

fn web(address: &str) -> Pod {
    pod("shop", "web", "n1", address, &[("app", "web")])
}

fn api(address: &str) -> Pod {
    pod("shop", "api", "n1", address, &[("app", "api")])
}

fn lives(pod: Pod, since: Option<i64>, until: Option<i64>) -> Pod {
    let lifetime = Lifetime {
        since: since.map(second),
        until: until.map(second),
    };
    Pod { lifetime, ..pod }
}

fn tally(cluster: &Cluster, all: &[Seen]) -> Tally {
    let mut tally = Tally::new(8);
    for seen in all {
        tally.add(cluster, &host(), seen);
    }
    tally
}

/// Client, server and number of each refused sum.
fn refused(tally: &Tally) -> Vec<(String, String, u64)> {
    let name = |end: &End, address: IpAddr| end.with(address).to_string();
    tally
        .refused()
        .into_iter()
        .map(|(pair, _, sum)| {
            let (client, server) = sum.example;
            (name(&pair.client, client), name(&pair.server, server), sum.count)
        })
        .collect()
}

fn doubts(tally: &Tally) -> Vec<UnknownReason> {
    tally.unknown().into_iter().map(|(doubt, ..)| doubt.why).collect()
}

#[test]
fn refused_connections_are_summed_up_by_workload_and_policy() {
    let cluster = cluster(vec![web("10.244.1.5"), api("10.244.1.6"), api("10.244.1.7")]);
    let all = [
        seen("10.244.1.5", 3),
        seen("10.244.1.6", 4),
        seen("10.244.1.7", 5),
        seen("198.51.100.9", 2),
        seen("10.244.1.200", 1),
    ];
    let tally = tally(&cluster, &all);
    let counts = Counts {
        allowed: 3,
        refused: 11,
        unknown: 1,
        unanswered: 0,
    };
    assert_eq!(tally.counts(), counts);
    let db = || "shop/db".to_owned();
    let expected = [
        ("shop/api".to_owned(), db(), 9),
        ("198.51.100.9 outside of the cluster".to_owned(), db(), 2),
    ];
    assert_eq!(refused(&tally), expected);
    let (pair, refusal, sum) = tally.refused()[0];
    assert_eq!((pair.port, sum.last), (Some(5432), second(20)));
    assert_eq!(refusal.policies[0].to_string(), "NetworkPolicy shop/db-only-web");
    assert_eq!(doubts(&tally), [UnknownReason::AddressWithoutPod]);
}

#[test]
fn tcp_without_an_answer_is_not_judged_and_udp_is() {
    let cluster = cluster(vec![api("10.244.1.6")]);
    let mut one = seen("10.244.1.6", 5);
    one.replied = 2;
    let mut none = seen("10.244.1.6", 7);
    none.replied = 0;
    none.entry.is_replied = false;
    let mut udp = none;
    udp.entry.protocol = Protocol::Udp;
    let counts = tally(&cluster, &[one, none, udp]).counts();
    let expected = Counts {
        refused: 2 + 7,
        unanswered: 3 + 7,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
}

#[test]
fn a_connection_is_judged_with_the_pods_of_its_time() {
    // The address of a pod that may connect now belonged to one that may not.
    let reused = cluster(vec![
        lives(api("10.244.1.6"), None, Some(25)),
        lives(web("10.244.1.6"), Some(30), None),
    ]);
    let found = tally(&reused, &[seen("10.244.1.6", 4)]);
    assert_eq!(
        refused(&found),
        [("shop/api".to_owned(), "shop/db".to_owned(), 4)]
    );

    // Connection tracking remembers the connection after the end of the pod.
    let ended = cluster(vec![lives(api("10.244.1.6"), None, Some(15))]);
    let found = tally(&ended, &[seen("10.244.1.6", 4)]);
    assert_eq!(
        refused(&found),
        [("shop/api".to_owned(), "shop/db".to_owned(), 4)]
    );
}

#[test]
fn connections_of_two_pods_with_one_address_are_unknown_if_their_fates_differ() {
    let differ = cluster(vec![
        lives(api("10.244.1.6"), None, Some(15)),
        lives(web("10.244.1.6"), Some(15), None),
    ]);
    assert_eq!(
        doubts(&tally(&differ, &[seen("10.244.1.6", 4)])),
        [UnknownReason::AddressReused]
    );
    let same = cluster(vec![
        lives(api("10.244.1.6"), None, Some(15)),
        lives(api("10.244.1.6"), Some(15), None),
    ]);
    assert_eq!(tally(&same, &[seen("10.244.1.6", 4)]).counts().refused, 4);
    // The pod of the first connections is not known.
    let forgotten = cluster(vec![lives(web("10.244.1.6"), Some(15), None)]);
    assert_eq!(
        doubts(&tally(&forgotten, &[seen("10.244.1.6", 4)])),
        [UnknownReason::AddressReused]
    );
}

#[test]
fn a_connection_without_a_port_is_judged_only_if_the_sides_were_exchanged() {
    let database = crate::fixture::declare(
        pod("shop", "db", "n1", "10.244.1.9", &[("app", "db")]),
        "pg",
        5432,
    );
    let mut pods = cluster(vec![api("10.244.1.6")]).pods().to_vec();
    pods.retain(|pod| &*pod.name != "db");
    let declared = {
        let base = cluster(Vec::new());
        Cluster::new(Facts {
            settings: base.settings().clone(),
            nodes: vec![node("n1", "192.0.2.11", "10.244.1.0")],
            namespaces: vec![("shop".into(), [("team", "a")].into())],
            pods: pods.into_iter().chain([database]).collect(),
            policies: base.policies().to_vec(),
            ..Facts::default()
        })
    };
    // The answer of the server was seen first: its port is that of the sender, and the other one is not known.
    let mut answer = seen("10.244.1.6", 4);
    std::mem::swap(&mut answer.entry.original, &mut answer.entry.reply);
    answer.entry.original.source_port = 5432;
    answer.entry.reply.source_port = 32768;
    answer.entry.original.destination_port = 32768;
    answer.entry.reply.destination_port = 5432;
    answer.has_port = false;
    assert_eq!(tally(&declared, &[answer]).counts().refused, 4);
    let undeclared = cluster(vec![api("10.244.1.6")]);
    assert_eq!(
        doubts(&tally(&undeclared, &[answer])),
        [UnknownReason::AmbiguousDirection]
    );
}

#[test]
fn sums_beyond_the_limit_are_counted_without_a_name() {
    let cluster = cluster(vec![api("10.244.1.6")]);
    let mut tally = Tally::new(2);
    for port in 1..=5 {
        let mut one = seen("10.244.1.6", 1);
        one.entry.reply.source_port = port;
        one.entry.original.destination_port = port;
        tally.add(&cluster, &host(), &one);
    }
    let (unnamed, untold) = tally.unnamed();
    let by_policy: Vec<u64> = unnamed.values().copied().collect();
    assert_eq!((tally.refused().len(), by_policy, untold), (2, vec![3], 0));
    assert_eq!(tally.counts().refused, 5);
}
