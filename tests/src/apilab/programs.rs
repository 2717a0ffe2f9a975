//! The programs of the API lab: those of Kubernetes, and those of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::assets;
use crate::cargo;
use crate::progress::Progress;

/// The programs to run.
const PROGRAMS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"];

/// The folder with the programs: from the environment, or built by the lab.
pub(super) async fn find() -> Result<PathBuf> {
    let asked = ["REPLUMB_LAB_ASSETS", "KUBEBUILDER_ASSETS"]
        .iter()
        .find_map(std::env::var_os)
        .map(PathBuf::from);
    if let Some(folder) = &asked
        && PROGRAMS.iter().all(|name| folder.join(name).is_file())
    {
        return folder
            .canonicalize()
            .with_context(|| format!("find {}", folder.display()));
    }
    let options = assets::Options {
        folder: asked,
        calico: None,
        programs: Vec::new(),
        build: assets::Build::default(),
    };
    Ok(assets::ensure(&options, &Progress::default()).await?.binaries)
}

/// Builds a program of the workspace like this test was built, and returns its path.
pub fn built(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("find the test's own program")?;
    // target/debug/deps/api_cli-0123 → target/debug
    let target = test
        .parent()
        .and_then(Path::parent)
        .with_context(|| format!("find the target folder above {}", test.display()))?;
    let mut build = Command::new(cargo::program());
    // By program and not by package: features are chosen for the whole workspace, as for the test itself.
    build
        .args(["build", "--quiet", "--bin", name])
        .current_dir(cargo::workspace()?);
    // Each profile has a folder of the same name, except the default build.
    if let Some(profile) = target.file_name().filter(|folder| *folder != "debug") {
        build.arg("--profile").arg(profile);
    }
    cargo::forget_caller(&mut build);
    run(&mut build)?;
    let program = target.join(name);
    if !program.is_file() {
        bail!("cargo built {name}, but there is no {}", program.display());
    }
    Ok(program)
}

/// Runs a program to its end; an exit code other than 0 is an error. Returns its output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
