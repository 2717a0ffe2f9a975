//! A value that a program looked for: absent, present or malformed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `Found` is a value that was looked for. Exactly one of its fields is set: a value that cannot be read is not taken for an
/// absent one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    from = "FoundOnTheWire<T>",
    into = "FoundOnTheWire<T>",
    bound(serialize = "T: Clone + Serialize", deserialize = "T: Deserialize<'de>")
)]
#[schemars(with = "FoundOnTheWire<T>")]
pub enum Found<T> {
    /// The value does not exist.
    #[default]
    Absent,
    /// The value.
    Present(T),
    /// The value exists and cannot be read or parsed: the error message.
    Malformed(String),
}

/// `Found` is a value that was looked for. Exactly one of its fields is set.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct FoundOnTheWire<T> {
    /// `absent` is true if the value does not exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    absent: bool,
    /// `present` is the value, if it exists and was understood.
    #[serde(skip_serializing_if = "Option::is_none")]
    present: Option<T>,
    /// `malformed` is the error message, if the value exists and cannot be read or parsed, or if it is not known whether it
    /// exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    malformed: Option<String>,
}

impl<T> From<Found<T>> for FoundOnTheWire<T> {
    fn from(found: Found<T>) -> Self {
        let empty = Self {
            absent: false,
            present: None,
            malformed: None,
        };
        match found {
            Found::Absent => Self {
                absent: true,
                ..empty
            },
            Found::Present(value) => Self {
                present: Some(value),
                ..empty
            },
            Found::Malformed(message) => Self {
                malformed: Some(message),
                ..empty
            },
        }
    }
}

impl<T> From<FoundOnTheWire<T>> for Found<T> {
    fn from(wire: FoundOnTheWire<T>) -> Self {
        match wire {
            FoundOnTheWire {
                malformed: Some(message),
                ..
            } => Self::Malformed(message),
            FoundOnTheWire {
                present: Some(value), ..
            } => Self::Present(value),
            FoundOnTheWire { absent: true, .. } => Self::Absent,
            // The record does not say that the value is absent.
            FoundOnTheWire { absent: false, .. } => {
                Self::Malformed("no value and no error are set".to_owned())
            }
        }
    }
}

impl<T> Found<T> {
    /// The value, if it exists and was understood.
    pub fn present(&self) -> Option<&T> {
        match self {
            Self::Present(value) => Some(value),
            Self::Absent | Self::Malformed(_) => None,
        }
    }

    /// Whether the value is known not to exist.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Absent => true,
            Self::Present(_) | Self::Malformed(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_found_value_survives_serialization() {
        for found in [
            Found::Absent,
            Found::Present(7),
            Found::Malformed("no VNI".to_owned()),
        ] {
            let wire = serde_json::to_value(&found).unwrap();
            assert!(wire.is_object(), "{wire}");
            assert_eq!(serde_json::from_value::<Found<u32>>(wire).unwrap(), found);
        }
        assert!(!serde_json::from_str::<Found<u32>>("{}").unwrap().is_absent());
    }
}
