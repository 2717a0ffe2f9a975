//! Builds the workspace's own programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::progress::{Detail, Progress};

/// A program of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// replumb's agent.
    Agent,
    /// replumb's coordinator.
    Coordinator,
    /// kubectl's plugin.
    CommandLine,
    /// The stand-in for Calico.
    StandIn,
    /// The traffic generator, which is also the pause program.
    Traffic,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Agent,
        Self::Coordinator,
        Self::CommandLine,
        Self::StandIn,
        Self::Traffic,
    ];

    /// The file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "replumb-agent",
            Self::Coordinator => "replumb-coordinator",
            Self::CommandLine => "kubectl-replumb",
            Self::StandIn => "standin",
            Self::Traffic => "traffic",
        }
    }
}

/// The paths of the workspace's programs.
#[derive(Clone, Debug, Default)]
pub struct RustPrograms(BTreeMap<Program, PathBuf>);

impl RustPrograms {
    /// The path of the program, if requested.
    pub fn get(&self, program: Program) -> Option<PathBuf> {
        self.0.get(&program).cloned()
    }

    /// The path of the program; an error if it was not requested.
    pub fn need(&self, program: Program) -> Result<PathBuf> {
        self.get(program).with_context(|| {
            format!(
                "the program {} was not requested, so it was not built",
                program.name()
            )
        })
    }
}

/// Build options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Build {
    /// A release build, which takes minutes longer; otherwise the profile of the lab itself, with the same dependencies.
    pub release: bool,
    /// Test builds of agent and coordinator, which stop at crash points.
    pub crash_points: bool,
    /// A test build of the agent, which plays a kernel before Linux 6.2.
    pub old_kernel: bool,
}

/// Builds programs of the workspace; cargo skips those that are up to date.
pub async fn build(programs: &[Program], wanted: Build, progress: &Progress) -> Result<RustPrograms> {
    if programs.is_empty() {
        return Ok(RustPrograms::default());
    }
    let detail = Detail::default();
    let names: Vec<&str> = programs.iter().map(|program| program.name()).collect();
    let title = format!("building {}", names.join(", "));
    progress
        .during(&title, &detail, compile(programs, wanted, &detail))
        .await
}

async fn compile(programs: &[Program], wanted: Build, detail: &Detail) -> Result<RustPrograms> {
    let workspace = crate::cargo::workspace()?;
    let cargo = crate::cargo::program();
    let mut command = Command::new(&cargo);
    crate::cargo::forget_caller(command.as_std_mut());
    command.args(["build", "--message-format=json-render-diagnostics"]);
    if wanted.release {
        command.arg("--release");
    }
    // By program and not by package: then cargo chooses the features of dependencies for the whole workspace, as for
    // `cargo lab` itself, and compiles each of them once.
    for program in programs {
        command.args(["--bin", program.name()]);
    }
    if wanted.crash_points {
        command.args(["--features", "agent/crash-points,coordinator/crash-points"]);
    }
    if wanted.old_kernel {
        command.args(["--features", "agent/old-kernel"]);
    }
    let mut child = command
        .current_dir(&workspace)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| {
            format!(
                "run {} build in {}",
                Path::new(&cargo).display(),
                workspace.display()
            )
        })?;
    let stdout = child.stdout.take().context("open the output of cargo")?;
    let stderr = child.stderr.take().context("open the error output of cargo")?;
    let errors = async {
        let (mut lines, mut text) = (BufReader::new(stderr).lines(), String::new());
        while let Some(line) = lines.next_line().await? {
            if line.contains("waiting for file lock") {
                detail.set("waiting for another cargo in this folder");
            }
            text.push_str(&line);
            text.push('\n');
        }
        Ok::<_, std::io::Error>(text)
    };
    let artifacts = async {
        let mut lines = BufReader::new(stdout).lines();
        let (mut count, mut found) = (0_u32, BTreeMap::new());
        while let Some(line) = lines.next_line().await? {
            let Ok(message) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            if message["reason"] == "compiler-artifact" {
                count += 1;
                detail.set(format_args!("{count} parts ready"));
            }
            if let Some((program, path)) = executable(&message, programs) {
                found.insert(program, path);
            }
        }
        Ok::<_, std::io::Error>(found)
    };
    let (said, found) = tokio::join!(errors, artifacts);
    let (said, found) = (
        said.context("read the messages of cargo")?,
        found.context("read the artifacts of cargo")?,
    );
    let status = child.wait().await.context("wait for cargo")?;
    if !status.success() {
        bail!(
            "cargo build in {} failed ({status}):\n{}",
            workspace.display(),
            said.trim()
        );
    }
    for program in programs {
        if !found.contains_key(program) {
            bail!("cargo build succeeded, but created no program {}", program.name());
        }
    }
    Ok(RustPrograms(found))
}

/// The program in a message of cargo, with its file.
fn executable(message: &Value, programs: &[Program]) -> Option<(Program, PathBuf)> {
    let path = message["executable"].as_str()?;
    let name = message["target"]["name"].as_str()?;
    let is_program = message["target"]["kind"]
        .as_array()?
        .iter()
        .any(|kind| kind == "bin");
    let program = programs.iter().find(|program| program.name() == name)?;
    is_program.then(|| (*program, PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_program_is_found_by_its_name() {
        let message = |name: &str, kind: &str| {
            json!({
                "reason": "compiler-artifact", "executable": "/w/target/debug/x",
                "target": {"name": name, "kind": [kind]},
            })
        };
        let all = &Program::ALL;
        let found = executable(&message("replumb-agent", "bin"), all);
        assert_eq!(found, Some((Program::Agent, PathBuf::from("/w/target/debug/x"))));
        assert_eq!(executable(&message("replumb-agent", "test"), all), None);
        assert_eq!(executable(&message("crds", "bin"), all), None);
        assert_eq!(
            executable(&message("replumb-agent", "bin"), &[Program::Traffic]),
            None
        );
    }

    #[test]
    fn a_program_that_was_not_requested_is_an_error_with_its_name() {
        let message = RustPrograms::default()
            .need(Program::Traffic)
            .unwrap_err()
            .to_string();
        assert!(message.contains("traffic"), "{message}");
    }
}
