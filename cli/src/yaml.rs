//! Writes YAML for kubectl, which reads YAML 1.1: `on` is a boolean there and `1_000` a number. Pure.

use serde::Serialize;
use serde_saphyr::{SerializeError, ser_options};

/// The value as YAML. Each string is the same string for a reader of YAML 1.1 and of YAML 1.2, and on one line if it has no line
/// break.
///
/// # Errors
/// If the value has a form that YAML does not have.
pub fn text(value: &impl Serialize) -> Result<String, SerializeError> {
    serde_saphyr::to_string_with_options(value, ser_options! { folded_wrap_chars: usize::MAX })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Strings that some reader of YAML takes for another type.
    const OTHER_TYPES: [&str; 34] = [
        "",
        "on",
        "Off",
        "no",
        "N",
        "y",
        "YES",
        "null",
        "~",
        "NULL",
        "true",
        "True",
        "1e3",
        "1_000",
        "0x10",
        "0X10",
        "0b11",
        "0B11",
        "0o14",
        "012",
        "-0",
        "+1",
        ".5",
        "1.",
        "1_0.5",
        ".inf",
        "+.INF",
        ".NaN",
        "1:30",
        "-12:30:45",
        "2001-01-01",
        "2001-01-01T00:00:00Z",
        "=",
        "<<",
    ];

    /// Strings that look like syntax, or have characters that YAML changes.
    const SYNTAX: [&str; 24] = [
        "a: b",
        "a #b",
        "@x",
        "- x",
        "-",
        "? x",
        "'on'",
        "\"",
        "{a}",
        "[a",
        "*a",
        "&a",
        "!a",
        "|",
        ">",
        "%a",
        "`",
        " a ",
        "a\tb",
        "a\r\nb",
        "a\n\n",
        "\n a",
        "a\u{85}b\u{2028}c",
        "\u{feff}\u{7f}\u{1f4a5}\u{0}",
    ];

    #[test]
    fn strings_that_look_like_another_type_are_quoted() {
        for odd in OTHER_TYPES {
            let written = text(&json!({ "value": odd, "list": [odd], "map": { odd: 1 } })).unwrap();
            for plain in [
                format!("value: {odd}\n"),
                format!("- {odd}\n"),
                format!("\n  {odd}: 1\n"),
            ] {
                assert!(!written.contains(&plain), "{written}");
            }
        }
    }

    #[test]
    fn every_string_is_read_as_it_was() {
        let words = "word ".repeat(100);
        for odd in OTHER_TYPES.iter().chain(&SYNTAX).copied().chain([words.as_str()]) {
            let value = json!({ "value": odd, "list": [odd, [odd]], "map": { odd: { odd: odd } } });
            let written = text(&value).unwrap();
            let read: Value =
                yaml_serde::from_str(&written).unwrap_or_else(|error| panic!("{error}: {written}"));
            assert_eq!(read, value, "{written}");
        }
    }

    #[test]
    fn other_values_have_no_quotes() {
        let value = json!({
            "name": "flannel-to-calico", "range": "10.244.0.0/16", "v6": "fd00::/48",
            "number": 7, "truth": true, "none": null, "list": [{ "a": 1, "b": [] }], "text": "a: on\nno\n",
        });
        assert_eq!(
            text(&value).unwrap(),
            "list:\n- a: 1\n  b: []\nname: flannel-to-calico\nnone: null\nnumber: 7\n\
             range: 10.244.0.0/16\ntext: |\n  a: on\n  no\ntruth: true\nv6: fd00::/48\n"
        );
    }
}
