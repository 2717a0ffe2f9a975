//! Runs the few programs that have no library: `nft`, the iptables of both backends, CNI plugins. Starts processes.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// How long a program may take. iptables itself waits for its lock for [`LOCK_SECONDS`].
const LIMIT: Duration = Duration::from_secs(30);
/// How long iptables waits for the lock that every iptables of the host takes.
pub const LOCK_SECONDS: &str = "10";

/// Why a program gave no answer.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// It could not be started.
    #[error("could not start {program}; the agent's image needs the packages nftables and iptables")]
    Start {
        /// The program.
        program: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// It was started and could not be talked to.
    #[error("could not talk to {program}")]
    Pipe {
        /// The program.
        program: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// It said no.
    #[error("{command} failed with {status}: {message}")]
    Refused {
        /// The program with its arguments.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        message: String,
    },
    /// It did not end.
    #[error("{command} did not end within {} s and was killed", LIMIT.as_secs())]
    TimedOut {
        /// The program with its arguments.
        command: String,
    },
    /// Its answer was not understood.
    #[error("the answer of {command} was not understood: {problem}")]
    Answer {
        /// The program with its arguments.
        command: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl ProgramError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Start { .. } => "ProgramMissing",
            Self::Pipe { .. } => "ProgramPipe",
            Self::Refused { .. } => "ProgramRefused",
            Self::TimedOut { .. } => "ProgramTimedOut",
            Self::Answer { .. } => "ProgramAnswer",
        }
    }
}

/// A program with its arguments, as a person would type it.
pub fn command_line(program: &str, arguments: &[&str]) -> String {
    std::iter::once(program)
        .chain(arguments.iter().copied())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a program in the network namespace of the calling thread, feeds it `input` and returns what it printed.
pub async fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<String, ProgramError> {
    run_with(program, arguments, &[], input).await
}

/// The same, with these variables in its environment besides the agent's own.
pub async fn run_with(
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
    input: Option<&str>,
) -> Result<String, ProgramError> {
    let pipe = |source| ProgramError::Pipe {
        program: program.to_owned(),
        source,
    };
    let mut child = Command::new(program)
        .args(arguments)
        // Messages are matched in one place (a missing chain): they have to be in English.
        .env("LC_ALL", "C")
        .envs(environment.iter().copied())
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| ProgramError::Start {
            program: program.to_owned(),
            source,
        })?;
    let stdin = child.stdin.take();
    let talk = async {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            match stdin.write_all(input.as_bytes()).await {
                // It ended before it had read everything: its own message says why.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                other => other?,
            }
        }
        child.wait_with_output().await
    };
    let Ok(output) = tokio::time::timeout(LIMIT, talk).await else {
        return Err(ProgramError::TimedOut {
            command: command_line(program, arguments),
        });
    };
    let output = output.map_err(pipe)?;
    if !output.status.success() {
        // CNI plugins say what is wrong where others print their answer.
        let said = if output.stderr.is_empty() {
            &output.stdout
        } else {
            &output.stderr
        };
        return Err(ProgramError::Refused {
            command: command_line(program, arguments),
            status: output.status.to_string(),
            message: String::from_utf8_lossy(said).trim().replace('\n', "; "),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
