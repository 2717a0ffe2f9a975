//! Objects of replumb stay within a size that the API server stores with ease, in a cluster of any size: 5 000 nodes and 10 000
//! Services with names and texts of the greatest possible length.

use ::flannel_to_calico::api::{NodeSpec, PolicyPreviewStatus, SavedNodeState};
use api::migration::{
    CalicoDatastore, CalicoDatastoreStatus, Drift, FlannelToCalico, FlannelToCalicoStatus, PodCidr,
    PodCidrStatus, ServiceCidr, ServiceCidrStatus,
};
use api::node_migration::NodeMigrationSpec;
use api::record;
use api::traffic::GateBreach;
use engine::check::Verdict;
use engine::cluster::Node;
use engine::drain::Pod;
use engine::rollout::{NodeProgress, RolloutNode};
use flannel_to_calico::import::{ImportedAddress, pod_handle};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::*;
use crate::fake_api::{FakeApi, MIGRATION};
use crate::summary::{WaitReport, summarize};

const NODES: usize = 5000;
const SERVICES: usize = 10_000;
/// Pods of one node: twice a kubelet's default limit.
const PODS_OF_A_NODE: usize = 220;
/// Most bytes of JSON of one object.
const MOST: usize = 256 * 1024;
const OURS: &str = "/apis/replumb.dev/v1alpha1";

/// The longest possible name of a Node or pod.
fn long_name(number: usize) -> String {
    let label = "x".repeat(63);
    format!("{label}.{label}.{label}.{number:0>61}")
}

fn nodes() -> BTreeMap<String, Node> {
    let of = |number| Node {
        name: long_name(number),
        operating_system: "linux".to_owned(),
        kernel_version: "6.18.0".to_owned(),
        ready: true,
        ..Node::default()
    };
    let nodes = (0..NODES).map(of);
    nodes.map(|node| (node.name.clone(), node)).collect()
}

fn pods_of(node: &str, count: usize) -> impl Iterator<Item = Pod> + '_ {
    (0..count).map(move |number| Pod {
        namespace: "n".repeat(63),
        name: long_name(number),
        uid: format!("uid-{number}"),
        node: node.to_owned(),
        controller: Some(("ReplicaSet".to_owned(), format!("web-{number}"))),
        addresses: vec!["10.244.0.9".parse().unwrap()],
        ..Pod::default()
    })
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn sourced(value: &Value) -> Value {
    json!({ "value": value, "source": "default" })
}

fn flannel_settings() -> flannel_to_calico::settings::Settings {
    read(json!({
        "flannelNetwork": sourced(&json!("10.0.0.0/8")),
        "flannelDaemonSetName": sourced(&json!("kube-flannel-ds")),
        "flannelDaemonSetNamespace": sourced(&json!("kube-flannel")),
        "flannelMtu": sourced(&json!(1450)),
        "flannelIpMasquerade": sourced(&json!(true)),
        "flannelSubnetLength": sourced(&json!(24)),
        "flannelAnnotationPrefix": sourced(&json!("flannel.alpha.coreos.com")),
        "flannelVni": sourced(&json!(1)),
        "flannelPort": sourced(&json!(8472)),
        "calicoDaemonSetName": sourced(&json!("calico-node")),
        "calicoDaemonSetNamespace": sourced(&json!("kube-system")),
        "ipPoolBlockSize": sourced(&json!(26)),
        "cniConfigurationDirectory": sourced(&json!("/etc/cni/net.d")),
    }))
}

/// A Migration of this kind with a `NodeMigration` for each node.
fn server(kind: &str, spec: &Value) -> (FakeApi, Migration, Vec<Arc<NodeMigration>>) {
    let api = FakeApi::default();
    api.put_migration(&json!({ kind: spec }), &MigrationStatus::default());
    let mut objects = Vec::new();
    for name in nodes().keys() {
        let path = format!("{OURS}/nodemigrations/{name}");
        api.put(
            &path,
            json!({
                "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": { "name": name },
                "spec": { "nodeName": name, "migration": "m" },
            }),
        );
        objects.push(Arc::new(read(api.get(&path).unwrap())));
    }
    let migration = read(api.get(MIGRATION).unwrap());
    (api, migration, objects)
}

