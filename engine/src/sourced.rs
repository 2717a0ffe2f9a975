//! A value with its source.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `Source` is where a value comes from: `spec`, `detected from OBJECT` or `default`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Source {
    /// The spec of the Migration.
    Spec,
    /// Read from this object.
    Detected(String),
    /// The default value.
    Default,
}

/// `Sourced` is a value with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sourced<T> {
    /// `value` is the value.
    pub value: T,
    /// `source` is where the value comes from: `spec` (of the Migration), `detected from OBJECT` or `default`.
    pub source: Source,
}

impl<T> Sourced<T> {
    /// The value of the spec, else the detected value (with its object), else the default.
    pub fn choose(spec: Option<T>, detected: Option<(T, String)>, default: T) -> Self {
        match (spec, detected) {
            (Some(value), _) => Self {
                value,
                source: Source::Spec,
            },
            (None, Some((value, object))) => Self {
                value,
                source: Source::Detected(object),
            },
            (None, None) => Self {
                value: default,
                source: Source::Default,
            },
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec => formatter.write_str("spec"),
            Self::Detected(object) => write!(formatter, "{DETECTED}{object}"),
            Self::Default => formatter.write_str("default"),
        }
    }
}

/// The start of the text of a [`Source`] whose value was read from an object.
const DETECTED: &str = "detected from ";

impl From<Source> for String {
    fn from(source: Source) -> Self {
        source.to_string()
    }
}

impl From<String> for Source {
    fn from(text: String) -> Self {
        match text.as_str() {
            "spec" => Self::Spec,
            "default" => Self::Default,
            other => Self::Detected(other.strip_prefix(DETECTED).unwrap_or(other).to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_serialization() {
        for source in [
            Source::Spec,
            Source::Default,
            Source::Detected("ConfigMap a/b".to_owned()),
        ] {
            let wire = serde_json::to_string(&source).unwrap();
            assert_eq!(serde_json::from_str::<Source>(&wire).unwrap(), source, "{wire}");
        }
        assert_eq!(
            serde_json::to_string(&Source::Detected("ConfigMap a/b".to_owned())).unwrap(),
            r#""detected from ConfigMap a/b""#
        );
    }
}
