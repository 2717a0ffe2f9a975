//! Building the workspace's own programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
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
    /// The traffic generator, which is the pause program too.
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

    fn package(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Coordinator => "coordinator",
            Self::CommandLine => "cli",
            Self::StandIn => "standin",
            Self::Traffic => "traffic",
        }
    }
}

/// Where the programs of the workspace are.
#[derive(Clone, Debug, Default)]
pub struct RustPrograms(BTreeMap<Program, PathBuf>);

impl RustPrograms {
    /// The program, if it was asked for.
    pub fn get(&self, program: Program) -> Option<PathBuf> {
        self.0.get(&program).cloned()
    }

    /// The program; an error if it was not asked for.
    pub fn need(&self, program: Program) -> Result<PathBuf> {
        self.get(program)
            .with_context(|| format!("the package {} was not built", program.package()))
    }
}

/// Builds programs of the workspace; cargo knows what is current.
pub async fn build(programs: &[Program], progress: &Progress) -> Result<RustPrograms> {
    if programs.is_empty() {
        return Ok(RustPrograms::default());
    }
    let detail = Detail::default();
    let names: Vec<&str> = programs.iter().map(|program| program.package()).collect();
    let title = format!("building {}", names.join(", "));
    progress.during(&title, &detail, compile(programs, &detail)).await
}

async fn compile(programs: &[Program], detail: &Detail) -> Result<RustPrograms> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace is above the lab")?;
    // `cargo lab` names the cargo that runs it.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command.args(["build", "--release", "--message-format=json-render-diagnostics"]);
    for program in programs {
        command.args(["--package", program.package()]);
    }
    let mut child = command
        .current_dir(workspace)
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
    let stdout = child.stdout.take().context("cargo has an output")?;
    let mut stderr = child.stderr.take().context("cargo has an error output")?;
    let errors = async {
        let mut text = String::new();
        stderr.read_to_string(&mut text).await.map(|_| text)
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
        said.context("read what cargo says")?,
        found.context("read what cargo has made")?,
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
            bail!(
                "cargo build ended well, but named no program of package {}",
                program.package()
            );
        }
    }
    Ok(RustPrograms(found))
}

/// The program that a message of cargo is about, with its file.
fn executable(message: &Value, programs: &[Program]) -> Option<(Program, PathBuf)> {
    let path = message["executable"].as_str()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.file_name()?.to_str()?;
    let is_program = message["target"]["kind"]
        .as_array()?
        .iter()
        .any(|kind| kind == "bin");
    let program = programs.iter().find(|program| program.package() == folder)?;
    // A package may have helpers of its own; the program is the one in main.rs.
    let is_main = Path::new(message["target"]["src_path"].as_str()?).ends_with("src/main.rs");
    (is_program && is_main).then(|| (*program, PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_program_of_a_package_is_the_one_in_its_main_file() {
        let message = |folder: &str, source: &str| {
            json!({
                "reason": "compiler-artifact", "executable": "/w/target/release/x",
                "manifest_path": format!("/w/{folder}/Cargo.toml"),
                "target": {"kind": ["bin"], "src_path": format!("/w/{folder}/{source}")},
            })
        };
        let all = &Program::ALL;
        let found = executable(&message("agent", "src/main.rs"), all);
        assert_eq!(
            found,
            Some((Program::Agent, PathBuf::from("/w/target/release/x")))
        );
        assert_eq!(executable(&message("agent", "src/bin/other.rs"), all), None);
        assert_eq!(executable(&message("api", "src/main.rs"), all), None);
        assert_eq!(
            executable(&message("agent", "src/main.rs"), &[Program::Traffic]),
            None
        );
    }

    #[test]
    fn a_program_that_was_not_asked_for_is_named() {
        let message = RustPrograms::default()
            .need(Program::Traffic)
            .unwrap_err()
            .to_string();
        assert!(message.contains("traffic"), "{message}");
    }
}