/// Plan and previous state are written by the code of a pass, with every text of the status at its greatest length. No object is
/// too large, and its parts assemble to the plan again.
async fn write_and_measure<K: Kind>(
    name: &str,
    kind: &K,
    spec: &Value,
    settings: K::Settings,
    facts: &K::Facts,
    of_kind: impl FnOnce(&mut MigrationStatus),
) {
    let (api, migration, objects) = server(name, spec);
    let context = api.context();
    let mut memory = Memory::default();
    let document = kind.document(&settings, facts, "");
    let mut status = MigrationStatus::default();
    write_node_plans(kind, &context, &objects, &settings, &document)
        .await
        .unwrap();
    status.plan = Some(
        write_plan(&context, &mut memory, &migration, &document)
            .await
            .unwrap(),
    );
    let unready: Vec<Value> = (0..SERVICES)
        .map(|number| json!(["Deployment", "n".repeat(63), long_name(number), 1]))
        .collect();
    let complete = BTreeMap::from([
        ("pods not Ready".to_owned(), json!(unready).to_string()),
        ("other".to_owned(), "{}".to_owned()),
    ]);
    let before = records::divide(complete.clone());
    let records = &mut memory.records;
    records
        .write(
            &context.client,
            &migration,
            RecordContent::SavedState,
            before.parts,
        )
        .await
        .unwrap();
    status.saved_state = before.inline;
    status.saved_state_in_records = before.in_records;
    kind.save_settings(settings, facts, &mut status);
    of_kind(&mut status);
    fill_texts(&mut status);
    crate::pass::publish(&context, &mut Memory::default(), &migration, status)
        .await
        .unwrap();

    let mut largest: BTreeMap<String, usize> = BTreeMap::new();
    for plural in ["migrations", "nodemigrations", "migrationrecords"] {
        let below = api.below(&format!("{OURS}/{plural}"));
        let sizes = below.iter().map(|object| object.to_string().len());
        let most = sizes.max().unwrap_or_default();
        println!("{name}: {} {plural}, the largest {most} bytes", below.len());
        largest.insert(plural.to_owned(), most);
    }
    assert!(largest.values().all(|size| *size < MOST), "{name}: {largest:?}");

    let stored: Migration = read(api.get(MIGRATION).unwrap());
    let stored_nodes: Vec<NodeMigration> = api
        .below(&format!("{OURS}/nodemigrations"))
        .into_iter()
        .map(read)
        .collect();
    let stored_records: Vec<api::MigrationRecord> = api
        .below(&format!("{OURS}/migrationrecords"))
        .into_iter()
        .map(read)
        .collect();
    let status = stored.status.unwrap();
    let plan = status.plan.unwrap();
    let assembled = record::document(
        &plan,
        &stored_nodes,
        stored_records.iter().map(|record| &record.spec),
    );
    assert_eq!(assembled, document);
    assert_eq!(assembled.hash(), plan.hash);
    let mut next = records::Records::default();
    next.load(&context.client, &migration).await.unwrap();
    assert_eq!(
        records::assemble(&status.saved_state, &status.saved_state_in_records, &next),
        Ok(complete)
    );
}

/// Fields of the status of every kind at their greatest length.
fn fill_texts(status: &mut MigrationStatus) {
    let long = "ä".repeat(1 << 20);
    let names: Vec<String> = nodes().into_keys().collect();
    let checks = (0..60).flat_map(|check| (0..12).map(move |_| check));
    let checks = checks.map(|check| {
        let name = format!("SomeCheckWithALongName{check}");
        Check::not_pass(name, Verdict::Fail, &*long, &*long, &*long, &*long)
    });
    status.checks = fit_checks(checks.collect(), CHECKS_BYTES);
    let standing = |number: usize| {
        if number.is_multiple_of(2) {
            NodeProgress::Working
        } else {
            NodeProgress::Skipped
        }
    };
    let rollout_nodes: Vec<RolloutNode<'_>> = names
        .iter()
        .enumerate()
        .map(|(number, name)| RolloutNode {
            name,
            standing: standing(number),
            ready: true,
            on_old: true,
            is_backing_off: false,
            tries: 0,
        })
        .collect();
    let held = |name: &String| {
        let held = WaitReport {
            reason: WaitReason::AgentSilent.into(),
            message: long.clone(),
            needs_user: false,
        };
        (name.clone(), held)
    };
    let waits = names.iter().take(10).map(held).collect();
    summarize(status, &rollout_nodes, &waits, None, &BTreeMap::new());
    assert_eq!(status.message, long);
    let now = Timestamp::now();
    status.wait = Some(engine::standstill::MigrationWait {
        reason: WaitReason::AgentSilent,
        message: long.clone(),
        since: now,
    });
    status.breach = Some(GateBreach {
        at: now,
        message: long.clone(),
        resumed_at: None,
        clean_since: None,
    });
    status.drift = Some(Drift {
        at: now,
        differences: vec![long; 20],
        resumed_at: None,
    });
}

