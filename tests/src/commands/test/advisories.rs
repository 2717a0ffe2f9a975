//! Known vulnerabilities of the crates that we use, from a database that is on this machine: none is fetched in a test run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::programs::run_program;

/// Where cargo-deny keeps its databases; `None` where there is none.
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

/// Checks them with cargo-deny; `None` where no database is there, which is said.
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
