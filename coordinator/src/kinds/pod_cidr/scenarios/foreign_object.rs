//! Objects of other users, of every kind that the coordinator reads: malformed, too large, too many, changing all the time, or
//! with names and labels of replumb. Each is named and delays only what depends on it: every pod moves, forward and back.

use std::time::Duration;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::ReadCache;
use super::fixture::{
    AFFINITIES, BLOCKS, MIGRATION, NODE_NAMES, PODS, POOLS, RANGES, THIRD, cluster, put_node, run_until,
    turn, turn_remembering, world_moves,
};
use super::{assert_gone, desire, until_closed};
use crate::failure::Failure as _;
use crate::fake_api::FakeApi;
use crate::kinds::service_cidr::service_index::ServiceStore;
use crate::memory::Memory;
use crate::pass::pass;
use crate::read;
use crate::workloads::workloads;

const GROUP: &str = "/apis/crd.projectcalico.org/v1";
const SHOP: &str = "/api/v1/namespaces/shop";
/// More objects than a user would create by hand.
const MANY: usize = 400;

#[expect(clippy::needless_pass_by_value, reason = "every caller has a literal")]
fn calicos(path: &str, name: &str, spec: Value) -> (String, Value) {
    let object =
        json!({ "apiVersion": "crd.projectcalico.org/v1", "metadata": { "name": name }, "spec": spec });
    (format!("{path}/{name}"), object)
}

fn pod(name: &str, labels: &Value, spec: &Value, address: &str) -> (String, Value) {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "shop", "labels": labels },
        "spec": spec, "status": { "phase": "Pending", "podIP": address },
    });
    (format!("{SHOP}/pods/{name}"), object)
}

fn requests(cpu: &str) -> Value {
    json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] })
}

