//! JSON merge patches (RFC 7386): the difference between two values, and its application.

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

/// Applies a merge patch to a value.
pub fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    let mut merged = match target.take() {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    for (key, change) in patch {
        if change.is_null() {
            merged.remove(key);
        } else {
            apply(merged.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
    *target = Value::Object(merged);
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
