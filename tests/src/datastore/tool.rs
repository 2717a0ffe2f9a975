//! Runs `kubectl replumb datastore`, as a user does.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::process::{Child, Command};

const LIMIT: Duration = Duration::from_mins(5);

/// The program, and the addresses of both stores.
#[derive(Clone, Debug)]
pub struct Tool {
    /// The program.
    pub program: PathBuf,
    /// The environment: `APIV1_ETCD_ENDPOINTS`, `ETCD_ENDPOINTS` and other needed variables. No variable is inherited.
    pub environment: Vec<(String, String)>,
    /// `--output-dir`.
    pub folder: PathBuf,
}

/// Output of the tool.
#[derive(Clone, Debug)]
pub struct ToolOutput {
    /// The exit code; `None` if the tool was killed.
    pub code: Option<i32>,
    /// Standard output.
    pub answer: String,
    /// Standard error.
    pub notes: String,
}

impl ToolOutput {
    /// Both outputs, for messages.
    pub fn all(&self) -> String {
        format!("{}\n{}", self.notes.trim(), self.answer.trim())
    }
}

impl Tool {
    /// With these endpoints.
    pub fn new(program: &Path, v2: &str, v3: &str, folder: &Path) -> Self {
        Self {
            program: program.to_owned(),
            environment: vec![
                ("APIV1_ETCD_ENDPOINTS".to_owned(), v2.to_owned()),
                ("ETCD_ENDPOINTS".to_owned(), v3.to_owned()),
            ],
            folder: folder.to_owned(),
        }
    }

    /// Starts the tool without a wait. The tool ends when the child is dropped.
    pub fn spawn(&self, arguments: &[&str]) -> Result<Child> {
        Command::new(&self.program)
            .arg("datastore")
            .args(arguments)
            .arg("--output-dir")
            .arg(&self.folder)
            .env_clear()
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("run {}", self.program.display()))
    }

    /// Runs the tool to its end.
    pub async fn run(&self, arguments: &[&str]) -> Result<ToolOutput> {
        let what = || format!("kubectl replumb datastore {}", arguments.join(" "));
        let output = tokio::time::timeout(LIMIT, self.spawn(arguments)?.wait_with_output())
            .await
            .with_context(|| format!("{} does not end", what()))?
            .with_context(what)?;
        Ok(ToolOutput {
            code: output.status.code(),
            answer: String::from_utf8_lossy(&output.stdout).into_owned(),
            notes: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// `status -o json`.
    pub async fn status(&self) -> Result<Value> {
        let said = self.run(&["status", "-o", "json"]).await?;
        serde_json::from_str(&said.answer).with_context(|| format!("datastore status: {}", said.all()))
    }
}
