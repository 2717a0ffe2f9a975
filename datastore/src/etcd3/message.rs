//! Values of the gateway's JSON: ranges of keys, and 64-bit numbers.

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
pub(super) struct Range {
    #[serde(default)]
    pub(super) kvs: Vec<KeyValue>,
    #[serde(default)]
    pub(super) more: bool,
    #[serde(default)]
    pub(super) count: Number,
    pub(super) header: Option<Header>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Header {
    #[serde(default)]
    pub(super) revision: Number,
}

#[derive(Debug, Deserialize)]
pub(super) struct KeyValue {
    #[serde(default)]
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: String,
    #[serde(default)]
    pub(super) mod_revision: Number,
}

/// A 64-bit number, which is a string in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Number(pub(super) i64);

impl TryFrom<Value> for Number {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match &value {
            Value::String(text) => text
                .parse()
                .map(Self)
                .map_err(|error| format!("{text:?}: {error}")),
            Value::Number(number) => number
                .as_i64()
                .map(Self)
                .ok_or_else(|| format!("{number} is too large")),
            other => Err(format!("{other} is not a number")),
        }
    }
}

/// The first key after all keys with this prefix.
pub(super) fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Every key.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_after_it() {
        assert_eq!(after("/calico/"), b"/calico0");
        assert_eq!(after("a\u{7f}"), [b'a', 0x80]);
        assert_eq!(after(""), [0]);
    }

    #[test]
    fn numbers_are_read_from_strings_and_numbers() {
        let read = |text: &str| serde_json::from_str::<Number>(text);
        assert_eq!(
            read("\"9007199254740993\"").unwrap(),
            Number(9_007_199_254_740_993)
        );
        assert_eq!(read("7").unwrap(), Number(7));
        assert!(read("true").is_err());
    }
}
