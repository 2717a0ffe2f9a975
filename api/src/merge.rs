//! JSON merge patches (RFC 7386) from what is there to what is wanted.

use serde_json::{Map, Value};

/// The merge patch that turns `from` into `to`; `None` when they are equal.
///
/// Fields that `to` no longer has become null: a merge patch leaves alone what it does not name.
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
    for (key, wanted) in to {
        match from.get(key) {
            Some(found) => {
                if let Some(change) = difference(found, wanted) {
                    patch.insert(key.clone(), change);
                }
            }
            None => {
                patch.insert(key.clone(), wanted.clone());
            }
        }
    }
    Some(Value::Object(patch))
}

/// Merges a patch into what is there.
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
    fn a_difference_that_is_applied_leads_to_what_was_wanted() {
        let from = json!({"a": 1, "b": {"c": 1, "d": [1]}, "e": "x", "g": 1});
        let to = json!({"a": 1, "b": {"c": 2, "d": [2]}, "f": true, "g": {"h": 1}});
        let mut target = from.clone();
        apply(&mut target, &difference(&from, &to).unwrap());
        assert_eq!(target, to);
    }

    #[test]
    fn names_only_what_changes() {
        let from = json!({"a": 1, "b": {"c": 1, "d": [1]}, "e": "x"});
        let to = json!({"a": 1, "b": {"c": 2, "d": [1]}, "f": true});
        assert_eq!(
            difference(&from, &to),
            Some(json!({"b": {"c": 2}, "e": null, "f": true}))
        );
        assert_eq!(difference(&to, &to), None);
    }
}
