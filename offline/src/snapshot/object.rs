//! Parts of objects.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::identity::Identity;

/// The status of a pod that runs.
pub fn ready() -> Value {
    json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] })
}

/// Whether a pod or a Node has the condition Ready.
pub fn is_ready(object: &Value) -> bool {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The objects of a kind.
pub fn of_kind(objects: &BTreeMap<Identity, Value>, kind: &str) -> Vec<Value> {
    let found = objects.iter().filter(|(identity, _)| identity.kind == kind);
    found.map(|(_, object)| object.clone()).collect()
}

/// The name of an object.
pub fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}
