//! Merges of parts of an object.

use serde_json::Value;

/// Merges `change` into `object` without removing fields.
pub(super) fn merge(object: &mut Value, change: &Value) {
    match (object.as_object_mut(), change.as_object()) {
        (Some(fields), Some(change)) => {
            for (field, value) in change {
                merge(fields.entry(field.clone()).or_insert(Value::Null), value);
            }
        }
        _ => *object = change.clone(),
    }
}

/// Removes nulls: they remove fields in a merge patch, and must not occur in a new object.
pub(super) fn without_nulls(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(without_nulls);
    }
}

/// The current ports with their saved node ports: changes of ports by the owner are kept.
pub(super) fn with_node_ports(now: &Value, before: &Value) -> Vec<Value> {
    let before = before.as_array().map_or(&[][..], Vec::as_slice);
    let is_same = |one: &Value, other: &Value| {
        ["name", "port", "protocol"]
            .iter()
            .all(|field| one.get(*field) == other.get(*field))
    };
    now.as_array()
        .into_iter()
        .flatten()
        .map(|port| {
            let mut port = port.clone();
            let had = before.iter().find(|had| is_same(had, &port));
            if let Some(node_port) = had.and_then(|had| had.get("nodePort"))
                && port.get("nodePort").is_none()
            {
                port["nodePort"] = node_port.clone();
            }
            port
        })
        .collect()
}
