//! The error of a pass, and of its steps that do more than read or write.

use thiserror::Error;

use crate::calico::error::CalicoStoreError;
use crate::failure::{Cause, Failure};
use crate::read_error::ReadError;
use crate::write::WriteError;

/// The failure that ended a pass or a step.
#[derive(Debug, Error)]
pub enum PassError {
    /// A read from the API.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A write to the API.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A read or write of Calico's objects, wherever Calico stores them.
    #[error(transparent)]
    Store(#[from] CalicoStoreError),
}

impl Failure for PassError {
    fn root_cause(&self) -> Cause<'_> {
        match self {
            Self::Read(error) => error.root_cause(),
            Self::Write(error) => error.root_cause(),
            Self::Store(error) => error.root_cause(),
        }
    }
}
