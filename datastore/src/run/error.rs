//! Errors of a run.

use calico_datastore::run::refusal::Refusal;
use thiserror::Error;

use super::prepared::NotConvertible;
use crate::backup::BackupError;
use crate::error::StoreError;

/// Reason why a run did not reach its goal.
#[derive(Debug, Error)]
pub enum RunError {
    /// A store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run was refused.
    #[error("{0}")]
    Refused(Refusal),
    /// The data of v2 cannot be converted.
    #[error(transparent)]
    NotConvertible(#[from] NotConvertible),
    /// The backup failed, so nothing was changed.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The conversion was aborted automatically.
    #[error("{why}: the conversion was aborted, Calico works with etcd v2 again")]
    Aborted {
        /// The cause.
        why: String,
    },
    /// The automatic abort of the conversion failed.
    #[error("{why}: the conversion had to be aborted, but the abort failed: {error}")]
    AbortFailed {
        /// The cause of the abort.
        why: String,
        /// The cause of its failure.
        error: Box<RunError>,
    },
}

impl RunError {
    /// The fix for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Store(error) => error.hint(),
            Self::Refused(refusal) => Some(refusal.hint().to_owned()),
            Self::NotConvertible(error) => Some(error.hint().to_owned()),
            Self::Backup(_) => Some("set --output-dir to a writable folder".to_owned()),
            Self::Aborted { .. } => Some("fix the cause, then start again".to_owned()),
            Self::AbortFailed { error, .. } => Some(format!(
                "Calico may still be paused: run `kubectl replumb datastore status`, then `abort`{}",
                error.hint().map(|hint| format!("; {hint}")).unwrap_or_default()
            )),
        }
    }

    /// Whether the run changed nothing because a prerequisite does not hold.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(_) | Self::NotConvertible(_) => true,
            Self::Store(_) | Self::Backup(_) | Self::Aborted { .. } | Self::AbortFailed { .. } => false,
        }
    }
}
