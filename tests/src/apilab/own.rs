//! An API server that ends before its process does, and is removed completely.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::PoisonError;

use anyhow::Result;

use super::settings::{Settings, audit_log};
use super::{ApiLab, start};

/// A separate API server. Dropped, its processes are ended and its folder is removed.
#[derive(Debug)]
pub struct OwnApiLab(ApiLab);

impl OwnApiLab {
    /// Starts one from the programs in this folder.
    pub fn start(programs: PathBuf, settings: Settings) -> Result<Self> {
        start::kept(Some(programs), settings).map(Self)
    }

    /// Path of the API server's audit log.
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
        // The last one first: no program then uses a server that has ended.
        while let Some(process) = processes.pop() {
            drop(process);
        }
        if let Err(error) = fs::remove_dir_all(&self.0.folder) {
            eprintln!("{} could not be removed: {error}", self.0.folder.display());
        }
    }
}