/// The longest preview of network policies.
fn policy_preview() -> PolicyPreviewStatus {
    let name = |number| format!("{}/{}", "n".repeat(63), long_name(number));
    let policies: Vec<Value> = (0..30)
        .map(|number| json!({ "policy": format!("NetworkPolicy {}", name(number)), "pods": 150_000, "ingress": true }))
        .collect();
    let of_refusal: Vec<String> = (0..3)
        .map(|number| format!("NetworkPolicy {}", name(number)))
        .collect();
    let refused: Vec<Value> = (0..20)
        .map(|number| {
            json!({
                "client": name(number), "server": name(number), "protocol": "protocol 132", "port": 65_535, "direction": "Ingress",
                "policies": of_refusal, "policyCount": 8192, "reason": "NoRuleMatches", "count": u64::MAX,
                "last": "2026-01-01T00:00:00.123456789Z",
            })
        })
        .collect();
    let example = format!("{} → {}:65535 protocol 132", name(0), name(1));
    let unknown = json!({ "reason": "TunnelAddressMissing", "count": u64::MAX, "example": example });
    read(json!({
        "unread": vec!["x".repeat(512); 5], "policies": 50_000, "dormantPolicies": policies, "selectedPods": 150_000,
        "refusedKinds": 4096, "refused": refused, "unknown": vec![unknown; 5], "incompleteNodeCount": NODES,
        "incompleteNodes": nodes().keys().take(10).collect::<Vec<_>>(),
    }))
}

#[tokio::test]
async fn flannel_to_calico() {
    let node = long_name(0);
    let facts = flannel_to_calico::facts::ClusterFacts {
        nodes: nodes(),
        pods: pods_of(&node, PODS_OF_A_NODE).collect(),
        ..Default::default()
    };
    let settings = flannel_settings();
    let known = FlannelToCalicoStatus {
        settings: settings.clone(),
        nodes: None,
        policy_preview: Some(policy_preview()),
    };
    Box::pin(write_and_measure(
        "flannelToCalico",
        &FlannelToCalico::default(),
        &json!({}),
        settings,
        &facts,
        |status| status.flannel_to_calico = Some(known),
    ))
    .await;
}

#[tokio::test]
async fn pod_cidr() {
    let spec = json!({ "from": "10.0.0.0/8", "to": "172.16.0.0/12" });
    let settings: pod_cidr::settings::Settings = read(json!({
        "from": sourced(&json!("10.0.0.0/8")), "to": sourced(&json!("172.16.0.0/12")),
        "oldPool": sourced(&json!(long_name(0))), "newPool": sourced(&json!(long_name(1))),
        "blockSize": sourced(&json!(26)),
        "calicoDaemonSetNamespace": sourced(&json!("kube-system")),
        "calicoDaemonSetName": sourced(&json!("calico-node")),
    }));
    let facts = pod_cidr::facts::ClusterFacts {
        nodes: nodes(),
        pods: pods_of(&long_name(0), NODES).collect(),
        ..Default::default()
    };
    let known = PodCidrStatus::of(settings.clone());
    let kind: PodCidr = read(spec.clone());
    Box::pin(write_and_measure(
        "podCidr",
        &kind,
        &spec,
        settings,
        &facts,
        |status| {
            status.pod_cidr = Some(known);
        },
    ))
    .await;
}

