//! Errors of the journal.

use std::path::PathBuf;

use api::FailureCategory;
use thiserror::Error;

use crate::host::files::FileError;

/// The journal could not be read or written. No step is performed without it.
#[derive(Debug, Error)]
pub enum JournalError {
    /// A file of the journal could not be read or written.
    #[error(
        "journal could not be read or written, so nothing is changed: free disk space or repair its folder"
    )]
    File(#[from] FileError),
    /// Another process holds the journal's lock.
    #[error(
        "{path} is locked by another agent on this node: remove one of the replumb installations (find pods named \
         replumb-agent on this node with `kubectl get pods -A -o wide`)"
    )]
    Locked {
        /// The locked file.
        path: PathBuf,
    },
    /// A record before the last one is malformed.
    #[error("{path}, line {line}: malformed record ({problem}): move the file away to start a new journal")]
    Broken {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
}

impl JournalError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::File(_) => FailureCategory::JournalFile,
            Self::Locked { .. } => FailureCategory::JournalTaken,
            Self::Broken { .. } => FailureCategory::JournalBroken,
        }
    }
}
