//! Findings of a validation: fields that v3 refuses.

use std::fmt;

use super::difference::Difference;

/// A field that v3 refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The field in v3: `spec.ingress[0].source.ports[1]`.
    pub field: String,
    /// The value found.
    pub found: String,
    /// The value needed.
    pub needed: String,
    /// The difference from Calico's own tool, if there is one.
    pub difference: Option<Difference>,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field, found, needed, ..
        } = self;
        write!(formatter, "{field} is {found}, needed {needed}")
    }
}

/// Findings of one object.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Adds a finding: the field, the printed value, and the value needed.
    pub fn add(&mut self, field: impl Into<String>, found: impl fmt::Display, needed: impl Into<String>) {
        self.0.push(Finding {
            field: field.into(),
            found: found.to_string(),
            needed: needed.into(),
            difference: None,
        });
    }

    /// Adds a finding on a text, unless the condition holds.
    pub fn text(&mut self, holds: bool, field: impl Into<String>, found: &str, needed: &str) {
        if !holds {
            self.add(field, format_args!("{found:?}"), needed);
        }
    }

    /// Marks the last finding as one that Calico's own tool does not have.
    pub fn mark_own(&mut self, difference: Difference) {
        if let Some(finding) = self.0.last_mut() {
            finding.difference = Some(difference);
        }
    }
}
