//! Programs for the tests that no cluster needs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use super::retry::{Failure, three_times};
use super::rust::{self, Build, Program};
use super::{default_cache, packages as debian};
use crate::progress::{Detail, Progress};

/// Checks licences and sources; pinned, because its rules change with its version.
const CARGO_DENY: &str = "0.20.2";

/// Installs the packages of the machine that the lab needs.
pub async fn packages(progress: &Progress) -> Result<()> {
    debian::ensure(progress).await
}

/// The `kubectl-replumb` of this workspace.
pub async fn command_line(wanted: Build, progress: &Progress) -> Result<PathBuf> {
    rust::build(&[Program::CommandLine], wanted, progress)
        .await?
        .need(Program::CommandLine)
}

/// The traffic generator of this workspace.
pub async fn traffic(wanted: Build, progress: &Progress) -> Result<PathBuf> {
    rust::build(&[Program::Traffic], wanted, progress)
        .await?
        .need(Program::Traffic)
}

/// `cargo-deny` of the pinned version, built into the cache if missing.
pub async fn cargo_deny(progress: &Progress) -> Result<PathBuf> {
    let folder = default_cache()?
        .join("tools")
        .join(format!("cargo-deny-{CARGO_DENY}"));
    let program = folder.join("bin/cargo-deny");
    if program.is_file() {
        return Ok(program);
    }
    let title = format!("building cargo-deny {CARGO_DENY}");
    let work = three_times(&title, progress, async || {
        install(&folder).await.map_err(Failure::Again)
    });
    progress.during(&title, &Detail::default(), work).await?;
    Ok(program)
}

async fn install(folder: &Path) -> Result<()> {
    // Without optimisations the build takes half the time, and the program runs only for seconds.
    let output = Command::new(crate::cargo::program())
        .args([
            "install",
            "--locked",
            "--quiet",
            "cargo-deny",
            "--version",
            CARGO_DENY,
            "--root",
        ])
        .arg(folder)
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .kill_on_drop(true)
        .output()
        .await
        .context("run cargo install cargo-deny")?;
    if !output.status.success() {
        bail!(
            "cargo install cargo-deny failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
