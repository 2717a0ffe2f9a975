//! The whole change of the range with Calico's objects in etcd: the same writes in the same order, the same end after a crash of
//! the coordinator, the API server or etcd, and no write once Calico's settings name another datastore.

use serde_json::json;

use super::fixture::{CALICO, CALICO_NODES, MIGRATION, POOLS, RANGES, cluster, crash_after, run_until, turn};
use super::{
    assert_gone, assert_in_order, completed, desire, restores_released_tunnel_addresses,
    restores_tunnel_addresses, story,
};
use crate::fake_api::FakeApi;
use crate::fake_etcd;
use crate::walk;

/// The cluster of the other scenarios, with its Calico in etcd.
async fn on_etcd(gates: &str) -> FakeApi {
    let api = cluster(gates);
    let url = fake_etcd::serve(&api).await;
    let mut set = api.get(CALICO).unwrap();
    let environment = set["spec"]["template"]["spec"]["containers"][0]["env"]
        .as_array_mut()
        .unwrap();
    environment.push(json!({ "name": "ETCD_ENDPOINTS", "value": url }));
    api.put(CALICO, set);
    let etcd = json!({ "endpoints": [url], "namespace": "kube-system" });
    let datastore =
        json!({ "value": { "etcd": etcd }, "source": "detected from DaemonSet kube-system/calico-node" });
    api.edit(
        MIGRATION,
        &json!({ "status": { "podCidr": { "settings": { "datastore": datastore } } } }),
    );
    for node in ["a", "b"] {
        // Calico has the tunnel address on its own Node here, and not on the Node of the Kubernetes API.
        let path = format!("/api/v1/nodes/{node}");
        let mut object = api.get(&path).unwrap();
        let annotations = std::mem::replace(&mut object["metadata"]["annotations"], json!({}));
        let end = &annotations["projectcalico.org/IPv4VXLANTunnelAddr"];
        api.put(
            &format!("{CALICO_NODES}/{node}"),
            json!({
                "apiVersion": "projectcalico.org/v3", "kind": "Node",
                "metadata": { "name": node, "labels": {}, "annotations": { "test/chosen": annotations["test/chosen"] } },
                "spec": { "bgp": { "ipv4Address": "192.0.2.1/24" }, "ipv4VXLANTunnelAddr": end },
            }),
        );
        api.put(&path, object);
    }
    api.take_changes();
    api
}

#[tokio::test]
async fn every_write_comes_in_its_order() {
    let api = on_etcd("Watch").await;
    run_until(&api, "Completed").await;
    let story = story(&api.take_changes());
    let new = RANGES[1].0;
    assert_in_order(
        &story,
        &[
            &format!("post pool {new} closed"),
            // A patch has only the changed fields: first the pool still selects no node, then every node.
            &format!("patch pool {new} open"),
            &format!("patch pool {new} open"),
            "hold an end in 10-200-0-0-26",
            "take off a",
            "keep on a",
            "hold an end in 10-200-1-0-26",
            "take off b",
            "patch pool old closed",
            "evict web-a",
            "evict web-b",
            "release an end in 10-244-0-0-26",
            "patch a-10-244-0-0-26 pending",
            "delete 10-244-0-0-26",
            "delete a-10-244-0-0-26",
            "delete pool old",
        ],
    );
    assert_gone(&api, 0);
    // etcd compares and deletes in one transaction: nothing is marked first.
    assert!(!story.contains(&"patch 10-244-0-0-26".to_owned()), "{story:#?}");
}

/// Tunnel addresses are on Calico's own Nodes: they are exchanged and restored there.
#[tokio::test]
async fn a_rollback_restores_every_tunnel_address() {
    let api = on_etcd("Watch").await;
    restores_tunnel_addresses(&api).await;
    assert_nothing_in_kubernetes(&api);
    let api = on_etcd("Watch").await;
    restores_released_tunnel_addresses(&api).await;
    assert_nothing_in_kubernetes(&api);
}

fn assert_nothing_in_kubernetes(api: &FakeApi) {
    // Nothing writes tunnel addresses to Nodes of the Kubernetes API.
    for node in ["a", "b"] {
        let metadata = api.get(&format!("/api/v1/nodes/{node}")).unwrap()["metadata"].take();
        assert_eq!(
            (&metadata["labels"], &metadata["annotations"]),
            (&json!({}), &json!({}))
        );
    }
}

/// Every third write: the two stores differ in how they write, not in what.
const STRIDE: usize = 3;

#[tokio::test]
async fn a_crash_after_any_write_changes_no_outcome() {
    let start = async || on_etcd("Ignore").await;
    let undisturbed = walk::undisturbed(start, completed).await;
    let writes = (0..undisturbed.changes.len()).step_by(STRIDE);
    walk::crash_after_each(writes, start, crash_after, async |api, _| {
        completed(api).await;
        assert_gone(api, 0);
    })
    .await;
}

#[tokio::test]
async fn a_rollback_after_any_write_restores_the_old_pool() {
    let start = async || on_etcd("Ignore").await;
    let undisturbed = walk::undisturbed(start, completed).await;
    let no_return = undisturbed
        .changes
        .iter()
        .position(|(call, _)| *call == format!("DELETE {POOLS}/old"))
        .unwrap();
    let writes = (0..no_return).step_by(STRIDE);
    walk::crash_after_each(writes, start, crash_after, async |api, _| {
        desire(api, "Rollback");
        run_until(api, "RolledBack").await;
        assert_gone(api, 1);
    })
    .await;
}

#[tokio::test]
async fn nothing_is_written_after_calico_moved_to_another_etcd() {
    let api = on_etcd("Ignore").await;
    turn(&api).await;
    let mut set = api.get(CALICO).unwrap();
    let before = set.clone();
    set["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"] = json!("http://192.0.2.1:2379");
    api.put(CALICO, set);
    api.take_changes();
    for _ in 0..3 {
        turn(&api).await;
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["reason"], "Datastore", "{status:#}");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("http://192.0.2.1:2379") && message.contains("http://127.0.0.1:"),
        "{message}"
    );
    assert_eq!(story(&api.take_changes()), [""; 0]);
    api.put(CALICO, before);
    run_until(&api, "Completed").await;
    assert_gone(&api, 0);
}

#[tokio::test]
async fn an_unreachable_etcd_is_named_and_waited_for() {
    let api = on_etcd("Ignore").await;
    turn(&api).await;
    // Nothing listens at this address.
    let unreachable = "http://127.0.0.1:9";
    let before = api.get(MIGRATION).unwrap();
    let mut set = api.get(CALICO).unwrap();
    let url = set["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"].take();
    set["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"] = json!(unreachable);
    api.put(CALICO, set.clone());
    let etcd = |url: &serde_json::Value| json!({ "status": { "podCidr": { "settings": { "datastore": { "value": { "etcd": { "endpoints": [url] } } } } } } });
    api.edit(MIGRATION, &etcd(&json!(unreachable)));
    turn(&api).await;
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["reason"], "Datastore", "{status:#}");
    assert!(
        status["message"].as_str().unwrap().contains(unreachable),
        "{status:#}"
    );
    assert_eq!(status["phase"], before["status"]["phase"]);
    set["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"] = url.clone();
    api.put(CALICO, set);
    api.edit(MIGRATION, &etcd(&url));
    run_until(&api, "Completed").await;
}
