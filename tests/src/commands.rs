//! The commands of `cargo lab`, one module each.

pub mod crash;
pub mod datastore_corpus;
pub mod datastore_trial;
pub mod demo;
pub mod down;
pub mod field_cases;
pub mod hollow;
pub mod install;
pub mod kubectl;
pub mod policies;
pub mod scale;
pub mod status;
pub mod test;
pub mod up;

use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::Directory;

/// Selects the lab.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// Folder of the lab; two folders are two labs
    #[arg(long = "dir", value_name = "DIR", env = "REPLUMB_LAB_DIR", default_value = Directory::DEFAULT)]
    pub directory: PathBuf,
}

impl Place {
    /// Opens the folder and creates it if it does not exist.
    pub fn open(&self) -> Result<Directory> {
        Directory::open(&self.directory)
    }
}

/// The program was told to end, so it has removed the things that it had made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub &'static str);

impl std::fmt::Display for Ended {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ended by {}", self.0)
    }
}

impl std::error::Error for Ended {}

/// Completes when the program is told to end: Ctrl-C, SIGTERM or a closed terminal.
pub async fn interrupted() -> Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    tokio::select! {
        _ = interrupt.recv() => Ok("Ctrl-C"),
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = hangup.recv() => Ok("SIGHUP"),
    }
}
