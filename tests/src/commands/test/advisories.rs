//! Known vulnerabilities of the dependencies, from a database on this machine: a test run downloads none.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::programs::run_program;

/// The folder of cargo-deny's databases; `None` if there is none.
fn databases() -> Result<(PathBuf, bool)> {
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(std::env::var_os("HOME").context("find CARGO_HOME: HOME is not set")?)
            .join(".cargo"),
    };
    let folder = home.join("advisory-dbs");
    let is_there = match std::fs::read_dir(&folder) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| format!("list {}", folder.display())),
    };
    Ok((folder, is_there))
}

/// Checks the advisories with cargo-deny; `None`, with a message, if there is no database.
pub(super) async fn check(cargo_deny: &Path) -> Option<Result<()>> {
    let (folder, is_there) = match databases() {
        Ok(found) => found,
        Err(error) => return Some(Err(error)),
    };
    if !is_there {
        println!(
            "NOT CHECKED  advisories: no database in {}. `cargo deny fetch db` gets it",
            folder.display()
        );
        return None;
    }
    let checked = async {
        let check = ["--offline", "check", "advisories"];
        run_program(cargo_deny, &check, crate::cargo::workspace()?).await
    };
    Some(checked.await)
}
