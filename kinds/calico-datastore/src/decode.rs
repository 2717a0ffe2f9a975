//! Decodes values of the v2 store as Go's `encoding/json` reads them into a struct: keys match in any case, `null` is "not set",
//! the last of equal keys is used, unknown keys are ignored, and one value of a wrong type makes the whole text invalid.

use std::collections::BTreeMap;

use super::go_values::equal_fold;
use super::json::Json;
use super::mismatch::Mismatch;
use super::report::Cause;

/// A type that can be decoded from JSON.
pub trait Decode: Sized {
    /// Decodes a value. `null` gives the value of a missing field.
    fn decode(json: &Json) -> Result<Self, Mismatch>;

    /// Decodes a value over an earlier one of the same field in the same text. By default, the earlier value is replaced.
    fn decode_over(self, json: &Json) -> Result<Self, Mismatch> {
        Self::decode(json)
    }
}

/// Decodes the whole text of a value.
pub(super) fn read<T: Decode>(text: &str) -> Result<T, Cause> {
    let json = Json::parse(text).map_err(|error| Cause::NotJson {
        reason: error.to_string(),
    })?;
    T::decode(&json).map_err(Cause::Mismatch)
}

/// The fields of an object.
pub(super) struct Fields<'json>(&'json [(String, Json)]);

impl<'json> Fields<'json> {
    pub(super) fn of(json: &'json Json) -> Result<Self, Mismatch> {
        match json {
            Json::Object(fields) => Ok(Self(fields)),
            Json::Null => Ok(Self(&[])),
            other => Err(Mismatch::new(other, "an object")),
        }
    }

    /// The last value of this name in any case.
    pub(super) fn get<T: Decode + Default>(&self, name: &str) -> Result<T, Mismatch> {
        let mut last = T::default();
        for (_, json) in self.0.iter().filter(|(key, _)| equal_fold(key, name)) {
            last = last.decode_over(json).map_err(|mismatch| mismatch.within(name))?;
        }
        Ok(last)
    }
}

/// Keeps the earlier value when the later one is `null`.
pub(super) fn keep_over_null<T: Decode>(before: T, json: &Json) -> Result<T, Mismatch> {
    match json {
        Json::Null => Ok(before),
        json => T::decode(json),
    }
}

impl Decode for String {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        match json {
            Json::Text(text) => Ok(text.clone()),
            Json::Null => Ok(Self::new()),
            other => Err(Mismatch::new(other, "a string")),
        }
    }

    fn decode_over(self, json: &Json) -> Result<Self, Mismatch> {
        keep_over_null(self, json)
    }
}

impl Decode for bool {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        match json {
            Json::Boolean(value) => Ok(*value),
            Json::Null => Ok(false),
            other => Err(Mismatch::new(other, "true or false")),
        }
    }

    fn decode_over(self, json: &Json) -> Result<Self, Mismatch> {
        keep_over_null(self, json)
    }
}

/// An integer within the bounds of the type.
fn integer<T: TryFrom<i128> + Default>(json: &Json, needed: &'static str) -> Result<T, Mismatch> {
    match json {
        Json::Integer(value) => T::try_from(*value).map_err(|_| Mismatch::new(json, needed)),
        Json::Null => Ok(T::default()),
        other => Err(Mismatch::new(other, needed)),
    }
}

impl Decode for i64 {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        integer(json, "an integer")
    }
}

impl Decode for u16 {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        integer(json, "an integer from 0 to 65535")
    }

    fn decode_over(self, json: &Json) -> Result<Self, Mismatch> {
        keep_over_null(self, json)
    }
}

impl Decode for f64 {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        match json {
            // Orders of policies are small; larger numbers than 2^53 are rounded as Go rounds them.
            #[expect(clippy::cast_precision_loss)]
            Json::Integer(value) => Ok(*value as Self),
            Json::Fraction(value) => Ok(*value),
            Json::Null => Ok(0.0),
            other => Err(Mismatch::new(other, "a number")),
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        match json {
            Json::Null => Ok(None),
            json => T::decode(json).map(Some),
        }
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        match json {
            Json::List(values) => values
                .iter()
                .enumerate()
                .map(|(place, value)| {
                    T::decode(value).map_err(|mismatch| mismatch.within(&format!("[{place}]")))
                })
                .collect(),
            Json::Null => Ok(Self::new()),
            other => Err(Mismatch::new(other, "a list")),
        }
    }
}

impl<T: Decode> Decode for BTreeMap<String, T> {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        Fields::of(json)?
            .0
            .iter()
            .map(|(key, value)| match T::decode(value) {
                Ok(value) => Ok((key.clone(), value)),
                Err(mismatch) => Err(mismatch.within(&format!("[{key:?}]"))),
            })
            .collect()
    }

    /// Merges two maps.
    fn decode_over(mut self, json: &Json) -> Result<Self, Mismatch> {
        let later = Self::decode(json)?;
        if *json == Json::Null {
            return Ok(later);
        }
        self.extend(later);
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
