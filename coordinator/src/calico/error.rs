//! The error of a read or write in the datastore that Calico uses.

use datastore::error::StoreError;
use thiserror::Error;

use crate::failure::{Cause, Failure};
use crate::read_error::ReadError;
use crate::write::WriteError;

/// A read or write of Calico's objects that failed.
#[derive(Debug, Error)]
pub enum CalicoStoreError {
    /// A read from the Kubernetes API.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A write to the Kubernetes API, or a conflict in either datastore.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// etcd refused, or did not answer.
    #[error(transparent)]
    Etcd(#[from] StoreError),
}

impl Failure for CalicoStoreError {
    fn root_cause(&self) -> Cause<'_> {
        match self {
            Self::Read(error) => error.root_cause(),
            Self::Write(error) => error.root_cause(),
            Self::Etcd(error) => Cause::Etcd(error),
        }
    }
}
