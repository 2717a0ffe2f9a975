//! Runs the few programs that have no library: `nft`, the iptables of both backends, CNI plugins. Starts processes.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdout, Command};

/// How long a program may take. iptables itself waits for its lock for [`LOCK_SECONDS`].
const LIMIT: Duration = Duration::from_secs(30);
/// How long iptables waits for the lock that every iptables of the host takes.
pub const LOCK_SECONDS: &str = "10";

/// What a program may print of which everything is held.
const MOST_OUTPUT: usize = 64 << 20;
/// What one line may have where [`lines()`] looks at each: rules have some hundred bytes.
const MOST_LINE: usize = 64 << 10;
/// What is kept of the lines, with the place that each takes: kube-proxy's rules of 20 000 Services have half of it.
const MOST_KEPT: usize = 32 << 20;
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
    #[error("{command} printed {what} and was killed")]
    TooMuch {
        /// The program with its arguments.
        command: String,
        /// More of what than it may.
        what: String,
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
    let listen = async |from: ChildStdout| read_at_most(from, MOST_OUTPUT).await;
    let ended = start(program, arguments, environment, input, listen).await?;
    if !ended.status.success() {
        // CNI plugins say what is wrong where others print their answer.
        let said = if ended.complaints.is_empty() {
            &ended.output
        } else {
            &ended.complaints
        };
        return Err(refused(program, arguments, ended.status, said));
    }
    // Not copied where it is what it should be: it may be a large part of what the agent may have.
    Ok(String::from_utf8(ended.output)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Runs a program likewise, looks at each line when it is printed, and returns those that are to be kept. It may print as much as it
/// likes: no more than one line of the others is held.
pub async fn lines(
    program: &str,
    arguments: &[&str],
    keep: impl FnMut(&str) -> bool,
) -> Result<Vec<String>, ProgramError> {
    let listen = async |from: ChildStdout| kept_lines(from, keep).await;
    let ended = start(program, arguments, &[], None, listen).await?;
    if !ended.status.success() {
        return Err(refused(program, arguments, ended.status, &ended.complaints));
    }
    Ok(ended.output)
}

fn refused(program: &str, arguments: &[&str], status: ExitStatus, said: &[u8]) -> ProgramError {
    ProgramError::Refused {
        command: command_line(program, arguments),
        status: status.to_string(),
        message: String::from_utf8_lossy(said).trim().replace('\n', "; "),
    }
}

/// A program that has ended.
struct Ended<T> {
    status: ExitStatus,
    output: T,
    complaints: Vec<u8>,
}

/// What was heard of a program; else more of what it printed than it may.
type Heard<T> = io::Result<Result<T, String>>;

/// Runs a program to its end; `listen` makes something of what it prints.
async fn start<T>(
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
    input: Option<&str>,
    listen: impl AsyncFnOnce(ChildStdout) -> Heard<T>,
) -> Result<Ended<T>, ProgramError> {
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
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(pipe(io::Error::other("it has no output")));
    };
    let stdin = child.stdin.take();
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
        let ((), output, complaints) =
            tokio::try_join!(feed, listen(stdout), read_at_most(stderr, MOST_COMPLAINTS))?;
        let (output, complaints) = match (output, complaints) {
            (Ok(output), Ok(complaints)) => (output, complaints),
            (Err(what), _) | (_, Err(what)) => return Ok(Err(what)),
        };
        Ok(Ok(Ended {
            status: child.wait().await?,
            output,
            complaints,
        }))
    };
    let Ok(ended) = tokio::time::timeout(LIMIT, talk).await else {
        return Err(ProgramError::TimedOut {
            command: command_line(program, arguments),
        });
    };
    // It goes with its handle.
    ended.map_err(pipe)?.map_err(|what| ProgramError::TooMuch {
        command: command_line(program, arguments),
        what,
    })
}

/// Everything that it prints.
async fn read_at_most(from: impl AsyncRead + Unpin, most: usize) -> Heard<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most as u64 + 1).read_to_end(&mut bytes).await?;
    Ok(if bytes.len() <= most {
        Ok(bytes)
    } else {
        Err(format!("more than {most} bytes"))
    })
}

/// Those of its lines that are to be kept.
async fn kept_lines(from: impl AsyncRead + Unpin, mut keep: impl FnMut(&str) -> bool) -> Heard<Vec<String>> {
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
                return Ok(Err(format!("more than {MOST_KEPT} bytes of what is asked for")));
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
        assert_eq!(error.category(), "ProgramOutput");
    }

    /// As the rules of 20 000 Services, of which a handful is flannel's.
    #[tokio::test]
    async fn of_more_than_is_ever_held_the_lines_that_are_asked_for_are_kept() {
        let script = "yes \"$(printf '%01000d' 0)\" | head -c 80000000; echo; echo asked; printf end";
        let is_asked = |line: &str| ["asked", "end"].contains(&line);
        let found = lines("sh", &["-c", script], is_asked).await.unwrap();
        assert_eq!(found, ["asked", "end"]);
        let error = run("sh", &["-c", script], None).await.unwrap_err();
        assert_eq!(error.category(), "ProgramOutput", "all of it is too much");
    }

    #[tokio::test]
    async fn neither_a_line_nor_what_is_kept_is_without_end() {
        let error = lines("cat", &["/dev/zero"], |_| false).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cat /dev/zero printed a line of more than 65536 bytes and was killed"
        );
        let error = lines("yes", &[], |_| true).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "yes printed more than 33554432 bytes of what is asked for and was killed"
        );
    }

    #[tokio::test]
    async fn what_was_printed_before_a_program_failed_is_no_answer() {
        let error = lines("sh", &["-c", "echo half; echo no >&2; exit 3"], |_| true)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ProgramError::Refused { message, .. } if message == "no"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_program_that_prints_before_it_has_read_everything_is_heard_to_its_end() {
        let input = "line\n".repeat(100_000);
        assert_eq!(run("cat", &[], Some(&input)).await.unwrap(), input);
    }
}
