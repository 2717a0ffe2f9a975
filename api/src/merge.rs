//! JSON merge patches (RFC 7386): the difference between two values, and its application.

pub use json_patch::merge as apply;
use serde_json::{Map, Value};

/// Returns the merge patch that turns `from` into `to`, or `None` if they are equal.
///
/// Fields that only `from` has are null in the patch, because a merge patch keeps all fields that it does not name.
pub fn difference(from: &Value, to: &Value) -> Option<Value> {
    if from == to {
        return None;
    }
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return Some(to.clone());
    };
    let mut patch = Map::new();
    for key in from.keys().filter(|key| !to.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, target) in to {
        match from.get(key) {
            Some(source) => {
                if let Some(change) = difference(source, target) {
                    patch.insert(key.clone(), change);
                }
            }
            None => {
                patch.insert(key.clone(), target.clone());
            }
        }
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_applied_difference_gives_the_target() {
        let from = json!({"a": 1, "b": {"c": 1, "d": [1]}, "e": "x", "g": 1});
        let to = json!({"a": 1, "b": {"c": 2, "d": [2]}, "f": true, "g": {"h": 1}});
        let mut target = from.clone();
        apply(&mut target, &difference(&from, &to).unwrap());
        assert_eq!(target, to);
    }

    #[test]
    fn the_examples_of_the_standard_hold() {
        for (mut target, patch, expected) in [
            (
                json!({"a": {"b": 1, "c": 2}}),
                json!({"a": {"b": null}}),
                json!({"a": {"c": 2}}),
            ),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (
                json!({"a": "b"}),
                json!({"a": {"b": {"c": null}}}),
                json!({"a": {"b": {}}}),
            ),
            (json!([1]), json!("c"), json!("c")),
        ] {
            apply(&mut target, &patch);
            assert_eq!(target, expected);
        }
    }

    #[test]
    fn the_difference_has_only_changed_fields() {
        let from = json!({"a": 1, "b": {"c": 1, "d": [1]}, "e": "x"});
        let to = json!({"a": 1, "b": {"c": 2, "d": [1]}, "f": true});
        assert_eq!(
            difference(&from, &to),
            Some(json!({"b": {"c": 2}, "e": null, "f": true}))
        );
        assert_eq!(difference(&to, &to), None);
    }
}
