use policy::{Facts, Node};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fake_api::FakeApi;

const SAMPLES: &str = "/apis/replumb.dev/v1alpha1/connectionsamples";

fn owner() -> Owner {
    Owner {
        name: "m".to_owned(),
        reference: OwnerReference {
            uid: "m-1".to_owned(),
            name: "m".to_owned(),
            ..OwnerReference::default()
        },
    }
}

fn cluster(nodes: &[&str]) -> Cluster {
    let node = |name: &&str| Node {
        name: Arc::from(*name),
        ..Node::default()
    };
    Cluster::new(Facts {
        nodes: nodes.iter().map(node).collect(),
        ..Facts::default()
    })
}

fn wanted(nodes: &[(&str, &[&str])]) -> BTreeMap<Arc<str>, Restricted> {
    let of = |(node, addresses): &(&str, &[&str])| {
        let restricted = Restricted {
            ingress: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            egress: Vec::new(),
            pods: addresses.len(),
        };
        (Arc::from(*node), restricted)
    };
    nodes.iter().map(of).collect()
}

fn put(api: &FakeApi, node: &str, uid: &str, status: &Value) {
    api.put(
        &format!("{SAMPLES}/{node}"),
        json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "ConnectionSample",
            "metadata": {
                "name": node, "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [{ "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "name": "m", "uid": uid }],
            },
            "spec": { "nodeName": node, "migration": "m", "capacity": 2000, "ingress": ["10.244.1.5"] },
            "status": status,
        }),
    );
}

async fn judge_all(api: &FakeApi, wanted: &BTreeMap<Arc<str>, Restricted>) -> Observation {
    let cluster = cluster(&["a", "b"]);
    judge(&api.client(), &owner(), &cluster, wanted, 2, &[8472])
        .await
        .unwrap()
}

#[rstest]
#[case(0, 2000)]
#[case(3, 2000)]
#[case(150, 1024)]
#[case(151, 1024)]
#[case(1000, 128)]
#[case(5000, 64)]
#[case(1_000_000, 64)]
fn a_sample_of_many_nodes_is_small(#[case] nodes: usize, #[case] expected: u32) {
    assert_eq!(capacity(nodes), expected);
}

#[tokio::test]
async fn samples_are_created_changed_and_kept() {
    let api = FakeApi::default();
    let first = wanted(&[("a", &["10.244.1.5"]), ("b", &["10.244.2.5"])]);
    judge_all(&api, &first).await;
    let spec = api.get(&format!("{SAMPLES}/a")).unwrap()["spec"].clone();
    let expected = json!({ "nodeName": "a", "migration": "m", "capacity": 2000, "ingress": ["10.244.1.5"] });
    assert_eq!(spec, expected);
    let owners = api.get(&format!("{SAMPLES}/b")).unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!(owners[0]["uid"], "m-1");
    api.take_changes();

    judge_all(&api, &first).await;
    assert_eq!(api.take_changes(), [], "an equal sample is not written");

    // The pods of node b are gone: its sample stays, because its connections count.
    judge_all(&api, &wanted(&[("a", &["10.244.1.6"])])).await;
    let spec = |node: &str| api.get(&format!("{SAMPLES}/{node}")).unwrap()["spec"].clone();
    assert_eq!(spec("a")["ingress"], json!(["10.244.1.6"]));
    assert_eq!(spec("b").get("ingress"), None);
}

#[tokio::test]
async fn samples_of_another_migration_and_of_gone_nodes_are_deleted() {
    let api = FakeApi::default();
    put(&api, "a", "m-0", &json!({}));
    put(&api, "gone", "m-1", &json!({}));
    let both = wanted(&[("a", &["10.244.1.5"])]);
    judge_all(&api, &both).await;
    assert!(api.below(SAMPLES).is_empty());
    judge_all(&api, &both).await;
    let owner = api.get(&format!("{SAMPLES}/a")).unwrap()["metadata"]["ownerReferences"][0]["uid"].clone();
    assert_eq!(owner, "m-1");
}

