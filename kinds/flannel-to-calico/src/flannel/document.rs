//! JSON as Go parses it, with errors that name the text, the key and the value.

use serde_json::{Map, Value};

use super::error::ParseError;
use engine::go_json;

/// A JSON object with the names that its errors need.
pub(super) struct Document {
    text: String,
    path: &'static str,
    map: Map<String, Value>,
}

impl Document {
    pub(super) fn parse(text: &str, path: &'static str, json: &str) -> Result<Self, ParseError> {
        let error = |problem: String| ParseError::NotJson {
            text: text.to_owned(),
            problem,
        };
        match serde_json::from_str(json) {
            Ok(Value::Object(map)) => Ok(Self {
                text: text.to_owned(),
                path,
                map,
            }),
            Ok(other) => Err(error(format!("found {}", go_json::kind(&other)))),
            Err(problem) => Err(error(problem.to_string())),
        }
    }

    pub(super) fn of(text: &str, path: &'static str, map: Map<String, Value>) -> Self {
        Self {
            text: text.to_owned(),
            path,
            map,
        }
    }

    pub(super) fn one(&self, key: &str) -> Result<Option<&Value>, ParseError> {
        let values = go_json::values(&self.map, key);
        match values.as_slice() {
            [] => Ok(None),
            [(_, value)] => Ok(Some(value)),
            several => Err(ParseError::Repeated {
                text: self.text.clone(),
                key: format!("{}{key}", self.path),
                times: several.len(),
                spellings: several
                    .iter()
                    .map(|(spelling, _)| *spelling)
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }

    pub(super) fn wrong(&self, key: &str, found: &Value, needed: &'static str) -> ParseError {
        ParseError::Value {
            text: self.text.clone(),
            key: format!("{}{key}", self.path),
            found: found.to_string(),
            needed,
        }
    }

    pub(super) fn missing(&self, key: &str, needed: &'static str) -> ParseError {
        ParseError::Missing {
            text: self.text.clone(),
            key: format!("{}{key}", self.path),
            needed,
        }
    }

    pub(super) fn string(&self, key: &str, needed: &'static str) -> Result<String, ParseError> {
        match self.one(key)? {
            Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
            Some(other) => Err(self.wrong(key, other, needed)),
            None => Err(self.missing(key, needed)),
        }
    }

    pub(super) fn boolean(&self, key: &str, default: bool) -> Result<bool, ParseError> {
        match self.one(key)? {
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(self.wrong(key, other, "true or false")),
            None => Ok(default),
        }
    }

    pub(super) fn number(
        &self,
        key: &str,
        least: u32,
        most: u32,
        needed: &'static str,
    ) -> Result<Option<u32>, ParseError> {
        let Some(value) = self.one(key)? else {
            return Ok(None);
        };
        value
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| (least..=most).contains(number))
            .map(Some)
            .ok_or_else(|| self.wrong(key, value, needed))
    }
}
