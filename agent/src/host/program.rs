//! Runs the programs that have no library: `nft`, iptables of both backends, CNI plugins. Starts processes.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use api::FailureCategory;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdout, Command};

/// Timeout of a program. iptables waits for its lock for [`LOCK_SECONDS`].
const LIMIT: Duration = Duration::from_secs(30);
/// How long iptables waits for the lock that all iptables processes of the host share.
pub const LOCK_SECONDS: &str = "10";

/// Maximum size of an output that is held completely.
const MOST_OUTPUT: usize = 64 << 20;
/// Maximum size of a line that [`lines()`] reads: rules have some hundred bytes.
const MOST_LINE: usize = 64 << 10;
/// Maximum memory for the kept lines: kube-proxy's rules of 20 000 Services need half of it.
const MOST_KEPT: usize = 32 << 20;
/// Maximum size of the error output.
const MOST_ERROR_OUTPUT: usize = 64 << 10;

/// A program failed.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// The program could not be started.
    #[error("could not start {program}; the agent's image needs the packages nftables and iptables")]
    Start {
        /// The program.
        program: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Reading from or writing to the program failed.
    #[error("could not read the output of {program} or write its input")]
    Pipe {
        /// The program.
        program: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The program ended with an error.
    #[error("{command} failed with {status}: {message}")]
    Refused {
        /// The program with its arguments.
        command: String,
        /// Exit status.
        status: String,
        /// Error output.
        message: String,
    },
    /// The program did not end.
    #[error("{command} did not end within {} s and was killed", LIMIT.as_secs())]
    TimedOut {
        /// The program with its arguments.
        command: String,
    },
    /// The program printed too much.
    #[error("{command} printed {what} and was killed")]
    TooMuch {
        /// The program with its arguments.
        command: String,
        /// The exceeded limit.
        what: String,
    },
    /// The program's output is malformed.
    #[error("output of {command} is malformed: {problem}")]
    Answer {
        /// The program with its arguments.
        command: String,
        /// The problem.
        problem: String,
    },
}

impl ProgramError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::Start { .. } => FailureCategory::ProgramMissing,
            Self::Pipe { .. } => FailureCategory::ProgramPipe,
            Self::Refused { .. } => FailureCategory::ProgramRefused,
            Self::TimedOut { .. } => FailureCategory::ProgramTimedOut,
            Self::TooMuch { .. } => FailureCategory::ProgramOutput,
            Self::Answer { .. } => FailureCategory::ProgramAnswer,
        }
    }
}

/// A program with its arguments, as on a command line.
pub fn command_line(program: &str, arguments: &[&str]) -> String {
    std::iter::once(program)
        .chain(arguments.iter().copied())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a program in the network namespace of the calling thread, writes `input` to it, and returns its output.
///
/// # Errors
///
/// The program cannot be started, exits with an error, does not end in time, or prints too much.
pub async fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<String, ProgramError> {
    run_with(program, arguments, &[], input).await
}

/// The same, with these variables added to the environment.
///
/// # Errors
///
/// The program cannot be started, exits with an error, does not end in time, or prints too much.
pub async fn run_with(
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
    input: Option<&str>,
) -> Result<String, ProgramError> {
    let read = async |from: ChildStdout| read_at_most(from, MOST_OUTPUT).await;
    let ended = start(program, arguments, environment, input, read).await?;
    if !ended.status.success() {
        // CNI plugins print errors on standard output.
        let message = if ended.errors.is_empty() {
            &ended.output
        } else {
            &ended.errors
        };
        return Err(refused(program, arguments, ended.status, message));
    }
    // Valid UTF-8 is not copied: the output may be a large part of the agent's memory limit.
    Ok(String::from_utf8(ended.output)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Runs a program, reads its output line by line, and returns the lines that `keep` selects. The size of the output is not
/// limited: of the other lines at most one is held.
///
/// # Errors
///
/// The program cannot be started, exits with an error, or does not end in time.
pub async fn lines(
    program: &str,
    arguments: &[&str],
    keep: impl FnMut(&str) -> bool,
) -> Result<Vec<String>, ProgramError> {
    let read = async |from: ChildStdout| kept_lines(from, keep).await;
    let ended = start(program, arguments, &[], None, read).await?;
    if !ended.status.success() {
        return Err(refused(program, arguments, ended.status, &ended.errors));
    }
    Ok(ended.output)
}

fn refused(program: &str, arguments: &[&str], status: ExitStatus, message: &[u8]) -> ProgramError {
    ProgramError::Refused {
        command: command_line(program, arguments),
        status: status.to_string(),
        message: String::from_utf8_lossy(message).trim().replace('\n', "; "),
    }
}

/// A program that has ended.
struct Ended<T> {
    status: ExitStatus,
    output: T,
    errors: Vec<u8>,
}

/// The output of a program, or the limit that it exceeded.
type Limited<T> = io::Result<Result<T, String>>;

/// Runs a program to its end; `read` reads its output.
async fn start<T>(
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
    input: Option<&str>,
    read: impl AsyncFnOnce(ChildStdout) -> Limited<T>,
) -> Result<Ended<T>, ProgramError> {
    let pipe = |source| ProgramError::Pipe {
        program: program.to_owned(),
        source,
    };
    let mut child = Command::new(program)
        .args(arguments)
        // One error message is matched (an incompatible table): messages have to be in English.
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
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(pipe(io::Error::other("no output pipe")));
    };
    let stdin = child.stdin.take();
    let feed = async {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            match stdin.write_all(input.as_bytes()).await {
                // The program ended before it had read all input: its own message has the reason.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                other => other?,
            }
        }
        Ok(())
    };
    // Input and output at the same time: a program may print before it has read all input.
    let finish = async {
        let ((), output, errors) =
            tokio::try_join!(feed, read(stdout), read_at_most(stderr, MOST_ERROR_OUTPUT))?;
        let (output, errors) = match (output, errors) {
            (Ok(output), Ok(errors)) => (output, errors),
            (Err(what), _) | (_, Err(what)) => return Ok(Err(what)),
        };
        Ok(Ok(Ended {
            status: child.wait().await?,
            output,
            errors,
        }))
    };
    let Ok(ended) = tokio::time::timeout(LIMIT, finish).await else {
        return Err(ProgramError::TimedOut {
            command: command_line(program, arguments),
        });
    };
    // Dropping the handle kills the program.
    ended.map_err(pipe)?.map_err(|what| ProgramError::TooMuch {
        command: command_line(program, arguments),
        what,
    })
}

/// Reads the whole output.
async fn read_at_most(from: impl AsyncRead + Unpin, most: usize) -> Limited<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most as u64 + 1).read_to_end(&mut bytes).await?;
    Ok(if bytes.len() <= most {
        Ok(bytes)
    } else {
        Err(format!("more than {most} bytes"))
    })
}