fn budget(name: &str) -> (String, Value) {
    let object = json!({
        "metadata": { "name": name, "namespace": "shop" }, "spec": { "maxUnavailable": 0, "selector": {} },
        "status": { "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 },
    });
    (
        format!("/apis/policy/v1/namespaces/shop/poddisruptionbudgets/{name}"),
        object,
    )
}

#[expect(clippy::too_many_lines, reason = "one table")]
/// The objects, by their defect; changing objects depend on `round`.
fn strange(what: &str, round: usize) -> Vec<(String, Value)> {
    let pools = |name: &str, spec: Value| calicos(POOLS, name, spec);
    let handles = format!("{GROUP}/ipamhandles");
    let reservations = format!("{GROUP}/ipreservations");
    let many = |of: &dyn Fn(usize) -> (String, Value)| (0..MANY).map(of).collect();
    let large = "x".repeat(100_000);
    match what {
        "pool, malformed" => vec![pools("odd", json!({ "cidr": "10.99.0.0/16", "blockSize": 99 }))],
        "pool, large" => vec![pools(
            "odd",
            json!({ "cidr": "10.99.0.0/16", "blockSize": 26, "nodeSelector": large }),
        )],
        "pools, many" => many(&|number| {
            let cidr = format!("10.{}.{}.0/24", 100 + number / 250, number % 250);
            pools(&format!("odd-{number}"), json!({ "cidr": cidr, "blockSize": 26 }))
        }),
        "pool, changing" => vec![pools(
            "odd",
            json!({ "cidr": "10.99.0.0/16", "blockSize": 20 + 70 * (round % 2) }),
        )],
        "pool, ours by its labels" => {
            let (path, mut pool) = pools("replumb-new", json!({ "cidr": "10.99.0.0/16", "disabled": true }));
            pool["metadata"]["labels"] = json!({ "replumb.dev/off-pool": "old" });
            vec![(path, pool)]
        }
        "pool, of no range" => vec![pools("odd", json!({ "cidr": "everything" }))],
        "block, malformed elsewhere" => {
            vec![calicos(
                BLOCKS,
                "odd",
                json!({ "cidr": "10.99.0.0/26", "allocations": "none" }),
            )]
        }
        "block, malformed" => vec![calicos(
            BLOCKS,
            "odd",
            json!({ "cidr": "10.244.9.0/26", "affinity": "host:z", "allocations": "none" }),
        )],
        "block, large" => vec![calicos(
            BLOCKS,
            "odd",
            json!({ "cidr": "10.0.0.0/8", "affinity": "host:z", "allocations": vec![0; 20_000], "attributes": [] }),
        )],
        "blocks, many" => many(&|number| {
            let cidr = format!("10.99.{}.{}/26", number / 4, 64 * (number % 4));
            let spec = json!({ "cidr": cidr, "affinity": "host:a", "allocations": [], "attributes": [] });
            calicos(BLOCKS, &format!("odd-{number}"), spec)
        }),
        "block, changing" => {
            let allocations = if round.is_multiple_of(2) {
                json!([])
            } else {
                json!("none")
            };
            let spec = json!({ "cidr": "10.99.0.0/26", "affinity": "host:a", "allocations": allocations });
            vec![calicos(BLOCKS, "odd", spec)]
        }
        "claim, malformed" => vec![calicos(AFFINITIES, "odd", json!({ "node": "z", "cidr": 7 }))],
        "claims, many" => many(&|number| {
            let cidr = format!("10.99.{}.{}/26", number / 4, 64 * (number % 4));
            calicos(
                AFFINITIES,
                &format!("odd-{number}"),
                json!({ "node": "z", "cidr": cidr }),
            )
        }),
        "handle, malformed" => vec![calicos(
            &handles,
            "odd",
            json!({ "handleID": 7, "block": "none" }),
        )],
        "handle, large" => vec![calicos(
            &handles,
            "odd",
            json!({ "handleID": large, "block": {} }),
        )],
        "handles, many" => {
            many(&|number| calicos(&handles, &format!("odd-{number}"), json!({ "block": {} })))
        }
        "reservation, malformed" => vec![
            calicos(&reservations, "odd", json!({ "reservedCIDRs": ["ten", 7] })),
            calicos(&reservations, "odder", json!({ "reservedCIDRs": "everything" })),
        ],
        "reservations, many" => many(&|number| {
            let ranges = json!([format!("10.99.{}.7", number % 250)]);
            calicos(
                &reservations,
                &format!("odd-{number}"),
                json!({ "reservedCIDRs": ranges }),
            )
        }),
        "policy, malformed" => {
            vec![calicos(
                &format!("{GROUP}/globalnetworksets"),
                "odd",
                json!({ "nets": "everything" }),
            )]
        }
        "nothing" => Vec::new(),
        other => of_a_tenant(other, round),
    }
}

/// The same for objects in a tenant's namespace.
fn of_a_tenant(what: &str, round: usize) -> Vec<(String, Value)> {
    let many = |of: &dyn Fn(usize) -> (String, Value)| (0..MANY).map(of).collect();
    match what {
        "pods, malformed" => vec![
            pod("letters", &json!({}), &requests("abc"), ""),
            pod("nowhere", &json!({}), &requests("1"), "not an address"),
        ],
        "pods, large" => vec![pod("peta", &json!({}), &requests("20P"), "")],
        "pods, many" => many(&|number| pod(&format!("many-{number}"), &json!({}), &requests("1"), "")),
        "pod, changing" => vec![pod(
            "busy",
            &json!({ "round": round.to_string() }),
            &requests("1"),
            "",
        )],
        "pod, ours by its labels" => {
            let labels = json!({ "app.kubernetes.io/component": "traffic", "app.kubernetes.io/name": "replumb-agent" });
            vec![pod("traffic", &labels, &requests("1"), "")]
        }
        "budgets, many" => many(&|number| budget(&format!("all-{number}"))),
        "policies, many" => many(&|number| {
            let path = format!("/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/odd-{number}");
            (
                path,
                json!({ "metadata": { "name": format!("odd-{number}"), "namespace": "shop" }, "spec": { "podSelector": {} } }),
            )
        }),
        "policies, narrow" => vec![
            policy("shop", "says-old", "10.244.0.0/16"),
            policy("shop", "says-new", "10.200.0.0/16"),
        ],
        "sets of Calico's, narrow" => [("says-old", "10.244.0.0/16"), ("says-new", "10.200.0.0/16")]
            .map(|(name, range)| {
                let (path, mut set) = calicos(
                    &format!("{GROUP}/namespaces/shop/networksets"),
                    name,
                    json!({ "nets": [range] }),
                );
                set["metadata"]["namespace"] = json!("shop");
                (path, set)
            })
            .into(),
        "another Calico and another cluster" => {
            let container = json!({ "name": "calico-node", "env": [{ "name": "CALICO_IPV4POOL_CIDR", "value": "10.244.0.0/16" }] });
            let set = json!({
                "metadata": { "name": "calico-node", "namespace": "aaa" },
                "spec": { "selector": {}, "template": { "spec": { "hostNetwork": true, "containers": [container] } } },
            });
            let command = [
                "kube-controller-manager",
                "--allocate-node-cidrs=true",
                "--cluster-cidr=10.244.0.0/16",
            ];
            let spec = json!({ "containers": [{ "name": "c", "command": command }] });
            vec![
                (
                    "/apis/apps/v1/namespaces/aaa/daemonsets/calico-node".to_owned(),
                    set,
                ),
                pod("manager", &json!({}), &spec, ""),
            ]
        }
        other => unreachable!("{other}"),
    }
}

fn policy(namespace: &str, name: &str, range: &str) -> (String, Value) {
    let object = json!({
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": range } }] }] },
    });
    let path = format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/{name}");
    (path, object)
}

fn put(api: &FakeApi, what: &str, round: usize) {
    for (path, object) in strange(what, round) {
        api.put(&path, object);
    }
}

pub(super) fn status(api: &FakeApi) -> Value {
    api.get(MIGRATION).unwrap()["status"].clone()
}

pub(super) fn is_warned_of(api: &FakeApi, words: &str) -> bool {
    status(api)["warnings"]["items"].to_string().contains(words)
}

/// Whether every pod of the cluster has an address of this range.
pub(super) fn have_moved(api: &FakeApi, prefix: &str) -> bool {
    NODE_NAMES.iter().all(|node| {
        let pod = api.get(&format!("{PODS}/web-{node}")).unwrap_or_default();
        pod["status"]["podIP"]
            .as_str()
            .is_some_and(|address| address.starts_with(prefix))
    })
}

/// Runs passes until the condition holds, in a world in which the objects change.
async fn passes(api: &FakeApi, what: &str, until: impl Fn() -> bool) {
    for round in 0..120 {
        if until() {
            return;
        }
        put(api, what, round);
        turn(api).await;
    }
    panic!("{what}: not reached after 120 passes: {:#}", status(api));
}

/// `named`: the text of the warning about the object, when it has a defect.
#[rstest]
#[case::pool("pool, malformed", Some("IPPool odd: spec.blockSize"))]
#[case::pool("pool, large", None)]
#[case::pool("pools, many", None)]
#[case::pool("pool, changing", Some("IPPool odd: spec.blockSize"))]
#[case::pool("pool, ours by its labels", None)]
#[case::block("block, malformed elsewhere", Some("IPAMBlock odd: spec.allocations"))]
#[case::block("blocks, many", None)]
#[case::block("block, changing", Some("IPAMBlock odd of node a: spec.allocations"))]
#[case::claim("claims, many", None)]
#[case::handle("handle, malformed", None)]
#[case::handle("handle, large", None)]
#[case::handle("handles, many", None)]
#[case::reservation("reservation, malformed", Some("IPReservation odd: spec.reservedCIDRs"))]
#[case::reservation("reservations, many", None)]
#[case::pods("pods, malformed", Some("Pod shop/letters"))]
#[case::pods("pods, large", Some("Pod shop/peta"))]
#[case::pods("pods, many", None)]
#[case::pod("pod, changing", None)]
#[case::pod("pod, ours by its labels", None)]
#[case::budgets("budgets, many", None)]
#[case::policies("policies, many", None)]
#[case::policies("policies, narrow", Some("NetworkPolicy shop/says-"))]
#[case::sets("sets of Calico's, narrow", Some("NetworkSet shop/says-"))]
#[case::another_cluster("another Calico and another cluster", None)]
#[case::policy("policy, malformed", None)]
#[tokio::test]
async fn objects_of_other_users_delay_nothing(#[case] what: &str, #[case] named: Option<&str>) {
    for is_back in [false, true] {
        let api = cluster("Ignore");
        if is_back {
            until_closed(&api, "old").await;
            put(&api, what, 0);
            desire(&api, "Rollback");
        } else {
            put(&api, what, 0);
        }
        if let Some(words) = named {
            passes(&api, what, || is_warned_of(&api, words)).await;
        }
        let end = if is_back { "RolledBack" } else { "Completed" };
        passes(&api, what, || status(&api)["phase"] == end).await;
        assert_gone(&api, usize::from(is_back));
        for (path, object) in strange(what, 0) {
            let there = api.get(&path).unwrap_or_else(|| panic!("{path} was deleted"));
            assert_eq!(there["metadata"]["name"], object["metadata"]["name"]);
        }
    }
}

/// The warning names the missing range, and the consequence for pods of the target range.
#[tokio::test]
async fn a_tenants_policy_is_warned_of_with_its_missing_range() {
    let api = cluster("Ignore");
    for (name, range) in [("says-old", "10.244.0.0/16"), ("says-new", "10.200.0.0/16")] {
        let (path, policy) = policy("shop", name, range);
        api.put(&path, policy);
    }
    turn(&api).await;
    let told = |name: &str, left: &str, target: &str| {
        let words = format!("NetworkPolicy shop/{name}: found {left}, needed {left} and {target}");
        let cost = format!(
            "the migration does not wait for this change, and until then the object does not cover pods with an address of {target}"
        );
        is_warned_of(&api, &words) && is_warned_of(&api, &cost)
    };
    let (old, new) = ("10.244.0.0/16", "10.200.0.0/16");
    assert!(told("says-old", old, new), "{:#}", status(&api));
    assert!(!is_warned_of(&api, "says-new"), "{:#}", status(&api));
    until_closed(&api, "old").await;
    desire(&api, "Rollback");
    turn(&api).await;
    assert!(told("says-new", new, old), "{:#}", status(&api));
    assert!(!is_warned_of(&api, "says-old"), "{:#}", status(&api));
    run_until(&api, "RolledBack").await;
}

/// An object of the cluster delays the creation of the pool: no tenant has written it.
#[tokio::test]
async fn a_policy_of_the_cluster_delays_the_pool_until_it_allows_both_ranges() {
    for of_all in [true, false] {
        let api = cluster("Ignore");
        let (path, object) = if of_all {
            let sets = format!("{GROUP}/globalnetworksets");
            calicos(&sets, "pods", json!({ "nets": ["10.244.0.0/16"] }))
        } else {
            policy("kube-system", "dns", "10.244.0.0/16")
        };
        api.put(&path, object);
        for _ in 0..5 {
            turn(&api).await;
        }
        assert_eq!(
            status(&api)["reason"],
            "ConfigurationFollowUp",
            "{path}: {:#}",
            status(&api)
        );
        assert_eq!(api.get(&format!("{POOLS}/{}", RANGES[1].0)), None);
        api.remove(&path);
        run_until(&api, "Completed").await;
    }
}

/// An object that may be of the source range delays the end, by name, and nothing before.
#[rstest]
#[case::block("block, malformed")]
#[case::block("block, large")]
#[case::claim("claim, malformed")]
#[tokio::test]
async fn a_malformed_object_of_the_source_range_delays_only_the_end(#[case] what: &str) {
    for is_back in [false, true] {
        let api = cluster("Ignore");
        if is_back {
            until_closed(&api, "old").await;
            desire(&api, "Rollback");
        }
        put(&api, what, 0);
        let is_held = || {
            let status = status(&api);
            status["reason"] == "Leftovers" && status["message"].to_string().contains("odd")
        };
        // An object of the target range delays nothing.
        let touches_what_is_left = !(is_back && what == "block, malformed");
        if touches_what_is_left {
            passes(&api, what, is_held).await;
            assert!(have_moved(&api, RANGES[1 - usize::from(is_back)].1));
            assert!(is_warned_of(&api, "odd"), "{:#}", status(&api)["warnings"]);
            let (path, _) = strange(what, 0).remove(0);
            api.remove(&path);
        }
        let end = if is_back { "RolledBack" } else { "Completed" };
        run_until(&api, end).await;
    }
}

/// Whether the pool overlaps with either range is unknown.
#[tokio::test]
async fn a_pool_without_a_valid_range_delays_forward_changes_of_pools() {
    let what = "pool, of no range";
    let odd = format!("{POOLS}/odd");
    let is_held = |api: &FakeApi| {
        let status = status(api);
        status["reason"] == "CalicoObjects" && status["message"].to_string().contains("IPPool odd")
    };
    // Before a pool opens.
    let api = cluster("Ignore");
    passes(&api, what, || is_held(&api)).await;
    assert!(is_warned_of(&api, "IPPool odd"));
    assert_eq!(api.get(&format!("{POOLS}/{}", RANGES[1].0)), None);
    // Once both pools are switched, pods move, and the old pool stays.
    api.remove(&odd);
    until_closed(&api, "old").await;
    passes(&api, what, || is_held(&api) && have_moved(&api, RANGES[1].1)).await;
    assert!(api.get(&format!("{POOLS}/old")).is_some());
    // A rollback does not wait for the pool.
    desire(&api, "Rollback");
    passes(&api, what, || status(&api)["phase"] == "RolledBack").await;
    assert_gone(&api, 1);
    assert!(api.get(&odd).is_some());
}

/// While the range of one pool is unknown, the pod may belong to it.
#[tokio::test]
async fn a_pod_of_neither_range_stays_while_a_pool_has_no_valid_range() {
    let api = cluster("Ignore");
    until_closed(&api, "old").await;
    let (path, mut elsewhere) = pod("elsewhere", &json!({}), &requests("1"), "10.99.0.9");
    elsewhere["metadata"]["ownerReferences"] = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": true }]);
    api.put(&path, elsewhere);
    let what = "pool, of no range";
    passes(&api, what, || have_moved(&api, RANGES[1].1)).await;
    for _ in 0..5 {
        turn(&api).await;
    }
    assert!(api.get(&path).is_some(), "the pod was evicted");
}

/// The report of an agent concerns its node alone: pods of all nodes move, forward and back, and the end waits for that node by
/// name, as for a silent agent.
#[rstest]
#[case::there(false)]
#[case::back(true)]
#[tokio::test]
async fn a_malformed_report_delays_only_its_node(#[case] is_back: bool) {
    let api = cluster("Ignore");
    until_closed(&api, "old").await;
    reports(&api, &json!("nonsense"));
    if is_back {
        desire(&api, "Rollback");
    }
    for _ in 0..60 {
        turn(&api).await;
    }
    assert!(
        have_moved(&api, RANGES[1 - usize::from(is_back)].1),
        "{:#}",
        status(&api)
    );
    assert!(
        is_warned_of(&api, "NodeMigration b: status"),
        "{:#}",
        status(&api)
    );
    let end = if is_back { "RolledBack" } else { "Completed" };
    assert_ne!(status(&api)["phase"], end);
    assert!(
        status(&api)["message"].to_string().contains("node b"),
        "{:#}",
        status(&api)
    );
    reports(&api, &Value::Null);
    run_until(&api, end).await;
    assert_gone(&api, usize::from(is_back));
}

/// A tenant's objects of every kind that the coordinator reads.
fn of_every_kind() -> Vec<(String, Value)> {
    let object = |path: &str, spec: Value| {
        let object = json!({ "metadata": { "name": "odd", "namespace": "shop" }, "spec": spec });
        (path.replace("SHOP", "namespaces/shop") + "/odd", object)
    };
    let made =
        |spec: &Value| json!({ "replicas": 2, "selector": {}, "template": { "metadata": {}, "spec": spec } });
    let template = requests("1");
    let (slices, mut slice) = object("/apis/discovery.k8s.io/v1/SHOP/endpointslices", Value::Null);
    slice["metadata"]["labels"] = json!({ "kubernetes.io/service-name": "odd" });
    slice["addressType"] = json!("IPv4");
    slice["endpoints"] = json!([{ "addresses": ["10.244.1.9"], "conditions": { "ready": true } }]);
    vec![
        pod("odd", &json!({}), &template, ""),
        budget("odd"),
        object("/apis/apps/v1/SHOP/deployments", made(&template)),
        object("/apis/apps/v1/SHOP/statefulsets", made(&template)),
        object("/apis/apps/v1/SHOP/replicasets", made(&template)),
        object("/apis/apps/v1/SHOP/daemonsets", made(&template)),
        object(
            "/apis/networking.k8s.io/v1/SHOP/networkpolicies",
            json!({ "podSelector": {} }),
        ),
        object(
            "/api/v1/SHOP/services",
            json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80 }] }),
        ),
        (slices, slice),
    ]
}

