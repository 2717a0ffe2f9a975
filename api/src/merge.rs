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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