/// Reads the output, and returns the lines that `keep` selects.
async fn kept_lines(
    from: impl AsyncRead + Unpin,
    mut keep: impl FnMut(&str) -> bool,
) -> Limited<Vec<String>> {
    let mut from = BufReader::with_capacity(MOST_LINE, from);
    let (mut kept, mut bytes) = (Vec::new(), 0);
    let mut line = Vec::new();
    while (&mut from)
        .take(MOST_LINE as u64 + 1)
        .read_until(b'\n', &mut line)
        .await?
        > 0
    {
        if line.len() > MOST_LINE {
            return Ok(Err(format!("a line of more than {MOST_LINE} bytes")));
        }
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
        if keep(&text) {
            bytes += text.len() + size_of::<String>();
            if bytes > MOST_KEPT {
                return Ok(Err(format!("more than {MOST_KEPT} bytes of matching lines")));
            }
            kept.push(text.into_owned());
        }
        line.clear();
    }
    Ok(Ok(kept))
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
        assert_eq!(error.category(), FailureCategory::ProgramOutput);
    }

    /// Similar to the rules of 20 000 Services, with a few rules of flannel.
    #[tokio::test]
    async fn matching_lines_of_a_large_output_are_kept() {
        let script = "yes \"$(printf '%01000d' 0)\" | head -c 80000000; echo; echo asked; printf end";
        let is_asked = |line: &str| ["asked", "end"].contains(&line);
        let found = lines("sh", &["-c", script], is_asked).await.unwrap();
        assert_eq!(found, ["asked", "end"]);
        let error = run("sh", &["-c", script], None).await.unwrap_err();
        assert_eq!(
            error.category(),
            FailureCategory::ProgramOutput,
            "the whole output is too large"
        );
    }

    #[tokio::test]
    async fn a_long_line_and_many_matching_lines_are_errors() {
        let error = lines("cat", &["/dev/zero"], |_| false).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cat /dev/zero printed a line of more than 65536 bytes and was killed"
        );
        let error = lines("yes", &[], |_| true).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "yes printed more than 33554432 bytes of matching lines and was killed"
        );
    }

    #[tokio::test]
    async fn output_before_a_failure_does_not_count() {
        let error = lines("sh", &["-c", "echo half; echo no >&2; exit 3"], |_| true)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ProgramError::Refused { message, .. } if message == "no"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_program_that_prints_before_it_has_read_all_input_completes() {
        let input = "line\n".repeat(100_000);
        assert_eq!(run("cat", &[], Some(&input)).await.unwrap(), input);
    }
}
