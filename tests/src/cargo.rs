//! Cargo inside cargo.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The cargo that runs the lab, which `cargo lab` names; else the one in the search path.
pub fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The folder of the workspace.
pub fn workspace() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_owned)
        .context("the workspace is above the lab")
}

/// Takes from a command what cargo has told the lab about the lab itself. Build scripts watch these variables: with them
/// a cargo that `cargo lab` starts would build half of the dependencies anew, and the next `cargo lab` too.
pub fn forget_caller(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if is_of_caller(&name) {
            command.env_remove(name);
        }
    }
}

fn is_of_caller(name: &OsStr) -> bool {
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
    fn what_a_person_has_set_stays_and_what_cargo_has_set_goes() {
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_VERSION_PRE", "CARGO_BIN_EXE_lab"] {
            assert!(is_of_caller(OsStr::new(name)), "{name}");
        }
        for name in [
            "CARGO",
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_JOBS",
            "CARGO_NET_OFFLINE",
            "PATH",
        ] {
            assert!(!is_of_caller(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn the_command_does_not_see_it() {
        // Cargo has set it for this test.
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
