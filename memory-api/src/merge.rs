//! Merge patches (RFC 7386).

use serde_json::{Map, Value};

/// Merges a patch into a value: null removes a field, and a list replaces a list.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null}}), json!({"a": {"c": 2}}))]
    #[case(json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]}))]
    #[case(json!({"a": "b"}), json!({"a": {"b": {"c": null}}}), json!({"a": {"b": {}}}))]
    #[case(json!([1]), json!("c"), json!("c"))]
    fn the_examples_of_the_standard_hold(
        #[case] mut target: Value,
        #[case] patch: Value,
        #[case] expected: Value,
    ) {
        merge(&mut target, &patch);
        assert_eq!(target, expected);
    }
}
