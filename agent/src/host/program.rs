//! Runs the few programs that have no library: `nft`, the iptables of both backends, CNI plugins. Starts processes.

use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// How long a program may take. iptables itself waits for its lock for [`LOCK_SECONDS`].
const LIMIT: Duration = Duration::from_secs(30);
/// How long iptables waits for the lock that every iptables of the host takes.
pub const LOCK_SECONDS: &str = "10";

/// What a program may print: the rules of a node with 10 000 Services have about half as many bytes.
const MOST_OUTPUT: usize = 64 << 20;
/// What is kept of its complaints.
const MOST_COMPLAINTS: usize = 64 << 10;

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
    /// It printed too much.
    #[error("{command} printed more than {most} bytes and was killed")]
    TooMuch {
        /// The program with its arguments.
        command: String,
        /// So many it may print.
        most: usize,
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
            Self::TooMuch { .. } => "ProgramOutput",
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
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            match stdin.write_all(input.as_bytes()).await {
                // It ended before it had read everything: its own message says why.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                other => other?,
            }
        }
        Ok(())
    };
    // All at once: a program may print before it has read everything.
    let talk = async {
        let ((), stdout, stderr) = tokio::try_join!(
            feed,
            read_at_most(stdout, MOST_OUTPUT),
            read_at_most(stderr, MOST_COMPLAINTS)
        )?;
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Ok(None);
        };
        let status = child.wait().await?;
        Ok(Some(Output {
            status,
            stdout,
            stderr,
        }))
    };
    let Ok(output) = tokio::time::timeout(LIMIT, talk).await else {
        return Err(ProgramError::TimedOut {
            command: command_line(program, arguments),
        });
    };
    let Some(output) = output.map_err(pipe)? else {
        // It goes with its handle.
        return Err(ProgramError::TooMuch {
            command: command_line(program, arguments),
            most: MOST_OUTPUT,
        });
    };
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
    // Not copied where it is what it should be: it may be a large part of what the agent may have.
    Ok(String::from_utf8(output.stdout)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Everything that it prints; `None` where that is more.
async fn read_at_most(from: Option<impl AsyncRead + Unpin>, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(most as u64 + 1).read_to_end(&mut bytes).await?;
    }
    Ok((bytes.len() <= most).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_prints_without_end_is_killed_and_named() {
        let error = run("yes", &[], None).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "yes printed more than 67108864 bytes and was killed"
        );
        let line = "yes >&2";
        let error = run("sh", &["-c", line], None).await.unwrap_err();
        assert_eq!(error.category(), "ProgramOutput");
    }

    #[tokio::test]
    async fn a_program_that_prints_before_it_has_read_everything_is_heard_to_its_end() {
        let input = "line\n".repeat(100_000);
        assert_eq!(run("cat", &[], Some(&input)).await.unwrap(), input);
    }
}
