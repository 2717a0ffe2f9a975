//! Foreign objects: malformed, huge, many, changing all the time or with replumb's labels. Each affects decisions about itself
//! only, and every node is migrated and rolled back.

use rstest::rstest;
use serde_json::{Value, json};

use super::back::{ask, drained};
use super::in_place::in_place;
use super::{NODES, node_migration, put_node, run_until, world_moves};
use crate::evict;
use crate::fake_api::{FakeApi, MIGRATION};
use crate::memory::Memory;
use crate::pass::pass;

const SHOP: &str = "/api/v1/namespaces/shop";

fn pod(name: &str, spec: &Value, status: &Value) -> (String, Value) {
    (
        format!("{SHOP}/pods/{name}"),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "shop", "uid": name },
            "spec": spec, "status": status,
        }),
    )
}

fn requests(cpu: &str, memory: &str) -> Value {
    json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu, "memory": memory } } }] })
}

/// Objects that a tenant may create in its own namespaces, by anomaly.
fn hostile(what: &str) -> Vec<(String, Value)> {
    let pending = json!({ "phase": "Pending" });
    let running = |address: &str| json!({ "phase": "Running", "podIP": address });
    match what {
        "malformed" => vec![
            pod("letters", &requests("abc", "many"), &pending),
            pod("negative", &requests("-1", "-1Gi"), &pending),
            pod("nowhere", &requests("1", "1Gi"), &running("not an address")),
        ],
        "large" => vec![
            pod("peta", &requests("20P", "16Ei"), &pending),
            pod("endless", &requests("1e99", &"9".repeat(100_000)), &pending),
        ],
        "many" => (0..3000)
            .map(|number| pod(&format!("many-{number}"), &requests("1", "1Gi"), &pending))
            .collect(),
        "labelled" => {
            let (path, mut probe) = pod("probe", &requests("1", "1Gi"), &running("10.9.9.9"));
            probe["metadata"]["labels"] = json!({
                "app.kubernetes.io/component": "probe", "app.kubernetes.io/name": "replumb-agent",
            });
            let budget = json!({
                "metadata": { "name": "all", "namespace": "shop" },
                "spec": { "maxUnavailable": 0, "selector": {} },
                "status": { "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 },
            });
            let budgets = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/all";
            vec![(path, probe), (budgets.to_owned(), budget)]
        }
        other => unreachable!("{other}"),
    }
}

fn put(api: &FakeApi, what: &str) {
    for (path, object) in hostile(what) {
        api.put(&path, object);
    }
}

/// The objects appear after this number of passes, going forward or during the rollback.
#[rstest]
#[case::malformed_before("malformed", 0, false)]
#[case::malformed_during_a_node("malformed", 12, false)]
#[case::malformed_during_a_rollback("malformed", 12, true)]
#[case::large_before("large", 0, false)]
#[case::large_during_a_node("large", 12, false)]
#[case::large_during_a_rollback("large", 12, true)]
#[case::many_during_a_node("many", 12, false)]
#[case::labelled_before("labelled", 0, false)]
#[case::labelled_during_a_rollback("labelled", 12, true)]
#[tokio::test]
async fn foreign_objects_do_not_stop_a_node(#[case] what: &str, #[case] passes: usize, #[case] back: bool) {
    for make in [drained as fn() -> FakeApi, in_place] {
        let api = make();
        let mut memory = Memory::default();
        for number in 0..passes {
            if back && number == passes / 2 {
                ask(&api, &json!({ "desired": "Rollback" }));
            }
            let _ = pass(&api.context(), &api.cache(), &mut memory).await;
            world_moves(&api);
        }
        put(&api, what);
        if back {
            ask(&api, &json!({ "desired": "Rollback" }));
            run_until(&api, "RolledBack").await.unwrap();
        } else {
            let end = if api.get(MIGRATION).unwrap()["spec"]["flannelToCalico"]["strategy"] == "InPlace" {
                "Mixed"
            } else {
                "Completed"
            };
            run_until(&api, end).await.unwrap();
        }
        for (path, object) in hostile(what) {
            let there = api.get(&path).unwrap_or_else(|| panic!("{path} is missing"));
            assert_eq!(there["spec"], object["spec"], "{path} is unchanged");
        }
    }
}

/// A program writes a label and an annotation to each Node and `DaemonSet` between each read and each write.
#[rstest]
#[case::there(false)]
#[case::back(true)]
#[tokio::test]
async fn constant_foreign_writes_to_nodes_do_not_stop_the_rollout(#[case] back: bool) {
    for make in [drained as fn() -> FakeApi, in_place] {
        let api = make();
        let sets = api.below("/apis/apps/v1/namespaces/*/daemonsets");
        let sets = sets.iter().map(|set| {
            let text = |field: &str| set["metadata"][field].as_str().unwrap().to_owned();
            let (namespace, name) = (text("namespace"), text("name"));
            format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
        });
        let nodes = api.below(NODES);
        let nodes = nodes
            .iter()
            .map(|node| format!("{NODES}/{}", node["metadata"]["name"].as_str().unwrap()));
        for path in sets.chain(nodes).collect::<Vec<_>>() {
            let edit = |number: usize| json!({ "metadata": { "labels": { "stranger": number.to_string() }, "annotations": { "stranger": number.to_string() } } });
            api.edit(&path, &edit(0));
            api.edit_before_each_change(&path, edit);
        }
        // The rollback starts while both nodes are in progress: a drained cluster that has completed has no rollback.
        let in_place = api.get(MIGRATION).unwrap()["spec"]["flannelToCalico"]["strategy"] == "InPlace";
        let end = match (back, in_place) {
            (true, _) => "Rolling",
            (false, true) => "Mixed",
            (false, false) => "Completed",
        };
        run_until(&api, end).await.unwrap();
        if back {
            let is_done = || !api.get(&node_migration("a")).unwrap()["spec"]["finishedAt"].is_null();
            passes_of_one(&api, 100, is_done).await;
            ask(&api, &json!({ "desired": "Rollback" }));
            run_until(&api, "RolledBack").await.unwrap();
        }
    }
}

/// Passes with one context, like in the loop.
pub(super) async fn passes_of_one(api: &FakeApi, number: usize, mut until: impl FnMut() -> bool) {
    let (context, mut memory) = (api.context(), Memory::default());
    for _ in 0..number {
        if until() {
            return;
        }
        let _ = pass(&context, &api.cache(), &mut memory).await;
        // Time passes: refused writes are due again.
        context.obstacles.hurry();
        evict::collect(&context.metrics, &mut memory);
        world_moves(api);
    }
    let migration = api.get(MIGRATION).unwrap();
    panic!("condition not met after {number} passes: {}", migration["status"]);
}

#[tokio::test]
async fn a_node_with_denied_writes_is_reported_and_others_finish() {
    const WORDS: &str = "admission webhook \"policy.example\" denied the request: a is frozen";
    for make in [drained as fn() -> FakeApi, in_place] {
        let api = make();
        run_until(&api, "Rolling").await.unwrap();
        api.deny(&format!("{NODES}/a"), WORDS);
        let is_done = |node: &str| !api.get(&node_migration(node)).unwrap()["spec"]["finishedAt"].is_null();
        let message = || api.get(MIGRATION).unwrap()["status"]["message"].to_string();
        passes_of_one(&api, 5, || message().contains("a is frozen")).await;
        passes_of_one(&api, 200, || is_done("b")).await;
        assert!(!is_done("a"));
        passes_of_one(&api, 5, || message().contains("a is frozen")).await;
        // A rollback succeeds, too, with the policy still in place.
        ask(&api, &json!({ "desired": "Rollback" }));
        let is_back = |node: &str| {
            let spec = &api.get(&node_migration(node)).unwrap()["spec"];
            spec["started"] != true && spec["finishedAt"].is_null()
        };
        passes_of_one(&api, 200, || is_back("b")).await;
        api.refuse(None);
        run_until(&api, "RolledBack").await.unwrap();
    }
}

/// Requests the direction of the migration.
fn turn(api: &FakeApi, back: bool) {
    if back {
        ask(api, &json!({ "desired": "Rollback" }));
    }
}

fn status(api: &FakeApi) -> Value {
    api.get(MIGRATION).unwrap()["status"].clone()
}

fn message(api: &FakeApi) -> String {
    status(api)["message"].as_str().unwrap_or_default().to_owned()
}

#[rstest]
#[tokio::test]
async fn a_status_is_published_after_a_refused_read(#[values(false, true)] back: bool) {
    let api = drained();
    run_until(&api, "Rolling").await.unwrap();
    turn(&api, back);
    api.deny_reading("/apis/crd.projectcalico.org/v1/ippools", "ippools is forbidden");
    let context = api.context();
    let mut memory = Memory::default();
    let _ = pass(&context, &api.cache(), &mut memory).await;
    let status = status(&api);
    assert_eq!(status["reason"], "RequestRefused", "{status}");
    assert!(message(&api).contains("ippools is forbidden"), "{status}");
}

/// A write without an answer, so that the pass times out.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_status_is_published_after_a_pass_timed_out(#[values(false, true)] back: bool) {
    let api = in_place();
    run_until(&api, if back { "Mixed" } else { "Rolling" })
        .await
        .unwrap();
    turn(&api, back);
    let held = if back { "b" } else { "a" };
    api.hang(&format!("{NODES}/{held}"));
    let words = format!("a pass timed out after 60 s, at Node {held}; the coordinator retries");
    passes_of_one(&api, 10, || message(&api).contains(&words)).await;
    assert_eq!(status(&api)["reason"], "RequestRefused");
}

