//! Runs the same `kubectl-replumb` that users have, in the same way.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;

use crate::cluster::Cluster;

/// Limit of a command that only reads, or starts a migration.
const LIMIT: Duration = Duration::from_mins(4);

/// The meaning of the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0.
    Done,
    /// 1.
    Error,
    /// 2.
    Refused,
    /// 3.
    Paused,
    /// Anything else, or a signal.
    Other(Option<i32>),
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// The exit code's meaning.
    pub exit: Exit,
    /// Standard output followed by standard error.
    pub text: String,
}

impl Output {
    /// The answer of a command with `--output json`: the first JSON object, with notes behind it.
    pub fn first_object(&self) -> Result<Value> {
        let start = self.text.find('{').context("found no object")?;
        let mut objects = serde_json::Deserializer::from_str(&self.text[start..]).into_iter();
        objects
            .next()
            .context("found no object")?
            .context("parse the object")
    }
}

/// Runs `kubectl-replumb` against one cluster.
#[derive(Clone, Debug)]
pub struct Operator {
    program: PathBuf,
    kubeconfig: PathBuf,
    folder: PathBuf,
}

impl Operator {
    /// Runs this program against this cluster.
    pub fn new(cluster: &Cluster, program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: cluster.kubeconfig(),
            folder: cluster.directory().path().to_owned(),
        }
    }

    /// Writes a manifest for `--filename`.
    pub fn write_manifest(&self, manifest: &Value) -> Result<PathBuf> {
        let file = self.folder.join("migration.json");
        std::fs::write(&file, serde_json::to_string_pretty(manifest)?)
            .with_context(|| format!("write {}", file.display()))?;
        Ok(file)
    }

    /// Runs a command until it exits.
    pub async fn run(&self, arguments: &[&str]) -> Result<Output> {
        self.run_within(arguments, LIMIT, false).await
    }

    /// Runs a command and prints its output; another exit code is an error.
    pub async fn expect(&self, exit: Exit, arguments: &[&str]) -> Result<Output> {
        self.expect_within(exit, arguments, LIMIT).await
    }

    /// Like [`Operator::expect`], with another limit.
    pub async fn expect_within(&self, exit: Exit, arguments: &[&str], limit: Duration) -> Result<Output> {
        let output = self.run_within(arguments, limit, true).await?;
        if output.exit != exit {
            bail!(
                "`kubectl replumb {}` ended with {:?}, expected {exit:?}; output:\n{}",
                arguments.join(" "),
                output.exit,
                output.text
            );
        }
        Ok(output)
    }

    async fn run_within(&self, arguments: &[&str], limit: Duration, show: bool) -> Result<Output> {
        let what = format!("kubectl replumb {}", arguments.join(" "));
        let mut child = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        let stdout = child.stdout.take().context("take its standard output")?;
        let stderr = child.stderr.take().context("take its standard error")?;
        let all = async {
            let (output, errors) = tokio::try_join!(lines(stdout, show), lines(stderr, show))?;
            let status = child.wait().await?;
            Ok::<_, std::io::Error>((status, output + &errors))
        };
        let (status, text) = tokio::time::timeout(limit, all)
            .await
            .with_context(|| format!("`{what}` did not end within {} s", limit.as_secs()))?
            .with_context(|| format!("run `{what}`"))?;
        let exit = match status.code() {
            Some(0) => Exit::Done,
            Some(1) => Exit::Error,
            Some(2) => Exit::Refused,
            Some(3) => Exit::Paused,
            other => Exit::Other(other),
        };
        Ok(Output { exit, text })
    }
}

async fn lines(from: impl AsyncRead + Unpin, show: bool) -> Result<String, std::io::Error> {
    let mut all = String::new();
    let mut lines = BufReader::new(from).lines();
    while let Some(line) = lines.next_line().await? {
        if show {
            println!("    {line}");
        }
        all.push_str(&line);
        all.push('\n');
    }
    Ok(all)
}
