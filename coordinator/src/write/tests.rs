use api::NodeMigration;
use flannel_to_calico::phase::Goal;

use super::*;
use crate::failure::Failure as _;
use crate::fake_api::FakeApi;

const PATH: &str = "/api/v1/nodes/a";

fn labelled() -> Value {
    json!({ "metadata": { "labels": { "network": "calico" } } })
}

/// Another writer applies this between read and write.
async fn patched_after(meanwhile: &[Value]) -> (FakeApi, Result<Node, WriteError>) {
    let server = FakeApi::default();
    server.put(
        PATH,
        json!({ "metadata": { "name": "a" }, "spec": { "podCIDR": "10.244.1.0/24" } }),
    );
    let api: Api<Node> = Api::all(server.client());
    let read = api.get("a").await.unwrap();
    for patch in meanwhile {
        server.edit(PATH, patch);
    }
    let result = patch(&api, &read, "labelling", &labelled()).await;
    (server, result)
}

#[tokio::test]
async fn a_heartbeat_between_read_and_write_is_not_a_conflict() {
    let beat = |time: &str| json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": time }] } });
    let beats = [beat("2026-01-01T00:00:05Z"), beat("2026-01-01T00:00:10Z")];
    let (server, result) = patched_after(&beats).await;
    assert_eq!(result.unwrap().labels()["network"], "calico");
    let node = server.get(PATH).unwrap();
    assert_eq!(node["status"], beats[1]["status"], "the kubelet's write is kept");
}

#[tokio::test]
async fn changes_of_unused_fields_before_each_write_are_not_a_conflict() {
    let server = FakeApi::default();
    server.put(
        PATH,
        json!({ "metadata": { "name": "a" }, "spec": { "podCIDR": "10.244.1.0/24" } }),
    );
    server.edit_before_each_change(PATH, |number| {
            json!({ "metadata": { "labels": { "stranger": number.to_string() }, "annotations": { "b": number.to_string() } } })
        });
    let api: Api<Node> = Api::all(server.client());
    // The first read has neither labels nor annotations.
    let read = api.get("a").await.unwrap();
    assert!(
        patch(&api, &read, "labelling", &labelled())
            .await
            .unwrap_err()
            .is_conflict()
    );
    for network in ["calico", "flannel"] {
        let read = api.get("a").await.unwrap();
        let change = json!({ "metadata": { "labels": { "network": network } } });
        let written = patch(&api, &read, "labelling", &change).await.unwrap();
        assert_eq!(written.labels()["network"], network);
    }
    assert_eq!(server.get(PATH).unwrap()["metadata"]["labels"]["stranger"], "3");
}

#[tokio::test]
async fn a_change_of_a_decisive_field_is_a_conflict() {
    for meanwhile in [
        json!({ "spec": { "unschedulable": true } }),
        json!({ "metadata": { "annotations": { "replumb.dev/cordoned-by": "another" } } }),
        json!({ "metadata": { "labels": { "network": "none" } } }),
        // Deleted and created again with the same name.
        json!({ "metadata": { "uid": "another" } }),
    ] {
        let (server, result) = patched_after(std::slice::from_ref(&meanwhile)).await;
        let error = result.unwrap_err();
        assert!(
            matches!(error, WriteError::Conflict { .. }),
            "{meanwhile}: {error}"
        );
        assert_eq!(
            error.to_string(),
            "labelling Node a: the object changed since it was read"
        );
        assert!(server.take_changes().is_empty(), "{meanwhile}");
    }
}

const NODE_MIGRATION: &str = "/apis/replumb.dev/v1alpha1/nodemigrations/a";

/// Another writer merges this into a NodeMigration between read and write of its goal.
async fn goal_after(meanwhile: &Value) -> (FakeApi, Result<Option<ObjectMeta>, WriteError>) {
    let server = FakeApi::default();
    server.put(
        NODE_MIGRATION,
        json!({
            "metadata": { "name": "a" },
            "spec": { "nodeName": "a", "migration": "m", "returnedAt": "2026-01-01T00:00:00Z" },
        }),
    );
    let api: Api<NodeMigration> = Api::all(server.client());
    let read = api.get("a").await.unwrap();
    server.edit(NODE_MIGRATION, meanwhile);
    let mut spec = read.spec.clone();
    spec.flannel_to_calico.get_or_insert_default().goal = Goal::Held;
    spec.returned_at = None;
    let written = patch_spec(&api, &read, &read.spec, &spec).await;
    (server, written)
}

