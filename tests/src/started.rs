//! Starts programs and waits until they are ready: a program that ends instead is reported at once, with its output.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

/// Number of the last log lines that are shown.
const SHOWN: usize = 5;
/// Number of attempts to start a program whose port another program has taken meanwhile.
const TRIES: usize = 3;

/// A running program. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

/// A program has ended that should run.
#[derive(Debug)]
pub struct Ended {
    name: String,
    log: PathBuf,
    status: ExitStatus,
    /// The last lines of the output, the oldest first.
    said: String,
}

impl Process {
    /// Starts a program with its output in this log.
    pub fn start(name: &str, log: PathBuf, command: &mut Command) -> Result<Self> {
        let out = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let errors = out
            .try_clone()
            .with_context(|| format!("open {} again", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("run {name} by {}", command.get_program().display()))?;
        Ok(Self {
            name: name.to_owned(),
            log,
            child,
        })
    }

    /// The process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, if the program has ended.
    pub fn ended(&mut self) -> Result<Option<Ended>> {
        let status = self
            .child
            .try_wait()
            .with_context(|| format!("check {}", self.name))?;
        Ok(status.map(|status| Ended {
            name: self.name.clone(),
            log: self.log.clone(),
            status,
            said: last_lines(&self.log),
        }))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A program that has ended already cannot be killed, but must be waited for all the same.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

impl Ended {
    /// Whether the program has ended because another program has its port.
    fn is_port_conflict(&self) -> bool {
        self.said.to_lowercase().contains("address already in use")
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            log,
            status,
            said,
        } = self;
        write!(
            formatter,
            "{name} has ended ({status}); its last lines in {}:\n{said}",
            log.display()
        )
    }
}

impl std::error::Error for Ended {}

/// Starts a program that listens on ports of the lab, and again with other ports if another program has taken one of
/// them meanwhile.
pub async fn on_free_ports<T>(mut start: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    for _ in 1..TRIES {
        match start().await {
            Err(error) if error.downcast_ref().is_some_and(Ended::is_port_conflict) => {
                eprintln!("{error:#}\nstarting again on other ports");
            }
            ended => return ended,
        }
    }
    start().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::wait::{Observation, until};

    /// Waits for a program that prints this text and ends.
    async fn waited_for(folder: &Path, says: &str) -> Result<()> {
        let script = format!("echo first; echo '{says}' >&2; exit 7");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let mut process = Process::start("server", folder.join("server.log"), &mut command)?;
        until("the server", Duration::from_mins(2), folder, async || {
            Ok(match process.ended()? {
                Some(ended) => Observation::Never(ended.into()),
                None => Observation::NotYet("it runs".to_owned()),
            })
        })
        .await
    }

    #[tokio::test]
    async fn a_program_that_ends_is_reported_at_once_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let error = waited_for(folder.path(), "no such flag").await.unwrap_err();
        let said = format!("{error:#}");
        for words in [
            "the server",
            "server has ended",
            "exit status: 7",
            "first\nno such flag",
            "server.log",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }

    #[tokio::test]
    async fn only_a_start_on_a_taken_port_is_repeated_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let tries = async |says: &str, failures: usize| {
            let mut tries = 0;
            let ended = on_free_ports(async || {
                tries += 1;
                if tries > failures {
                    return Ok(());
                }
                waited_for(folder.path(), says).await
            })
            .await;
            (tries, ended.is_ok())
        };
        let taken = "listen tcp 127.0.0.1:20001: bind: address already in use";
        assert_eq!(tries(taken, 1).await, (2, true));
        assert_eq!(tries(taken, 9).await, (TRIES, false));
        assert_eq!(
            tries("Error: Address already in use (os error 98)", 1).await,
            (2, true)
        );
        assert_eq!(tries("no such flag", 1).await, (1, false));
    }

    #[test]
    fn a_dropped_program_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        let mut process = Process::start("sleep", folder.path().join("log"), command.arg("600")).unwrap();
        assert!(process.ended().unwrap().is_none());
        let place = format!("/proc/{}", process.id());
        assert!(Path::new(&place).exists());
        drop(process);
        assert!(!Path::new(&place).exists());
    }
}
