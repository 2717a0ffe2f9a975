//! A value whose type does not fit its field.

use std::fmt;

use thiserror::Error;

use super::json::Json;

/// A value whose type does not fit its field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Mismatch {
    /// The field: `inbound_rules[0].src_nets[1]`; empty for the value itself.
    pub path: String,
    /// The value found.
    pub found: String,
    /// The value needed.
    pub needed: &'static str,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() {
            "the value"
        } else {
            &self.path
        };
        write!(formatter, "{path}: found {}, needed {}", self.found, self.needed)
    }
}

impl Mismatch {
    pub(super) fn new(found: &Json, needed: &'static str) -> Self {
        Self {
            path: String::new(),
            found: found.to_string(),
            needed,
        }
    }

    pub(super) fn within(mut self, outer: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') {
            ""
        } else {
            "."
        };
        self.path = format!("{outer}{dot}{}", self.path);
        self
    }
}