#[tokio::test]
async fn a_report_of_an_agent_is_not_a_conflict_with_the_spec() {
    let (server, written) = goal_after(&json!({ "status": { "message": "works" } })).await;
    let object = server.get(NODE_MIGRATION).unwrap();
    assert_eq!(object["spec"]["flannelToCalico"]["goal"], "Held");
    assert_eq!(
        json!(written.unwrap().unwrap().generation),
        object["metadata"]["generation"]
    );
    assert_eq!(object["status"]["message"], "works");
    assert_eq!(
        object["spec"].get("returnedAt"),
        None,
        "a removed field is removed"
    );
}

#[tokio::test]
async fn another_spec_or_another_object_is_a_conflict() {
    for meanwhile in [
        json!({ "spec": { "flannelToCalico": { "goal": "Flannel" } } }),
        json!({ "metadata": { "uid": "another" } }),
    ] {
        let (server, written) = goal_after(&meanwhile).await;
        let error = written.unwrap_err();
        assert!(error.is_conflict(), "{meanwhile}: {error}");
        assert!(server.take_changes().is_empty(), "{meanwhile}");
    }
}

#[tokio::test]
async fn an_invalid_spec_is_a_refusal_and_not_a_conflict() {
    let server = FakeApi::default();
    server.put(
        NODE_MIGRATION,
        json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "a", "migration": "m" } }),
    );
    let api: Api<NodeMigration> = Api::all(server.client());
    let read = api.get("a").await.unwrap();
    server.deny_as_invalid(NODE_MIGRATION, "spec.goal: Invalid value");
    let mut spec = read.spec.clone();
    spec.flannel_to_calico.get_or_insert_default().goal = Goal::Held;
    let error = patch_spec(&api, &read, &read.spec, &spec).await.unwrap_err();
    assert_eq!(error.refusal(), Some("spec.goal: Invalid value"));
    assert!(!error.is_conflict());
}

#[tokio::test]
async fn a_patch_as_read_conflicts_after_a_status_change() {
    let server = FakeApi::default();
    server.put(PATH, json!({ "metadata": { "name": "a" } }));
    let api: Api<Node> = Api::all(server.client());
    let read = api.get("a").await.unwrap();
    server.edit(PATH, &json!({ "status": { "phase": "Terminated" } }));
    let error = patch_as_read(&api, &read, "labelling", labelled())
        .await
        .unwrap_err();
    assert!(matches!(error, WriteError::Conflict { .. }), "{error}");
    assert!(server.take_changes().is_empty());
}

#[tokio::test]
async fn a_patch_of_a_missing_object_is_an_error_with_the_attempt() {
    let server = FakeApi::default();
    server.put(PATH, json!({ "metadata": { "name": "a" } }));
    let api: Api<Node> = Api::all(server.client());
    let read = api.get("a").await.unwrap();
    server.remove(PATH);
    let error = patch(&api, &read, "labelling", &labelled()).await.unwrap_err();
    assert!(matches!(error, WriteError::Refused { .. }), "{error}");
    assert_eq!(error.to_string(), "labelling Node a");
}

/// A Node's own kubelet may write such a time.
#[tokio::test]
async fn an_object_with_an_unreadable_time_is_patched_and_deleted() {
    let server = FakeApi::default();
    let path = "/api/v1/nodes/a";
    let times = json!([{ "manager": "odd", "time": "10000-01-01T00:59:59Z" }]);
    server.put(
        path,
        json!({ "metadata": { "name": "a", "managedFields": times } }),
    );
    let api: Api<Node> = Api::all(server.client());
    let read = lenient_requests::get_opt(&api, "a").await.unwrap().unwrap();
    let change = json!({ "spec": { "unschedulable": true } });
    let written = patch(&api, &read, "cordoning", &change).await.unwrap();
    assert_eq!(written.spec.unwrap().unschedulable, Some(true));
    let written = patch_as_read(&api, &read, "cordoning", change).await;
    assert!(written.unwrap_err().is_conflict(), "the version has changed");
    delete(&api, &read, None).await.unwrap();
    assert_eq!(server.get(path), None);
}
