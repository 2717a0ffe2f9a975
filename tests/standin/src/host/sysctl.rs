//! Kernel settings under `/proc/sys`, in the network namespace of the calling thread.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Sets one value, by its path below `/proc/sys`. A value that is already set is not written: the mount may be read-only.
pub fn set(setting: &str, value: &str) -> Result<()> {
    let path = Path::new("/proc/sys").join(setting);
    let found = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    if found.trim() == value {
        return Ok(());
    }
    fs::write(&path, value)
        .with_context(|| format!("set {} to {value} (it is {})", path.display(), found.trim()))
}
