//! The snapshot that a command judges.

use std::path::Path;

use offline::snapshot::{Snapshot, SnapshotError};

use crate::error::CliError;
use crate::file;

/// The snapshot in a file.
///
/// # Errors
///
/// The file cannot be read, or is not a snapshot.
pub fn read(path: &Path) -> Result<Snapshot, CliError> {
    let text = file::text(path)?;
    Snapshot::parse(&text).map_err(|error| refused(path, &error))
}

/// The file is not a snapshot.
pub fn refused(path: &Path, error: &SnapshotError) -> CliError {
    CliError::File {
        file: path.display().to_string(),
        why: error.to_string(),
    }
}