#[tokio::test]
async fn service_cidr() {
    let spec = json!({ "to": ["172.16.0.0/12", "fdff::/108"] });
    let settings: service_cidr::settings::Settings = read(json!({
        "from": sourced(&json!(["10.0.0.0/12", "fd00::/108"])), "to": sourced(&json!(["172.16.0.0/12", "fdff::/108"])),
        "domain": sourced(&json!("cluster.local")), "bridgePolicy": sourced(&json!("Local")),
    }));
    let service = |number: usize| {
        let addresses = [
            format!("10.1.{}.{}", number / 250, number % 250 + 1),
            format!("fd00::{number:x}"),
        ];
        json!({
            "metadata": { "namespace": "n".repeat(63), "name": format!("{number:0>63}") },
            "spec": { "type": "ClusterIP", "clusterIP": addresses[0], "clusterIPs": addresses, "sessionAffinity": "ClientIP" },
        })
    };
    let facts = service_cidr::facts::ClusterFacts {
        nodes: nodes(),
        services: (1..=SERVICES).map(service).collect(),
        ..Default::default()
    };
    let known = ServiceCidrStatus::of(settings.clone());
    let kind: ServiceCidr = read(spec.clone());
    Box::pin(write_and_measure(
        "serviceCidr",
        &kind,
        &spec,
        settings,
        &facts,
        |status| {
            status.service_cidr = Some(known);
        },
    ))
    .await;
}

#[tokio::test]
async fn calico_datastore() {
    let spec = json!({ "manifest": "kind: DaemonSet" });
    let etcd = json!({ "endpoints": ["https://192.0.2.1:2379"], "namespace": "kube-system" });
    let settings: calico_datastore::cluster::settings::Settings = read(json!({
        "daemonSet": sourced(&json!("kube-system/calico-node")), "controllers": sourced(&json!("")),
        "configuration": sourced(&json!("")), "fromImage": sourced(&json!("a")), "toImage": sourced(&json!("b")),
        "etcdV2": sourced(&etcd), "etcdV3": sourced(&etcd),
        "pauseLimitSeconds": sourced(&json!(3600)), "settleSeconds": sourced(&json!(15)),
        "ignoreV3Data": sourced(&json!(false)),
    }));
    let facts = calico_datastore::cluster::facts::ClusterFacts {
        nodes: nodes(),
        ..Default::default()
    };
    let known = Box::new(CalicoDatastoreStatus::of(settings.clone()));
    let kind: CalicoDatastore = read(spec.clone());
    Box::pin(write_and_measure(
        "calicoDatastore",
        &kind,
        &spec,
        settings,
        &facts,
        |status| {
            status.calico_datastore = Some(known);
        },
    ))
    .await;
}

/// A node in place with as many pods as possible, each with addresses of both families: the spec for its agent, the agent's
/// report, and the previous state.
#[test]
fn a_node_migration_with_the_most_pods_is_small() {
    let mut imported = Vec::new();
    let mut legacy = Vec::new();
    for number in 0..PODS_OF_A_NODE {
        let sandbox = format!("{number:0>64}");
        let addresses = ["255.255.255.255", "fd00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"];
        for address in addresses {
            imported.push(ImportedAddress {
                address: address.parse().unwrap(),
                handle: pod_handle(&sandbox),
            });
        }
        legacy.push(json!({
            "namespace": "n".repeat(63), "name": long_name(number), "sandbox": sandbox, "link": "veth0123456789a",
            "addresses": addresses, "attached": true, "routed": true,
        }));
    }
    let spec: NodeMigrationSpec = read(json!({ "nodeName": long_name(0), "migration": long_name(1) }));
    let annotations = (0..10).map(|number| (format!("projectcalico.org/{number}"), "x".repeat(253)));
    let spec = NodeMigrationSpec {
        flannel_to_calico: Some(NodeSpec {
            imported_addresses: imported,
            saved_state: Some(SavedNodeState {
                annotations: annotations.collect(),
                blocks: (0..64).map(long_name).collect(),
            }),
            ..NodeSpec::default()
        }),
        ..spec
    };
    let legacy: Vec<flannel_to_calico::facts::LegacyPod> = read(json!(legacy));
    let size = json!(spec).to_string().len() + json!(legacy).to_string().len();
    println!("NodeMigration with {PODS_OF_A_NODE} pods: {size} bytes");
    // The rest is for plan, history, checks and other facts.
    assert!(size < MOST * 7 / 8, "{size}");
}
