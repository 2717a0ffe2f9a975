//! JSON patches (RFC 6902), as far as the coordinator writes them: `test`, `add` and `remove` of fields of objects.

use serde_json::{Map, Value, json};

/// Applies all of them or none. Says whether every test held, and every field that was to go was there.
pub fn apply(object: &mut Value, operations: &[Value]) -> bool {
    let mut patched = object.clone();
    for operation in operations {
        let path = operation["path"].as_str().expect("a path");
        if operation["op"] == "test" {
            // A path that leads nowhere is an error, whatever it is compared with.
            if patched.pointer(path) != Some(&operation["value"]) {
                return false;
            }
            continue;
        }
        let (parent, field) = path.rsplit_once('/').expect("a path of a field");
        let Some(parent) = patched.pointer_mut(parent).and_then(Value::as_object_mut) else {
            return false;
        };
        match operation["op"].as_str() {
            Some("add") => {
                parent.insert(field.to_owned(), operation["value"].clone());
            }
            Some("remove") => {
                if parent.remove(field).is_none() {
                    return false;
                }
            }
            other => panic!("an operation that the coordinator does not write: {other:?}"),
        }
    }
    *object = patched;
    true
}

/// The fields that these name, with what they are tested for or get; null is a field that goes.
pub fn as_merge(operations: &[Value]) -> Value {
    let mut merge = json!({});
    for operation in operations {
        let mut at = &mut merge;
        for part in operation["path"].as_str().expect("a path").split('/').skip(1) {
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            at = &mut at[part];
        }
        *at = operation["value"].clone();
    }
    merge
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_patch_is_applied_or_none() {
        let object = json!({ "metadata": { "generation": 3 }, "spec": { "goal": "Hold", "step": 1 } });
        let test = |generation| json!({ "op": "test", "path": "/metadata/generation", "value": generation });
        let add = json!({ "op": "add", "path": "/spec/goal", "value": "Held" });
        let remove = |field: &str| json!({ "op": "remove", "path": format!("/spec/{field}") });
        let after = |operations: &[Value]| {
            let mut patched = object.clone();
            let applied = apply(&mut patched, operations);
            assert!(applied || patched == object);
            applied.then_some(patched)
        };
        assert_eq!(
            after(&[test(3), add.clone(), remove("step")]),
            Some(json!({ "metadata": { "generation": 3 }, "spec": { "goal": "Held" } }))
        );
        assert_eq!(after(&[add.clone(), test(4)]), None);
        assert_eq!(after(&[add, remove("history")]), None);
    }

    #[test]
    fn a_patch_says_the_same_as_a_merge_patch() {
        let operations = [
            json!({ "op": "test", "path": "/metadata/uid", "value": "u" }),
            json!({ "op": "add", "path": "/spec/goal", "value": "Held" }),
            json!({ "op": "remove", "path": "/spec/step" }),
        ];
        assert_eq!(
            as_merge(&operations),
            json!({ "metadata": { "uid": "u" }, "spec": { "goal": "Held", "step": null } })
        );
    }
}
