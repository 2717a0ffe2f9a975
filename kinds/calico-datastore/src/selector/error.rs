//! A syntax error of a selector.

use thiserror::Error;

/// A syntax error of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("expected {needed} at byte {place}")]
pub struct SelectorError {
    /// Position in bytes, from 0.
    pub place: usize,
    /// The expected token.
    pub needed: &'static str,
}
