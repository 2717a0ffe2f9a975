//! The error of a write to the API.

use thiserror::Error;

use crate::failure::{Cause, Failure};
use crate::read_error::ReadError;

/// A write of an object that failed.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The object changed since the decision. The next pass decides again.
    #[error("{attempt} {object}: the object changed since it was read")]
    Conflict {
        /// The attempt.
        attempt: String,
        /// The object.
        object: String,
    },
    /// The API server refused the write, or did not answer.
    #[error("{attempt} {object}")]
    Refused {
        /// The attempt.
        attempt: String,
        /// The object.
        object: String,
        /// The error of the API client.
        #[source]
        source: kube::Error,
    },
    /// The write needed a read first, which failed.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl WriteError {
    /// The error of an attempt on an object; a conflict becomes its own variant.
    pub fn of(attempt: impl Into<String>, object: impl Into<String>, source: kube::Error) -> Self {
        match source {
            kube::Error::Api(status) if status.is_conflict() => Self::Conflict {
                attempt: attempt.into(),
                object: object.into(),
            },
            source => Self::Refused {
                attempt: attempt.into(),
                object: object.into(),
                source,
            },
        }
    }
}

impl Failure for WriteError {
    fn root_cause(&self) -> Cause<'_> {
        match self {
            Self::Conflict { .. } => Cause::Changed,
            Self::Refused { source, .. } => Cause::Api(source),
            Self::Read(error) => error.root_cause(),
        }
    }
}
