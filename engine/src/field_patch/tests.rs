use serde::Serialize;

use super::*;

fn service() -> Value {
    json!({
        "metadata": { "uid": "u", "resourceVersion": "7", "annotations": { "a/b": "c" } },
        "spec": {
            "type": "ClusterIP", "clusterIPs": ["10.96.0.5"],
            "ports": [{ "name": "a", "port": 80, "targetPort": 8080 }, { "name": "b", "port": 81 }],
        },
    })
}

fn basis(fields: &[&str]) -> Basis {
    Basis {
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
        members: &["name", "port"],
    }
}

fn operations(basis: &Basis, change: &Value) -> Vec<Value> {
    let patch = FieldPatch::new(&service(), basis, change);
    assert!(patch.holds(&service()));
    let Value::Array(operations) = patch.operations() else {
        panic!("no list");
    };
    operations
}

fn test(path: &str, value: impl Serialize) -> Value {
    json!({ "op": "test", "path": path, "value": value })
}

fn add(path: &str, value: impl Serialize) -> Value {
    json!({ "op": "add", "path": path, "value": value })
}

#[test]
fn a_patch_tests_written_fields_and_fields_of_the_basis() {
    let change = json!({
        "metadata": { "annotations": { "a/b": null, "d/e": "f", "absent": null }, "labels": { "absent": null } },
        "spec": { "type": "ExternalName", "externalName": "a.b", "clusterIPs": ["10.96.0.5"], "selector": { "x": "y", "z": null } },
    });
    let expected = [
        test("/metadata/uid", json!("u")),
        test("/spec/clusterIPs", json!(["10.96.0.5"])),
        // The parent does not exist.
        test("/status", Value::Null),
        test("/metadata/annotations/a~1b", json!("c")),
        test("/metadata/annotations/d~1e", Value::Null),
        test("/spec/externalName", Value::Null),
        test("/spec/selector", Value::Null),
        test("/spec/type", json!("ClusterIP")),
        json!({ "op": "remove", "path": "/metadata/annotations/a~1b" }),
        add("/metadata/annotations/d~1e", json!("f")),
        add("/spec/externalName", json!("a.b")),
        add("/spec/selector", json!({ "x": "y" })),
        add("/spec/type", json!("ExternalName")),
    ];
    let found = operations(
        &basis(&["/spec/clusterIPs", "/status/loadBalancer/ingress"]),
        &change,
    );
    assert_eq!(found, expected);
}

#[test]
fn only_edits_of_written_fields_and_of_the_basis_are_conflicts() {
    let change = json!({ "spec": { "type": "ExternalName" } });
    let patch = FieldPatch::new(
        &service(),
        &basis(&["/spec/clusterIPs", "/spec/selector"]),
        &change,
    );
    let after = |path: &str, field: &str, value: Value| {
        let mut now = service();
        now.pointer_mut(path).unwrap()[field] = value;
        patch.holds(&now)
    };
    assert!(after("/metadata", "resourceVersion", json!("8")));
    assert!(after("/metadata/annotations", "a/b", json!("x")));
    assert!(after("/spec", "ports", json!([])));
    assert!(after("/spec", "selector", Value::Null));
    assert!(!after("/metadata", "uid", json!("another")));
    assert!(!after("/spec", "clusterIPs", json!(["10.96.0.6"])));
    assert!(!after("/spec", "selector", json!({})));
    assert!(!after("/spec", "type", json!("NodePort")));
    // Without a spec, the test of an absent field in it fails.
    let mut now = service();
    now["spec"] = Value::Null;
    let patch = FieldPatch::new(&service(), &basis(&["/spec/selector"]), &json!({}));
    assert!(patch.holds(&service()) && !patch.holds(&now));
}

#[test]
fn new_fields_of_list_members_are_written_one_by_one() {
    let wanted = json!([{ "name": "a", "port": 80, "targetPort": 8080, "nodePort": 30080 }, { "name": "b", "port": 81 }]);
    let change = json!({ "spec": { "ports": wanted } });
    let expected = [
        test("/metadata/uid", json!("u")),
        test("/spec/ports/0/name", json!("a")),
        test("/spec/ports/0/port", json!(80)),
        test("/spec/ports/0/nodePort", Value::Null),
        add("/spec/ports/0/nodePort", json!(30080)),
    ];
    assert_eq!(operations(&basis(&[]), &change), expected);
    // Any other list is written as a whole.
    for other in [
        json!([{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }]),
        json!([{ "name": "a", "port": 80, "targetPort": 8080 }]),
        json!([]),
    ] {
        let expected = [
            test("/metadata/uid", json!("u")),
            test("/spec/ports", service()["spec"]["ports"].clone()),
            add("/spec/ports", other.clone()),
        ];
        assert_eq!(
            operations(&basis(&[]), &json!({ "spec": { "ports": other } })),
            expected
        );
    }
}

#[test]
fn an_empty_object_is_written_and_a_removal_of_absent_fields_is_not() {
    let change = json!({ "spec": { "sessionAffinityConfig": {}, "selector": { "a": null } } });
    let expected = [
        test("/metadata/uid", json!("u")),
        test("/spec/sessionAffinityConfig", Value::Null),
        add("/spec/sessionAffinityConfig", json!({})),
    ];
    assert_eq!(operations(&basis(&[]), &change), expected);
}

#[test]
fn a_generation_in_the_basis_replaces_tests_of_the_spec() {
    let mut read = service();
    read["metadata"]["generation"] = json!(3);
    let patch = FieldPatch::new(
        &read,
        &basis(&["/metadata/generation"]),
        &json!({ "spec": { "type": null } }),
    );
    let expected = json!([
        test("/metadata/uid", json!("u")),
        test("/metadata/generation", json!(3)),
        { "op": "remove", "path": "/spec/type" },
    ]);
    assert_eq!(patch.operations(), expected);
}

#[test]
fn a_merge_patch_has_the_same_writes_and_the_resource_version() {
    let mut wanted = service()["spec"]["ports"].clone();
    wanted[1]["nodePort"] = json!(30080);
    let change = json!({
        "metadata": { "annotations": { "a/b": null, "d/e": "f" }, "labels": { "g": "h" } },
        "spec": { "type": "NodePort", "ports": wanted },
    });
    let patch = FieldPatch::new(&service(), &basis(&["/spec/clusterIPs"]), &change);
    let mut now = service();
    now["metadata"]["resourceVersion"] = json!("8");
    now["metadata"]["annotations"]["other"] = json!("x");
    now["spec"]["ports"][0]["targetPort"] = json!(9090);
    let expected = json!({
        "metadata": { "resourceVersion": "8", "annotations": { "a/b": null, "d/e": "f" }, "labels": { "g": "h" } },
        "spec": {
            "type": "NodePort",
            "ports": [{ "name": "a", "port": 80, "targetPort": 9090 }, { "name": "b", "port": 81, "nodePort": 30080 }],
        },
    });
    assert_eq!(patch.merge(&now), Some(expected));
    now["spec"]["clusterIPs"] = json!(["10.96.0.6"]);
    assert_eq!(patch.merge(&now), None);
}