/// A client may write any time into `metadata.managedFields` and into a pod template. Every object has such a time in each pass:
/// nodes, pods, pools and replumb's own objects, too.
#[rstest]
#[case::there(false)]
#[case::back(true)]
#[tokio::test]
async fn malformed_times_delay_nothing(#[case] is_back: bool) {
    let api = cluster("Ignore");
    for (path, object) in of_every_kind() {
        api.put(&path, object);
    }
    let end = if is_back {
        until_closed(&api, "old").await;
        desire(&api, "Rollback");
        "RolledBack"
    } else {
        "Completed"
    };
    for _ in 0..200 {
        api.put_unreadable_times();
        if status(&api)["phase"] == end {
            break;
        }
        turn(&api).await;
    }
    assert_eq!(status(&api)["phase"], end, "{:#}", status(&api));
    assert_gone(&api, usize::from(is_back));
    // Each object is read completely.
    let (context, cache) = (api.context(), api.cache());
    let known = workloads(&context, &cache).await.unwrap();
    for kind in ["Deployment", "StatefulSet", "ReplicaSet"] {
        let found = known
            .iter()
            .find(|(workload, _)| workload.key() == format!("{kind} shop/odd"));
        assert_eq!(found.unwrap().1.wanted, 2, "{kind}");
    }
    assert!(
        known
            .keys()
            .any(|workload| workload.key() == "DaemonSet shop/odd")
    );
    let policies = read::each(&context, "NetworkPolicies", |policy: NetworkPolicy| {
        Some(policy.name_any())
    });
    assert_eq!(policies.await.unwrap(), ["odd"]);
    let service = ("shop".to_owned(), "odd".to_owned());
    let services = cache.of_kind::<ServiceStore>();
    let services = services.index(&context.client, cache.signal()).await.unwrap();
    assert!(services.service(&service).is_some() && services.is_served(&service));
    assert!(
        cache
            .budgets
            .state()
            .iter()
            .any(|budget| budget.name_any() == "odd")
    );
    assert_eq!(cache.nodes.state().len(), NODE_NAMES.len());
    // A deleted pod disappears like any other.
    let has_pod = || {
        api.cache()
            .pods
            .index()
            .pods()
            .iter()
            .any(|pod| pod.key() == "shop/odd")
    };
    assert!(has_pod());
    api.remove(&format!("{SHOP}/pods/odd"));
    assert!(!has_pod());
}

