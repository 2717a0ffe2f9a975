use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::core::{DynamicObject, ObjectList, WatchEvent};
use rstest::rstest;

use super::*;
use crate::guarded::ReadableParts;

/// The API server returns this for any such time of a client.
const TOO_LATE: &str = "10000-01-01T00:59:59Z";

fn read<K: DeserializeOwned>(object: &Value) -> Lenient<K> {
    serde_json::from_str(&object.to_string()).unwrap()
}

/// Metadata with a time that the types cannot read.
fn metadata(time: &str) -> Value {
    json!({
        "namespace": "shop", "name": "odd", "uid": "odd-1", "resourceVersion": "7",
        "managedFields": [{ "manager": "odd", "operation": "Update", "time": time, "fieldsV1": { "f:spec": {} } }],
    })
}

#[rstest]
#[case::later(TOO_LATE, LATEST)]
#[case::on_the_last_day("9999-12-31T23:59:59Z", LATEST)]
#[case::before_the_first_year("-0001-12-31T23:00:00Z", EARLIEST)]
fn a_time_out_of_range_becomes_the_nearest_readable_one(#[case] time: &str, #[case] nearest: &str) {
    assert!(serde_json::from_value::<Deployment>(json!({ "metadata": metadata(time) })).is_err());
    let deployment = json!({
        "metadata": metadata(time),
        "spec": { "replicas": 3, "template": { "metadata": {
            "creationTimestamp": time, "deletionTimestamp": time, "annotations": { "note": time }, "managedFields": [{ "time": time }],
        } } },
        "status": { "conditions": [{ "type": "Available", "status": "True", "lastUpdateTime": time }] },
    });
    let read = self::read::<Deployment>(&deployment);
    assert_eq!(read.unreadable, [], "no field is left out");
    let spec = read.object.spec.unwrap();
    let template = spec.template.metadata.unwrap();
    assert_eq!(spec.replicas, Some(3));
    assert_eq!(
        template.annotations.unwrap()["note"],
        time,
        "free text is unchanged"
    );
    for read in [template.creation_timestamp, template.deletion_timestamp] {
        assert_eq!(read.unwrap().0, nearest.parse().unwrap());
    }
}

#[test]
fn other_texts_are_not_replaced() {
    for text in [
        "2026-01-01T00:00:00Z",
        "10000-01-01",
        "T",
        "1-2-3T",
        "10000-01-xxT00:00:00Z",
        "a-10000-01-01T",
        "2026-13-01T00:00:00Z",
    ] {
        assert_eq!(nearest_time(text), None, "{text}");
    }
}

fn survives<K: DeserializeOwned + Resource<DynamicType = ()>>(mut object: Value) {
    object["metadata"] = metadata(TOO_LATE);
    assert!(serde_json::from_value::<K>(object.clone()).is_err());
    let read = self::read::<K>(&object);
    let metadata = read.meta();
    assert_eq!(
        (metadata.namespace.as_deref(), metadata.name.as_deref()),
        (Some("shop"), Some("odd"))
    );
    assert_eq!(
        (metadata.uid.as_deref(), metadata.resource_version.as_deref()),
        (Some("odd-1"), Some("7"))
    );
    assert_eq!(read.unreadable, []);
}

#[test]
fn every_foreign_kind_is_read_with_a_time_out_of_range() {
    survives::<Pod>(json!({ "spec": { "nodeName": "a", "containers": [] } }));
    survives::<Deployment>(json!({}));
    survives::<StatefulSet>(json!({}));
    survives::<DaemonSet>(json!({}));
    survives::<NetworkPolicy>(json!({}));
    survives::<Service>(json!({}));
    survives::<EndpointSlice>(json!({ "addressType": "IPv4", "endpoints": [] }));
    survives::<Node>(json!({}));
    survives::<PodDisruptionBudget>(json!({ "status": { "disruptedPods": { "web-0": TOO_LATE } } }));
    survives::<ReadableParts>(json!({ "spec": { "nodeName": "a", "migration": "m" } }));
    let dynamic = json!({ "metadata": metadata(TOO_LATE), "spec": { "cidr": "10.0.0.0/8" } });
    assert_eq!(
        read::<DynamicObject>(&dynamic).object.data["spec"]["cidr"],
        "10.0.0.0/8"
    );
}

