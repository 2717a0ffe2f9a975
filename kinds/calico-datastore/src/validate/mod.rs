//! What v3 refuses (libcalico-go, `lib/validator/v3`), field by field. A finding names the field, its value and what is needed.

pub(super) mod endpoint;
pub(super) mod metadata;
pub(super) mod policy;
pub(super) mod pool;
pub(super) mod rule;
pub(super) mod text;
pub(super) mod workload;

use std::fmt;

use super::difference::Difference;

/// A field that v3 refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The field in v3: `spec.ingress[0].source.ports[1]`.
    pub field: String,
    /// Its value.
    pub found: String,
    /// What it has to be.
    pub needed: String,
    /// Why Calico's own tool does not say so.
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
    /// A field, its value as it is printed, what is needed.
    pub fn add(&mut self, field: impl Into<String>, found: impl fmt::Display, needed: impl Into<String>) {
        self.0.push(Finding {
            field: field.into(),
            found: found.to_string(),
            needed: needed.into(),
            difference: None,
        });
    }

    /// The same for a text, and only if it is not as it has to be.
    pub fn text(&mut self, holds: bool, field: impl Into<String>, found: &str, needed: &str) {
        if !holds {
            self.add(field, format_args!("{found:?}"), needed);
        }
    }

    /// What is found so is no finding of Calico's own tool.
    pub fn is_ours(&mut self, difference: Difference) {
        if let Some(finding) = self.0.last_mut() {
            finding.difference = Some(difference);
        }
    }
}
