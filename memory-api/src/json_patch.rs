//! JSON patches (RFC 6902), limited to those of the coordinator, applied like the API server does: `test`, `add` and `remove` of
//! fields of objects. `tests/tests/api_patches.rs` tests the same against a real API server.

use serde_json::{Map, Value, json};

/// Why a patch is not applied.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A test does not hold, or a removed field does not exist.
    Differs,
    /// The operation is not one that is known here.
    NotKnown(String),
}

/// Applies all operations or none.
pub fn apply(object: &mut Value, operations: &[Value]) -> Result<(), Refusal> {
    let mut patched = object.clone();
    for operation in operations {
        perform(&mut patched, operation)?;
    }
    *object = patched;
    Ok(())
}

fn perform(object: &mut Value, operation: &Value) -> Result<(), Refusal> {
    let not_known = || Refusal::NotKnown(operation.to_string());
    let path = operation["path"].as_str().ok_or_else(not_known)?;
    let (parent, field) = path.rsplit_once('/').ok_or_else(not_known)?;
    let field = unescaped(field);
    let parent = object.pointer_mut(parent).ok_or(Refusal::Differs)?;
    let value = &operation["value"];
    if operation["op"] == "test" {
        let found = member_of(parent, &field).ok_or(Refusal::Differs)?;
        // The API server compares encoded JSON, and escapes these characters.
        let holds = found == value && !value.to_string().contains(['<', '>', '&']);
        return if holds { Ok(()) } else { Err(Refusal::Differs) };
    }
    let parent = parent.as_object_mut().ok_or(Refusal::Differs)?;
    match operation["op"].as_str() {
        Some("add") => {
            parent.insert(field, value.clone());
            Ok(())
        }
        Some("remove") => parent.remove(&field).map(|_| ()).ok_or(Refusal::Differs),
        _ => Err(not_known()),
    }
}

/// The value of a field or a member of a list. A missing field compares as null; a member of a list must exist.
fn member_of<'value>(parent: &'value Value, field: &str) -> Option<&'value Value> {
    match parent {
        Value::Object(fields) => Some(fields.get(field).unwrap_or(&Value::Null)),
        Value::Array(members) => members.get(field.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

/// The fields that these operations write, with their values, and the UID of the object; null for a removed field.
pub fn as_merge(operations: &[Value]) -> Value {
    let mut merge = json!({});
    let is_kept = |operation: &&Value| operation["op"] != "test" || operation["path"] == "/metadata/uid";
    for operation in operations.iter().filter(is_kept) {
        let mut at = &mut merge;
        for part in operation["path"].as_str().unwrap_or_default().split('/').skip(1) {
            at = if let Ok(place) = part.parse::<usize>() {
                member(at, place)
            } else {
                if !at.is_object() {
                    *at = Value::Object(Map::new());
                }
                &mut at[unescaped(part)]
            };
        }
        *at = operation["value"].clone();
    }
    merge
}

/// The member of a list; members before it are empty if not named.
fn member(list: &mut Value, place: usize) -> &mut Value {
    if !list.is_array() {
        *list = json!([]);
    }
    let empty = || json!({});
    match list {
        Value::Array(members) => {
            if members.len() <= place {
                members.resize_with(place + 1, empty);
            }
            &mut members[place]
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(path: &str, value: &Value) -> Value {
        json!({ "op": "test", "path": path, "value": value })
    }

    #[test]
    fn a_patch_is_applied_completely_or_not_at_all() {
        let object =
            json!({ "metadata": { "uid": "u", "generation": 3 }, "spec": { "goal": "Hold", "step": 1 } });
        let of = test("/metadata/uid", &json!("u"));
        let by = |generation: i64| test("/metadata/generation", &json!(generation));
        let add = json!({ "op": "add", "path": "/spec/goal", "value": "Held" });
        let remove = |field: &str| json!({ "op": "remove", "path": format!("/spec/{field}") });
        let after = |operations: &[Value]| {
            let mut patched = object.clone();
            let operations: Vec<Value> = [&of].into_iter().chain(operations).cloned().collect();
            let applied = apply(&mut patched, &operations).is_ok();
            assert!(applied || patched == object);
            applied.then_some(patched)
        };
        assert_eq!(
            after(&[by(3), add.clone(), remove("step")]),
            Some(json!({ "metadata": { "uid": "u", "generation": 3 }, "spec": { "goal": "Held" } }))
        );
        assert_eq!(after(&[add.clone(), by(4)]), None);
        assert_eq!(after(&[by(3), add.clone(), remove("history")]), None);
        let was = test("/spec/goal", &json!("Hold"));
        let absent = |path: &str| test(path, &Value::Null);
        assert!(after(&[was.clone(), absent("/spec/history"), add.clone()]).is_some());
        assert_eq!(after(&[absent("/spec/goal"), add.clone()]), None);
        assert_eq!(
            after(&[was, absent("/status/goal"), add]),
            None,
            "the parent is missing"
        );
    }

    #[test]
    fn an_operation_that_is_not_known_is_refused_by_name() {
        let mut object = json!({ "spec": { "goal": "Hold" } });
        let operation = json!({ "op": "move", "path": "/spec/goal", "from": "/spec/step" });
        let Err(Refusal::NotKnown(text)) = apply(&mut object, &[operation]) else {
            panic!("applied")
        };
        assert!(text.contains("move"), "{text}");
    }

    #[test]
    fn a_json_patch_converts_to_an_equal_merge_patch() {
        let operations = [
            json!({ "op": "test", "path": "/metadata/uid", "value": "u" }),
            json!({ "op": "add", "path": "/metadata/labels/a~1b", "value": "c" }),
            json!({ "op": "add", "path": "/spec/ports/1/nodePort", "value": 30080 }),
            json!({ "op": "remove", "path": "/spec/step" }),
        ];
        assert_eq!(
            as_merge(&operations),
            json!({ "metadata": { "uid": "u", "labels": { "a/b": "c" } }, "spec": { "ports": [{}, { "nodePort": 30080 }], "step": null } })
        );
    }
}