/// An object as deep as the API server accepts from a client.
fn deep(levels: usize) -> String {
    format!(
        "{}{}",
        r#"{"f:a":"#.repeat(levels),
        "{}".to_owned() + &"}".repeat(levels)
    )
}

#[test]
fn deep_fields_do_not_stop_a_list_or_a_watch() {
    let fields = deep(9_000);
    let odd = format!(
        r#"{{"metadata":{{"name":"odd","managedFields":[{{"manager":"m","fieldsV1":{fields}}}]}},
            "spec":{{"template":{{"metadata":{{"managedFields":[{{"fieldsV1":{fields}}}]}}}}}}}}"#
    );
    assert!(serde_json::from_str::<Deployment>(&odd).is_err());
    let list = format!(r#"{{"metadata":{{}},"items":[{odd},{{"metadata":{{"name":"web"}}}}]}}"#);
    let list: ObjectList<Lenient<Deployment>> = serde_json::from_str(&list).unwrap();
    let names: Vec<String> = list.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["odd", "web"]);
    let managers = list.items[0].meta().managed_fields.as_ref().unwrap();
    assert_eq!(managers[0].manager.as_deref(), Some("m"), "the manager is known");
    let event = format!(r#"{{"type":"DELETED","object":{odd}}}"#);
    let event: WatchEvent<Lenient<Deployment>> = serde_json::from_str(&event).unwrap();
    assert!(matches!(event, WatchEvent::Deleted(read) if read.name_any() == "odd"));
    // Deep content elsewhere, which no kind here has.
    let elsewhere = format!(
        r#"{{"metadata":{{"name":"odd"}},"spec":{{"a":{}}}}}"#,
        deep(9_000)
    );
    let read: Lenient<DynamicObject> = serde_json::from_str(&elsewhere).unwrap();
    assert!(read.object.data["spec"]["a"]["f:a"].is_object());
    // A label may have this name.
    let label = json!({ "metadata": { "name": "x", "labels": { OWNED_FIELDS: "yes" } } });
    assert_eq!(self::read::<Pod>(&label).object.labels()[OWNED_FIELDS], "yes");
}

#[test]
fn unreadable_fields_are_left_out_and_named() {
    let pod = json!({
        "metadata": { "namespace": "shop", "name": "odd", "uid": "u", "labels": { "app": "web" }, "generation": "seven" },
        "spec": { "nodeName": "a", "containers": "none", "hostNetwork": true },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": 7 }] },
    });
    let read = self::read::<Pod>(&pod);
    let fields: Vec<&str> = read
        .unreadable
        .iter()
        .map(|unclear| unclear.field.as_str())
        .collect();
    assert_eq!(
        fields,
        ["metadata.generation", "spec.containers", "status.conditions"]
    );
    assert!(
        read.words()
            .unwrap()
            .contains("spec.containers: invalid type: string \"none\"")
    );
    let Pod {
        metadata,
        spec,
        status,
    } = read.object;
    assert_eq!(
        (metadata.uid.as_deref(), metadata.labels.unwrap().len()),
        (Some("u"), 1)
    );
    let spec = spec.unwrap();
    assert_eq!(
        (spec.node_name.as_deref(), spec.host_network),
        (Some("a"), Some(true))
    );
    assert_eq!(status.unwrap().phase.as_deref(), Some("Running"));
    // Items of a list are read one by one.
    let slice = json!({ "metadata": { "name": "odd" }, "addressType": "IPv4", "endpoints": [
        { "addresses": ["10.0.0.1"] }, { "addresses": 7 }, { "addresses": ["10.0.0.2"] },
    ] });
    let read = self::read::<EndpointSlice>(&slice);
    assert_eq!(read.object.endpoints.len(), 2);
    assert_eq!(read.unreadable[0].field, "endpoints[1]");
}

#[test]
fn a_kind_with_a_required_spec_loses_its_status_only() {
    let object = json!({
        "metadata": { "name": "a" }, "spec": { "nodeName": "a", "migration": "m" }, "status": { "podCidr": { "source": "nonsense" } },
    });
    let read = self::read::<api::NodeMigration>(&object);
    assert_eq!(
        (read.object.spec.node_name.as_str(), read.object.status.is_none()),
        ("a", true)
    );
    assert_eq!(read.unreadable[0].field, "status");
}
