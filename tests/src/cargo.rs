//! Runs cargo from a program that cargo runs.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Path of the cargo that runs the lab, as `cargo lab` names it; otherwise the one in the search path.
pub fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The folder of the workspace.
pub fn workspace() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_owned)
        .context("find the workspace above the lab")
}

/// Removes from a command the variables that cargo has set for the lab. Build scripts watch these variables: with
/// them, a cargo that `cargo lab` starts would rebuild half of the dependencies, and the next `cargo lab` would, too.
pub fn forget_caller(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if is_set_by_cargo(&name) {
            command.env_remove(name);
        }
    }
}

fn is_set_by_cargo(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["CARGO_BIN_", "CARGO_CRATE_", "CARGO_MANIFEST_", "CARGO_PKG_"]
        .iter()
        .any(|start| name.starts_with(start))
        || ["CARGO_PRIMARY_PACKAGE", "CARGO_TARGET_TMPDIR", "OUT_DIR"].contains(&name.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_user_stay_and_variables_of_cargo_are_removed() {
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_VERSION_PRE", "CARGO_BIN_EXE_lab"] {
            assert!(is_set_by_cargo(OsStr::new(name)), "{name}");
        }
        for name in [
            "CARGO",
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_JOBS",
            "CARGO_NET_OFFLINE",
            "PATH",
        ] {
            assert!(!is_set_by_cargo(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn a_command_does_not_inherit_the_variables_of_cargo() {
        // Cargo has set this variable for the test.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let mut command = Command::new("env");
        forget_caller(&mut command);
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(
            !said.contains("CARGO_PKG_") && !said.contains("CARGO_MANIFEST_DIR"),
            "{said}"
        );
        assert!(said.contains("PATH="), "{said}");
    }
}
