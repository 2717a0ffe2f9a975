//! JSON values that keep the order and the repetition of keys: Go takes the last of the keys that differ only in case.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A number without fraction and exponent.
    Integer(i128),
    /// Any other number.
    Fraction(f64),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// An object.
    Object(Vec<(String, Self)>),
}

impl Json {
    /// Parses a text that is one value.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(&without_lone_surrogates(text))
    }
}

/// The text with `\ufffd` for every lone surrogate (`\ud800`), as Go reads it.
fn without_lone_surrogates(text: &str) -> Cow<'_, str> {
    let code = |place: usize| -> Option<u16> {
        let digits = text.get(place..)?.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut place, mut surrogates) = (0, Vec::new());
    while let Some(found) = text.get(place..).and_then(|rest| rest.find('\\')) {
        place += found;
        place += match code(place) {
            Some(0xd800..=0xdbff) if matches!(code(place + 6), Some(0xdc00..=0xdfff)) => 12,
            Some(0xd800..=0xdfff) => {
                surrogates.push(place);
                6
            }
            // The next character belongs to the backslash, also another backslash.
            Some(_) | None => 2,
        };
    }
    if surrogates.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut whole = text.to_owned();
    for place in surrogates {
        whole.replace_range(place..place + 6, "\\ufffd");
    }
    Cow::Owned(whole)
}

/// The value in messages: scalars in full, lists and objects by their type.
impl fmt::Display for Json {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => formatter.write_str("null"),
            Self::Boolean(value) => write!(formatter, "{value}"),
            Self::Integer(value) => write!(formatter, "{value}"),
            Self::Fraction(value) => write!(formatter, "{value:?}"),
            Self::Text(text) => write!(formatter, "{text:?}"),
            Self::List(_) => formatter.write_str("a list"),
            Self::Object(_) => formatter.write_str("an object"),
        }
    }
}

impl<'text> Deserialize<'text> for Json {
    fn deserialize<D: Deserializer<'text>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'text> Visitor<'text> for Reader {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Fraction(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'text>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Json::List(values))
    }

    fn visit_map<A: MapAccess<'text>>(self, mut object: A) -> Result<Json, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = object.next_entry()? {
            fields.push(field);
        }
        Ok(Json::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_repetition() {
        let Json::Object(fields) = Json::parse(r#"{"b": 1, "a": 1.0, "B": "x", "b": null}"#).unwrap() else {
            panic!("not an object");
        };
        let keys: Vec<&str> = fields.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["b", "a", "B", "b"]);
        assert_eq!(fields[0].1, Json::Integer(1));
        assert_eq!(fields[1].1, Json::Fraction(1.0));
        assert_eq!(fields[3].1, Json::Null);
    }

    #[test]
    fn a_lone_surrogate_is_replaced() {
        for (text, read) in [
            (r#""a\ud800b""#, "a\u{fffd}b"),
            (r#""\udc00\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
            (r#""\\ud800""#, "\\ud800"),
            (r#""\ud800\n\u00e9""#, "\u{fffd}\n\u{e9}"),
        ] {
            assert_eq!(Json::parse(text).unwrap(), Json::Text(read.to_owned()));
        }
        assert!(Json::parse("\"\\").is_err() && Json::parse("\"\\é\"").is_err());
    }

    #[test]
    fn an_incomplete_value_or_text_after_it_is_an_error() {
        for text in ["", "{not json", "{} {}", "[1,]", "nul"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }
}
