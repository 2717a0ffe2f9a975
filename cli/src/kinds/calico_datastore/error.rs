//! Errors of `datastore`.

use datastore::error::StoreError;
use datastore::run::RunError;
use thiserror::Error;

use crate::error::{CliError, KindError};
use crate::exit::Outcome;

/// Why a conversion cannot start or continue.
#[derive(Debug, Error)]
pub enum ConversionError {
    /// The pause limit is too short.
    #[error(
        "--pause-limit must be longer than --settle: the conversion would be rolled back before any data is written"
    )]
    PauseTooShort,
    /// The record of a running conversion is missing.
    #[error(
        "the record of this conversion is missing from etcd v3, so it is unknown whether Calico is paused"
    )]
    RecordGone,
}

impl KindError for ConversionError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::PauseTooShort => None,
            Self::RecordGone => Some(
                "`kubectl replumb datastore status` shows both flags; `abort` returns Calico to etcd v2"
                    .to_owned(),
            ),
        }
    }
}

impl KindError for RunError {
    fn hint(&self) -> Option<String> {
        Self::hint(self)
    }

    fn outcome(&self) -> Outcome {
        if self.is_refusal() {
            Outcome::Refused
        } else {
            Outcome::Failed
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        RunError::from(error).into()
    }
}
