//! The error of a read from the API.

use thiserror::Error;

use crate::failure::{Cause, Failure};

/// The API server refused a read, did not answer, or sent an answer that cannot be read.
#[derive(Debug, Error)]
#[error("{attempt} {object}")]
pub struct ReadError {
    /// The attempt.
    pub attempt: String,
    /// The object, or the kind of the objects.
    pub object: String,
    /// The error of the API client.
    pub source: kube::Error,
}

impl ReadError {
    /// The error of an attempt to read an object.
    pub fn of(attempt: impl Into<String>, object: impl Into<String>, source: kube::Error) -> Self {
        Self {
            attempt: attempt.into(),
            object: object.into(),
            source,
        }
    }
}

impl Failure for ReadError {
    fn root_cause(&self) -> Cause<'_> {
        Cause::Api(&self.source)
    }
}
