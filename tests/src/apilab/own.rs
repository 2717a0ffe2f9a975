//! An API server that ends before its process does, and leaves nothing behind.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::PoisonError;

use anyhow::Result;

use super::settings::{Settings, audit_log};
use super::{ApiLab, start};

/// An API server of its own. Dropped, its processes are ended and its folder is removed.
#[derive(Debug)]
pub struct OwnApiLab(ApiLab);

impl OwnApiLab {
    /// Starts one from the programs in this folder.
    pub fn start(programs: PathBuf, settings: Settings) -> Result<Self> {
        start::kept(Some(programs), settings).map(Self)
    }

    /// Where the API server writes what it was asked.
    pub fn audit_log(&self) -> PathBuf {
        audit_log(&self.0.folder)
    }
}

impl Deref for OwnApiLab {
    type Target = ApiLab;

    fn deref(&self) -> &ApiLab {
        &self.0
    }
}

impl Drop for OwnApiLab {
    fn drop(&mut self) {
        let processes = self.0.processes.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The last one first: nothing asks a server that is gone.
        while let Some(process) = processes.pop() {
            drop(process);
        }
        if let Err(error) = fs::remove_dir_all(&self.0.folder) {
            eprintln!("{} could not be removed: {error}", self.0.folder.display());
        }
    }
}
