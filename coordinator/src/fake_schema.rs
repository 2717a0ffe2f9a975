//! Schemas of the fake API: it refuses the unknown fields that a real API server refuses with `fieldValidation=Strict`, and drops
//! them otherwise, as the real one does.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use api::{ConnectionSample, Migration, NodeMigration};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::policy::v1::Eviction;
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

/// Fields of every object, independent of its schema.
const OF_EVERY_OBJECT: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// The schema for writes to this path; `None` for Calico's objects, whose schemas are Calico's.
fn schema(path: &str) -> Option<&'static Value> {
    static SCHEMAS: OnceLock<BTreeMap<&'static str, Value>> = OnceLock::new();
    let schemas = SCHEMAS.get_or_init(|| {
        let builtin = [
            ("eviction", schemars::schema_for!(Eviction)),
            ("scale", schemars::schema_for!(Scale)),
            ("nodes", schemars::schema_for!(Node)),
            ("pods", schemars::schema_for!(Pod)),
            ("daemonsets", schemars::schema_for!(DaemonSet)),
            ("deployments", schemars::schema_for!(Deployment)),
            ("services", schemars::schema_for!(Service)),
            ("endpointslices", schemars::schema_for!(EndpointSlice)),
            ("leases", schemars::schema_for!(Lease)),
            ("configmaps", schemars::schema_for!(ConfigMap)),
            ("secrets", schemars::schema_for!(Secret)),
            ("servicecidrs", schemars::schema_for!(ServiceCIDR)),
        ];
        let mut schemas: BTreeMap<&str, Value> = builtin
            .into_iter()
            .map(|(plural, schema)| (plural, schema.to_value()))
            .collect();
        for (plural, resource) in [
            ("migrations", Migration::crd()),
            ("nodemigrations", NodeMigration::crd()),
            ("connectionsamples", ConnectionSample::crd()),
        ] {
            let version = serde_json::to_value(&resource.spec.versions[0]).unwrap();
            schemas.insert(plural, version["schema"]["openAPIV3Schema"].clone());
        }
        schemas
    });
    if path.contains("/crd.projectcalico.org/") {
        return None;
    }
    // A subresource with its own kind, or a collection; else the part before the name, or before the name for a status.
    let mut parts = path.trim_end_matches('/').rsplit('/').take(3);
    parts.find_map(move |part| schemas.get(part))
}

/// Fields of `body` that are unknown to this path, named like the API server does.
pub fn unknown_fields(path: &str, body: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    if let Some(schema) = schema(path) {
        walk(schema, schema, body, "", &mut unknown);
    }
    unknown
}

/// The body without those fields.
pub fn without(body: &Value, fields: &[String]) -> Value {
    let mut body = body.clone();
    for field in fields {
        let pointer = format!("/{}", field.replace(['.', '['], "/").replace(']', ""));
        if let Some((parent, name)) = pointer.rsplit_once('/')
            && let Some(object) = body.pointer_mut(parent).and_then(Value::as_object_mut)
        {
            object.remove(name);
        }
    }
    body
}

fn walk(root: &Value, schema: &Value, value: &Value, path: &str, unknown: &mut Vec<String>) {
    let schema = resolve(root, schema);
    match value {
        Value::Object(fields) => {
            let properties = schema["properties"].as_object();
            let others = match &schema["additionalProperties"] {
                Value::Object(_) => Some(&schema["additionalProperties"]),
                _ => None,
            };
            // Without both the object is free-form, like metadata in the schema of a custom resource.
            if properties.is_none() && others.is_none() {
                return;
            }
            let keeps_unknown = schema["x-kubernetes-preserve-unknown-fields"] == json!(true);
            for (name, value) in fields {
                let below = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                match (properties.and_then(|properties| properties.get(name)), others) {
                    (Some(schema), _) | (None, Some(schema)) => walk(root, schema, value, &below, unknown),
                    (None, None) if keeps_unknown => {}
                    (None, None) if path.is_empty() && OF_EVERY_OBJECT.contains(&name.as_str()) => {}
                    (None, None) => unknown.push(below),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(root, &schema["items"], item, &format!("{path}[{index}]"), unknown);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The schema behind a reference, or behind an optional value.
fn resolve<'schema>(root: &'schema Value, schema: &'schema Value) -> &'schema Value {
    if let Some(name) = schema["$ref"].as_str() {
        let found = root.pointer(name.trim_start_matches('#'));
        return resolve(root, found.expect("an existing schema"));
    }
    for list in ["allOf", "anyOf", "oneOf"] {
        let mut choices = schema[list].as_array().into_iter().flatten();
        if schema["properties"].is_null()
            && let Some(choice) = choices.find(|choice| choice["type"] != "null" && !choice["$ref"].is_null())
        {
            return resolve(root, choice);
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_with_a_field_that_kube_core_misspells_is_refused() {
        let path = "/api/v1/namespaces/shop/pods/web/eviction";
        let good = json!({ "deleteOptions": { "preconditions": { "uid": "1" }, "gracePeriodSeconds": 5 } });
        assert_eq!(unknown_fields(path, &good), Vec::<String>::new());
        let bad = json!({ "delete_options": { "preconditions": { "uid": "1" } } });
        assert_eq!(unknown_fields(path, &bad), ["delete_options"]);
    }

    #[test]
    fn unknown_fields_are_named_at_every_depth() {
        for (path, body, expected) in [
            (
                "/api/v1/nodes/a",
                json!({ "spec": { "unschedulable": true, "colour": "red" } }),
                "spec.colour",
            ),
            (
                "/api/v1/nodes/a/status",
                json!({ "status": { "adresses": [] } }),
                "status.adresses",
            ),
            (
                "/api/v1/namespaces/x/pods",
                json!({ "spec": { "containers": [{ "name": "c", "imagePolicy": "Never" }] } }),
                "spec.containers[0].imagePolicy",
            ),
            (
                "/apis/apps/v1/namespaces/x/daemonsets/y",
                json!({ "spec": { "template": { "spec": { "nodeselector": {} } } } }),
                "spec.template.spec.nodeselector",
            ),
            (
                "/apis/replumb.dev/v1alpha1/nodemigrations/a",
                json!({ "spec": { "flow": [] } }),
                "spec.flow",
            ),
            (
                "/apis/replumb.dev/v1alpha1/migrations/m/status",
                json!({ "metadata": { "resourceVersion": "1" }, "status": { "progress": { "finished": 1 } } }),
                "status.progress.finished",
            ),
        ] {
            assert_eq!(unknown_fields(path, &body), [expected], "{path}");
            let kept = without(&body, &unknown_fields(path, &body));
            assert_eq!(unknown_fields(path, &kept), Vec::<String>::new(), "{path}");
        }
    }

    #[test]
    fn labels_annotations_and_calicos_objects_take_any_name() {
        let labels = json!({ "metadata": { "labels": { "a": "b" }, "annotations": { "c": null } } });
        assert_eq!(unknown_fields("/api/v1/nodes/a", &labels), Vec::<String>::new());
        let pool = json!({ "spec": { "anything": 1 } });
        let path = "/apis/crd.projectcalico.org/v1/ippools/p";
        assert_eq!(unknown_fields(path, &pool), Vec::<String>::new());
    }
}
