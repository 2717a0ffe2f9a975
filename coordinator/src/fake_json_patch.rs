//! JSON patches (RFC 6902), limited to those of the coordinator, applied like the API server does: `test`, `add` and `remove` of
//! fields of objects. `tests/tests/api_patches.rs` tests the same against a real API server.

use serde_json::{Map, Value, json};

/// Applies all operations or none. Returns whether every test held and every removed field existed.
///
/// Panics if a patch could overwrite a write of another program: if it tests neither the UID of the object nor, for each field
/// that it writes, the value that was read.
pub fn apply(object: &mut Value, operations: &[Value]) -> bool {
    let (tests, writes): (Vec<&Value>, Vec<&Value>) =
        operations.iter().partition(|operation| operation["op"] == "test");
    let tests: Vec<&str> = tests.iter().filter_map(|test| test["path"].as_str()).collect();
    let is_tested = |path: &str| tests.contains(&path);
    assert!(
        is_tested("/metadata/uid"),
        "the patch does not test the UID: {operations:?}"
    );
    for write in writes {
        let path = write["path"].as_str().expect("a path");
        let itself = |test: &&str| {
            path.strip_prefix(*test)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let by_version = is_tested("/metadata/resourceVersion")
            || path.starts_with("/spec") && is_tested("/metadata/generation");
        assert!(
            by_version || tests.iter().any(itself),
            "{path} may have changed: {operations:?}"
        );
    }
    let mut patched = object.clone();
    for operation in operations {
        let path = operation["path"].as_str().expect("a path");
        let (parent, field) = path.rsplit_once('/').expect("a path of a field");
        let field = unescaped(field);
        let Some(parent) = patched.pointer_mut(parent) else {
            return false;
        };
        if operation["op"] == "test" {
            let value = &operation["value"];
            // A missing field compares as null; a member of a list must exist.
            let found = match &*parent {
                Value::Object(fields) => fields.get(&field).unwrap_or(&Value::Null),
                Value::Array(members) => {
                    match field.parse::<usize>().ok().and_then(|place| members.get(place)) {
                        Some(member) => member,
                        None => return false,
                    }
                }
                _ => return false,
            };
            // The API server compares encoded JSON, and escapes these characters.
            if found != value || value.to_string().contains(['<', '>', '&']) {
                return false;
            }
            continue;
        }
        let Some(parent) = parent.as_object_mut() else {
            return false;
        };
        match operation["op"].as_str() {
            Some("add") => {
                parent.insert(field, operation["value"].clone());
            }
            Some("remove") => {
                if parent.remove(&field).is_none() {
                    return false;
                }
            }
            other => panic!("operation not written by the coordinator: {other:?}"),
        }
    }
    *object = patched;
    true
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
        for part in operation["path"].as_str().expect("a path").split('/').skip(1) {
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
    let members = list.as_array_mut().expect("a list");
    while members.len() <= place {
        members.push(json!({}));
    }
    &mut members[place]
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

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
            let applied = apply(&mut patched, &operations);
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

    #[rstest]
    #[case("the patch does not test the UID", &[test("/spec/goal", &json!("Hold"))])]
    #[case("/spec/goal may have changed", &[test("/metadata/uid", &json!("u")), test("/spec/go", &Value::Null)])]
    fn a_patch_without_tests_of_what_was_read_panics(#[case] words: &str, #[case] tests: &[Value]) {
        let mut object = json!({ "metadata": { "uid": "u" }, "spec": { "goal": "Hold" } });
        let write = json!({ "op": "add", "path": "/spec/goal", "value": "Held" });
        let operations: Vec<Value> = tests.iter().chain([&write]).cloned().collect();
        let panic = std::panic::catch_unwind(move || apply(&mut object, &operations)).unwrap_err();
        let panic = panic.downcast::<String>().unwrap();
        assert!(panic.starts_with(words), "{panic}");
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
