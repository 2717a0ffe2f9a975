//! The status file of v3's kube-controllers, and `check-status`, the readiness probe that reads it. v2.6 has neither.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// The file, in the container.
const FILE: &str = "/run/status.json";

/// Conditions by name.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Status {
    readiness: BTreeMap<String, Condition>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Condition {
    ready: bool,
    reason: String,
}

impl Status {
    /// Stores the result of a check.
    pub fn note(&mut self, name: &str, result: &Result<()>) {
        let condition = match result {
            Ok(()) => Condition {
                ready: true,
                reason: String::new(),
            },
            Err(error) => Condition {
                ready: false,
                reason: format!("{error:#}"),
            },
        };
        self.readiness.insert(name.to_owned(), condition);
    }

    /// Writes the file, in one step.
    pub fn write(&self) -> Result<()> {
        self.write_to(Path::new(FILE))
    }

    fn write_to(&self, path: &Path) -> Result<()> {
        let temporary = path.with_extension("tmp");
        let attempt = || -> Result<()> {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&temporary, serde_json::to_string(self)?)?;
            fs::rename(&temporary, path)?;
            Ok(())
        };
        attempt().with_context(|| format!("write {}", path.display()))
    }

    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("Failed to read status file {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
    }

    /// Ready if there is a condition, and every condition is ready.
    fn check(&self) -> Result<()> {
        let failed = self.readiness.values().filter(|condition| !condition.ready);
        let failed: Vec<&str> = failed.map(|condition| condition.reason.as_str()).collect();
        if self.readiness.is_empty() {
            bail!("no condition is known yet");
        }
        if !failed.is_empty() {
            bail!("{}", failed.join("; "));
        }
        Ok(())
    }
}

/// `check-status -r`.
pub fn main(arguments: &[String]) -> ExitCode {
    if !arguments
        .iter()
        .any(|argument| argument == "-r" || argument == "--ready")
    {
        println!("No command specified to check-status");
        return ExitCode::FAILURE;
    }
    match Status::read(Path::new(FILE)).and_then(|status| status.check()) {
        Ok(()) => {
            println!("Ready");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_ready_when_every_check_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status.json");
        assert!(Status::read(&path).is_err());
        let mut status = Status::default();
        assert!(status.check().is_err());
        status.note("CalicoDatastore", &Ok(()));
        status.note("KubeAPIServer", &Err(anyhow::anyhow!("away")));
        status.write_to(&path).unwrap();
        let read = Status::read(&path).unwrap();
        assert_eq!(read, status);
        assert_eq!(read.check().unwrap_err().to_string(), "away");
        status.note("KubeAPIServer", &Ok(()));
        status.check().unwrap();
    }
}
