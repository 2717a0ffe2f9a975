//! Fields of a kind in the spec of a Migration.

use schemars::JsonSchema;

/// The part of a kind in the spec of a Migration. Its fields are immutable.
pub trait KindFields: JsonSchema {
    /// Fields that the user may change at any time, by their names in the API.
    const CHANGEABLE: &'static [&'static str] = &[];
}
