//! JSON as Go's `encoding/json` reads it into a struct: keys match without regard to case, `null` is "not set".

use serde_json::{Map, Value};

/// Every value whose key Go reads as `key`. Two or more values mean that the text has the key in two spellings: Go takes the
/// last one in the text.
pub fn values<'map>(map: &'map Map<String, Value>, key: &str) -> Vec<(&'map str, &'map Value)> {
    map.iter()
        .filter(|(found, value)| found.eq_ignore_ascii_case(key) && !value.is_null())
        .map(|(found, value)| (found.as_str(), value))
        .collect()
}

/// A short name for the kind of a value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