/// A failure while no status could be written is reported by the next one.
#[rstest]
#[tokio::test]
async fn a_failure_without_a_status_is_reported_by_the_next_pass(#[values(false, true)] back: bool) {
    const POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";
    let api = drained();
    run_until(&api, "Rolling").await.unwrap();
    turn(&api, back);
    let (context, mut memory) = (api.context(), Memory::default());
    api.deny_reading(POOLS, "ippools is forbidden");
    api.deny(MIGRATION, "the Migration is frozen");
    let before = status(&api);
    assert!(pass(&context, &api.cache(), &mut memory).await.is_err());
    assert_eq!(status(&api), before);
    api.refuse(None);
    api.allow_reading(POOLS);
    pass(&context, &api.cache(), &mut memory).await.unwrap();
    let words = "An earlier pass failed: ";
    assert!(
        message(&api).contains(words) && message(&api).contains("ippools is forbidden"),
        "{}",
        message(&api)
    );
    pass(&context, &api.cache(), &mut memory).await.unwrap();
    assert!(!message(&api).contains(words), "{}", message(&api));
}

/// An agent's report concerns its node: the others continue without it, and the node continues once the report is corrected.
/// Traffic is watched without it.
#[rstest]
#[case::unwatched("Ignore", "Rolling")]
#[case::watched("Watch", "Rolling")]
#[case::watched_from_the_start("Watch", "Preparing")]
#[tokio::test]
async fn an_unreadable_report_affects_its_node_only(#[case] gate: &str, #[case] since: &str) {
    for make in [drained as fn() -> FakeApi, in_place] {
        let api = make();
        ask(&api, &json!({ "gates": { "traffic": gate } }));
        // Node a is proved from a node other than b.
        put_node(&api, "c", 3);
        run_until(&api, since).await.unwrap();
        passes_of_one(&api, 5, || api.get(&node_migration("b")).is_some()).await;
        let report = |value: Value| {
            let nonsense = json!({ "status": { "podCidr": value } });
            api.edit(&node_migration("b"), &nonsense);
        };
        let is_done = |node: &str| !api.get(&node_migration(node)).unwrap()["spec"]["finishedAt"].is_null();
        report(json!("nonsense"));
        passes_of_one(&api, 200, || is_done("a")).await;
        assert!(!is_done("b"));
        let warnings = api.get(MIGRATION).unwrap()["status"]["warnings"].to_string();
        assert!(warnings.contains("NodeMigration b: status: "), "{warnings}");
        report(Value::Null);
        passes_of_one(&api, 200, || is_done("b")).await;
    }
}