/// Makes the agent of node b report this phase of its host.
fn reports(api: &FakeApi, phase: &Value) {
    api.edit(
        "/apis/replumb.dev/v1alpha1/nodemigrations/b",
        &json!({ "status": { "flannelToCalico": { "phase": phase } } }),
    );
}

/// The same with traffic probes: the other nodes prove the canary, every pod moves, and a rollback does not wait for the node.
#[tokio::test]
async fn a_malformed_report_delays_only_its_node_with_traffic_probes() {
    let api = cluster("Watch");
    put_node(&api, THIRD);
    world_moves(&api);
    let is_asked = || api.get("/apis/replumb.dev/v1alpha1/nodemigrations/b").is_some();
    passes(&api, "nothing", is_asked).await;
    reports(&api, &json!("nonsense"));
    // In stage Switch the tunnel address of node b needs its agent.
    passes(&api, "nothing", || {
        status(&api)["podCidr"]["stage"]["name"] == "Switch"
    })
    .await;
    assert!(is_warned_of(&api, "NodeMigration b: status"));
    reports(&api, &Value::Null);
    until_closed(&api, "old").await;
    reports(&api, &json!("nonsense"));
    passes(&api, "nothing", || have_moved(&api, RANGES[1].1)).await;
    desire(&api, "Rollback");
    for _ in 0..10 {
        turn(&api).await;
        assert_ne!(status(&api)["reason"], "TrafficUnwatched", "{:#}", status(&api));
    }
    // The rollback waits for the tunnel address of node b for some minutes.
    assert!(!have_moved(&api, RANGES[0].1), "{:#}", status(&api));
    let (mut memory, mut is_named) = (Memory::default(), false);
    for _ in 0..40 {
        is_named |= is_warned_of(
            &api,
            "node b: its agent has not answered; without that, connections of the host break",
        );
        if have_moved(&api, RANGES[0].1) {
            break;
        }
        memory.kinds.of::<ReadCache>().late_nodes.keep(["b".to_owned()]);
        memory
            .kinds
            .of::<ReadCache>()
            .late_nodes
            .age(Duration::from_mins(3));
        turn_remembering(&api, &mut memory).await;
        world_moves(&api);
    }
    assert!(have_moved(&api, RANGES[0].1), "{:#}", status(&api));
    assert!(is_named, "{:#}", status(&api));
    reports(&api, &Value::Null);
    run_until(&api, "RolledBack").await;
    assert_gone(&api, 1);
}

