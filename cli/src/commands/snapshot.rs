//! The snapshot that a command judges.

use std::path::Path;

use offline::cluster::MemoryCluster;
use offline::snapshot::Snapshot;

use crate::error::CliError;
use crate::file;

/// The cluster of a file, in memory.
///
/// # Errors
///
/// The file cannot be read, or is not a snapshot.
pub fn cluster(path: &Path) -> Result<MemoryCluster, CliError> {
    let text = file::text(path)?;
    let cluster = Snapshot::parse(&text).and_then(MemoryCluster::of);
    cluster.map_err(|error| CliError::File {
        file: path.display().to_string(),
        why: error.to_string(),
    })
}