/// The same during a rollback. Of two nodes, one alone cannot watch traffic: going forward no node is started.
#[tokio::test]
async fn an_unreadable_report_of_two_nodes_holds_the_start_and_not_a_rollback() {
    for make in [drained as fn() -> FakeApi, in_place] {
        let api = make();
        ask(&api, &json!({ "gates": { "traffic": "Watch" } }));
        passes_of_one(&api, 5, || api.get(&node_migration("b")).is_some()).await;
        api.edit(
            &node_migration("b"),
            &json!({ "status": { "podCidr": "nonsense" } }),
        );
        let status = || api.get(MIGRATION).unwrap()["status"].clone();
        let words =
            "traffic is watched on 1 of 2 nodes, needed 2; node b: what its agent reports is not understood";
        let is_reported = || {
            status()["message"]
                .as_str()
                .is_some_and(|message| message.starts_with(words))
        };
        passes_of_one(&api, 50, is_reported).await;
        assert_eq!(status()["reason"], "TrafficUnwatched");
        let is_started = |node: &str| api.get(&node_migration(node)).unwrap()["spec"]["started"] == true;
        assert!(!is_started("a") && !is_started("b"));
        ask(&api, &json!({ "desired": "Rollback" }));
        run_until(&api, "RolledBack").await.unwrap();
    }
}