/// With two nodes, one alone proves nothing: the canary waits for the other by name. A rollback does not, not even after a
/// breach.
#[tokio::test]
async fn with_two_nodes_a_malformed_report_delays_the_canary_and_no_rollback() {
    let api = cluster("Watch");
    passes(&api, "nothing", || {
        api.get("/apis/replumb.dev/v1alpha1/nodemigrations/b").is_some()
    })
    .await;
    reports(&api, &json!("nonsense"));
    let words =
        "traffic is watched on 1 of 2 nodes, needed 2; node b: what its agent reports is not understood";
    passes(&api, "nothing", || {
        status(&api)["message"].to_string().contains(words)
    })
    .await;
    assert_eq!(status(&api)["podCidr"]["stage"]["name"], "Canary");
    reports(&api, &Value::Null);
    until_closed(&api, "old").await;
    reports(&api, &json!("nonsense"));
    let breach =
        json!({ "at": "2026-01-01T00:00:00Z", "message": "lost", "resumedAt": "2026-01-01T00:00:00Z" });
    api.edit(MIGRATION, &json!({ "status": { "breach": breach } }));
    for _ in 0..5 {
        turn(&api).await;
    }
    assert_eq!(status(&api)["reason"], "TrafficUnwatched", "{:#}", status(&api));
    desire(&api, "Rollback");
    passes(&api, "nothing", || have_moved(&api, RANGES[0].1)).await;
    reports(&api, &Value::Null);
    run_until(&api, "RolledBack").await;
}

/// Another program changes the pools before each write: the status names the object, forward and back.
#[rstest]
#[case::there(false)]
#[case::back(true)]
#[tokio::test]
async fn a_status_names_the_object_that_changes_before_each_write(#[case] is_back: bool) {
    let api = cluster("Ignore");
    if is_back {
        until_closed(&api, "old").await;
        desire(&api, "Rollback");
    }
    api.deny_as_changed(POOLS);
    let (context, mut memory) = (api.context(), Memory::default());
    let mut conflict = None;
    for _ in 0..20 {
        conflict = pass(&context, &api.cache(), &mut memory).await.err();
        if conflict.is_some() {
            break;
        }
        world_moves(&api);
    }
    let conflict = conflict.expect("a pass that failed");
    assert!(conflict.is_conflict(), "{conflict}");
    let words = format!("{}; the coordinator retries", conflict.message());
    assert_eq!(status(&api)["message"], words.as_str(), "{:#}", status(&api));
    api.refuse(None);
    run_until(&api, if is_back { "RolledBack" } else { "Completed" }).await;
}
