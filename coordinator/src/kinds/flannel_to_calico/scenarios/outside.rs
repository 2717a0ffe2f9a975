//! A node that flannel's `DaemonSet` does not select is not changed, and the migration does not wait for it.

use serde_json::json;

use super::{FLANNEL, MIGRATION, NODES, cluster, node_migration, put_node, run_to_the_end, run_until, story};
use crate::fake_api::FakeApi;

/// Nodes a and b are on flannel; node c is an edge node, on which neither network runs.
fn with_an_edge_node() -> FakeApi {
    let api = cluster();
    put_node(&api, "c", 3);
    for pod in ["kube-flannel/pods/flannel-c", "replumb-system/pods/agent-c"] {
        api.remove(&format!("/api/v1/namespaces/{pod}"));
    }
    for node in ["a", "b"] {
        api.edit(
            &format!("{NODES}/{node}"),
            &json!({ "metadata": { "labels": { "network": "pods" } } }),
        );
    }
    let nodes = json!({ "labels": { "network": "pods" } });
    api.edit(
        MIGRATION,
        &json!({ "status": { "flannelToCalico": { "nodes": nodes } } }),
    );
    api.take_changes();
    api
}

#[tokio::test]
async fn the_node_stays_as_it_is_and_delays_nothing() {
    let api = with_an_edge_node();
    let before = api.get(&format!("{NODES}/c")).unwrap();
    run_to_the_end(&api).await.unwrap();
    assert_eq!(api.get(&format!("{NODES}/c")).unwrap(), before);
    assert!(api.get(&node_migration("c")).is_none());
    assert!(api.get(&node_migration("a")).unwrap()["spec"]["finishedAt"].is_string());
    let story = story(&api.take_changes());
    let of_c = story.iter().filter(|line| line.split(' ').nth(1) == Some("c"));
    assert_eq!(of_c.count(), 0, "{story:#?}");
    assert!(api.get(FLANNEL).is_none(), "the end was not reached");
}

#[tokio::test]
async fn an_object_from_before_the_settings_is_deleted_and_no_block_with_it() {
    let api = with_an_edge_node();
    let owner = json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "name": "m",
        "uid": api.get(MIGRATION).unwrap()["metadata"]["uid"],
    });
    api.put(
        &node_migration("c"),
        json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration",
            "metadata": { "name": "c", "ownerReferences": [owner] },
            "spec": { "nodeName": "c", "migration": "m" },
        }),
    );
    let block = "/apis/crd.projectcalico.org/v1/ipamblocks/10-99-0-0-26";
    api.put(
        block,
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": { "name": "10-99-0-0-26" },
            "spec": { "cidr": "10.99.0.0/26", "affinity": "host:c", "allocations": [], "unallocated": [], "attributes": [] },
        }),
    );
    run_until(&api, "Rolling").await.unwrap();
    assert!(api.get(&node_migration("a")).is_some());
    assert!(api.get(&node_migration("c")).is_none());
    assert!(api.get(block).is_some(), "a block of a node that is not migrated");
}

#[tokio::test]
async fn a_prepared_node_stays_in_the_migration_when_its_labels_change() {
    let api = with_an_edge_node();
    run_until(&api, "Rolling").await.unwrap();
    api.edit(
        &format!("{NODES}/b"),
        &json!({ "metadata": { "labels": { "network": null } } }),
    );
    run_to_the_end(&api).await.unwrap();
    assert!(api.get(&node_migration("b")).unwrap()["spec"]["finishedAt"].is_string());
    assert!(api.get(&node_migration("c")).is_none());
}