#[tokio::test]
async fn observations_are_counted_by_the_clock_of_the_node() {
    let api = FakeApi::default();
    let status = json!({
        "since": "2030-01-01T00:00:00Z", "last": "2030-01-01T00:10:00Z", "replaced": 7,
    });
    put(&api, "a", "m-1", &status);
    put(&api, "b", "m-1", &json!({ "problem": "operation not permitted" }));
    api.edit(
        &format!("{SAMPLES}/b"),
        &json!({ "metadata": { "creationTimestamp": "2026-01-01T00:05:00Z" } }),
    );
    let found = judge_all(&api, &wanted(&[("a", &["10.244.1.5"]), ("b", &["10.244.1.5"])])).await;
    assert_eq!(found.since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    assert_eq!(found.missing, 7);
    let node = |seconds, later_by, problem: Option<&str>| NodeObservation {
        seconds,
        later_by,
        problem: problem.map(str::to_owned),
    };
    assert_eq!(found.nodes["a"], node(Some(600), 0, None));
    assert_eq!(found.nodes["b"], node(None, 300, Some("operation not permitted")));
}

#[tokio::test]
async fn a_sample_that_cannot_be_written_or_read_is_a_problem_of_its_node() {
    let api = FakeApi::default();
    api.deny(SAMPLES, "denied by policy x");
    put(&api, "b", "m-1", &json!({ "connections": "many" }));
    let found = judge_all(&api, &wanted(&[("a", &["10.244.1.5"]), ("b", &["10.244.1.5"])])).await;
    let problem = |node: &str| found.nodes[node].problem.clone().unwrap_or_default();
    assert!(problem("a").contains("denied by policy x"), "{found:?}");
    assert!(problem("b").starts_with("status: "), "{found:?}");
}

#[tokio::test]
async fn all_samples_are_deleted_at_the_end() {
    let api = FakeApi::default();
    for node in ["a", "b"] {
        put(&api, node, "m-0", &json!({}));
    }
    api.deny_reading(SAMPLES, "forbidden");
    assert!(!are_deleted(&api.client()).await);
    api.allow_reading(SAMPLES);
    assert!(are_deleted(&api.client()).await);
    assert!(api.below(SAMPLES).is_empty());
}

fn host() -> Host {
    Host {
        node: "a".into(),
        client_ports: CLIENT_PORTS,
        tunnel_ports: Vec::new(),
    }
}

fn connection(change: impl FnOnce(&mut SeenConnection)) -> Seen {
    let mut connection = SeenConnection {
        protocol: 6,
        source: "10.244.1.7".parse().unwrap(),
        source_port: None,
        destination: "10.244.1.9".parse().unwrap(),
        port: Some(5432),
        is_translated: false,
        count: 4,
        replied: 3,
        first: Timestamp::UNIX_EPOCH,
        last: Timestamp::UNIX_EPOCH,
    };
    change(&mut connection);
    seen(&connection, &host())
}

#[test]
fn a_connection_has_the_tuples_of_connection_tracking() {
    let plain = connection(|_| {});
    let Entry { original, reply, .. } = plain.entry;
    assert_eq!(
        (original.source, original.destination),
        (reply.destination, reply.source)
    );
    assert_eq!((original.source_port, original.destination_port), (32768, 5432));
    assert_eq!((reply.source_port, reply.destination_port), (5432, 32768));
    assert!(plain.entry.is_replied && plain.has_port);
    let translated = connection(|connection| connection.is_translated = true).entry;
    assert_ne!(translated.original.destination, translated.reply.source);
    let answer = connection(|connection| {
        connection.port = None;
        connection.source_port = Some(5432);
    });
    assert!(!answer.has_port && answer.entry.original.source_port == 5432);
    let ping = connection(|connection| {
        connection.protocol = 1;
        connection.port = None;
    });
    assert!(ping.has_port && ping.entry.reply.source_port == 0);
}

/// `cargo test --release -p coordinator --lib preview::samples::tests::processor_time -- --ignored --nocapture`: 150 000 pods on 5 000
/// nodes, 64 connections of each node, and 2 000 policies in 200 namespaces.
#[test]
#[ignore = "a benchmark that needs memory and time"]
fn processor_time() {
    let ipv4 = |pod: usize| format!("10.{}.{}.{}", 100 + pod / 62_500, pod / 250 % 250, pod % 250);
    let pods = (0..150_000).map(|number| policy::Pod {
        namespace: format!("team-{}", number % 200).into(),
        name: format!("web-{number}").into(),
        workload: format!("web-{}", number / 20).into(),
        labels: [("app".to_owned(), format!("app-{}", number % 7))].into(),
        node: format!("node-{}", number % 5000).into(),
        ipv4: ipv4(number).parse().ok(),
        ipv6: None,
        ports: Arc::default(),
        life: policy::pod::Life::Live,
        is_host_network: false,
        is_enforced: true,
        lifetime: policy::pod::Lifetime::default(),
    });
    let policies = (0..2000).map(|number| {
        let only = |count: usize| json!({ "matchLabels": { "app": format!("app-{}", number % count) } });
        let policy = json!({
            "metadata": { "namespace": format!("team-{}", number % 200), "name": format!("p-{number}") },
            "spec": {
                "podSelector": only(7),
                "ingress": [{ "from": [{ "podSelector": only(5) }], "ports": [{ "port": 5432 }] }],
            },
        });
        policy::Policy::read(&serde_json::from_value(policy).unwrap())
    });
    let nodes = (0..5000).map(|number| Node {
        name: format!("node-{number}").into(),
        ..Node::default()
    });
    let facts = Facts {
        nodes: nodes.collect(),
        namespaces: (0..200)
            .map(|number| (format!("team-{number}").into(), [("team", "a")].into()))
            .collect(),
        pods: pods.collect(),
        policies: policies.collect(),
        ..Facts::default()
    };
    let begun = std::time::Instant::now();
    let cluster = Cluster::new(facts);
    println!("index of the cluster: {:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    let restricted = policy::dormant::restricted(&cluster);
    println!(
        "restricted pods on {} nodes: {:?}",
        restricted.len(),
        begun.elapsed()
    );
    let mut connection = SeenConnection {
        protocol: 6,
        source: "10.244.1.7".parse().unwrap(),
        source_port: None,
        destination: "10.244.1.9".parse().unwrap(),
        port: Some(5432),
        is_translated: false,
        count: 4,
        replied: 3,
        first: Timestamp::UNIX_EPOCH,
        last: Timestamp::UNIX_EPOCH,
    };
    let begun = std::time::Instant::now();
    let mut tally = Tally::new(SUMS);
    for node in 0..5000 {
        let host = Host {
            node: format!("node-{node}").into(),
            ..host()
        };
        for number in 0..64 {
            connection.destination = ipv4(node + 5000 * (number % 30)).parse().unwrap();
            connection.source = ipv4((node * 31 + number * 977) % 150_000).parse().unwrap();
            tally.add(&cluster, &host, &seen(&connection, &host));
        }
    }
    println!(
        "320 000 kinds of connections: {:?}; {:?}",
        begun.elapsed(),
        tally.counts()
    );
}
