//! Finds running processes of the host. Reads /proc: files of other processes on separate threads, since each read may never end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use api::FailureCategory;
use nix::errno::Errno;
use thiserror::Error;

use super::files::{FileError, read_at_most};
use super::slow_read::{self, BoundedReads, SlowReadError, Unread};

/// Bytes that are read: `stat` is shorter, and the first argument of a command line fits.
const MOST: usize = 4096;
/// Bytes that are read of a whole command line.
const MOST_ARGUMENTS: usize = 64 << 10;
/// Maximum number of unreadable processes that are named.
const MOST_NAMED: usize = 8;

/// The host's processes could not be read.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// /proc could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The reading thread failed.
    #[error(transparent)]
    Apart(#[from] SlowReadError),
    /// The agent is process 1: only the agent's own processes are visible.
    #[error("processes of the host are not visible to the agent: set hostPID: true in its pod")]
    OwnNamespace,
}

impl ProcessError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::File(_) | Self::Apart(_) => FailureCategory::ProcessList,
            Self::OwnNamespace => FailureCategory::HostPidMissing,
        }
    }
}

/// The requested names that run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Names with a living process in the agent's own network namespace, and the numbers of these processes.
    pub names: BTreeMap<&'static str, BTreeSet<u32>>,
    /// Processes that may have one of the names and could not be read, one text each.
    pub unread: Vec<String>,
}

impl Running {
    /// The numbers of the processes with this name.
    pub fn numbers(&self, name: &str) -> Vec<u32> {
        self.names.get(name).into_iter().flatten().copied().collect()
    }
}

/// Reader of processes. The last known name of a process is kept while the process cannot be read. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    stat: BoundedReads<u32>,
    command_line: BoundedReads<u32>,
    arguments: BoundedReads<u32>,
    seen: Arc<Mutex<BTreeMap<Identity, Option<String>>>>,
}

/// Identity of a command line: the kernel reuses process numbers, and a process may execute another program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    number: u32,
    started: u64,
    command: String,
}

impl Processes {
    /// The names that a process in the agent's own network namespace has.
    ///
    /// Processes of other nodes on the same machine (a node inside a node) are recognized by their network namespace. If the
    /// namespace cannot be read, the process counts: waiting for another node's process is safer than overlooking one of this
    /// node.
    ///
    /// # Errors
    ///
    /// The agent runs in a PID namespace of its own, or `/proc` cannot be listed in time.
    pub async fn running(
        &self,
        proc: &Path,
        names: &'static [&'static str],
    ) -> Result<Running, ProcessError> {
        if nix::unistd::getpid().as_raw() == 1 {
            return Err(ProcessError::OwnNamespace);
        }
        let (reader, proc) = (self.clone(), proc.to_owned());
        slow_read::read("the host's processes", move || reader.read(&proc, names)).await?
    }

    /// The command line of a process, word by word.
    ///
    /// # Errors
    ///
    /// The process cannot be read in time, or has ended.
    pub async fn arguments(&self, proc: &Path, number: u32) -> Result<Vec<String>, String> {
        let (reads, proc) = (self.arguments.clone(), proc.to_owned());
        let read = move || {
            let read = reads.read(vec![number], move |number| {
                read_at_most(&proc.join(number.to_string()).join("cmdline"), MOST_ARGUMENTS)
            });
            read.into_iter().next().map(|(_, read)| read)
        };
        let bytes = match slow_read::read("the command line of the container runtime", read).await {
            Ok(Some(Ok(Ok(bytes)))) if !bytes.is_empty() => bytes,
            Ok(Some(Ok(Ok(_)) | Err(Unread::Ended)) | None) => {
                return Err(format!("process {number} has ended"));
            }
            Ok(Some(Ok(Err(error)))) => return Err(Problem::Refused(error).text(number, None)),
            Ok(Some(Err(why))) => return Err(Problem::Unread(why).text(number, None)),
            Err(error) => return Err(error.to_string()),
        };
        let words = bytes.split(|byte| *byte == 0);
        let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
        Ok(words.filter(|word| !word.is_empty()).collect())
    }

    fn read(&self, proc: &Path, names: &'static [&'static str]) -> Result<Running, ProcessError> {
        let own = network(&proc.join("thread-self"));
        let mut unread = Vec::new();
        let mut found = BTreeMap::<_, BTreeSet<u32>>::new();
        let mut others = BTreeMap::new();
        let folder = proc.to_owned();
        let stats = self.stat.read(numbers(proc)?, move |number| {
            living(&folder.join(number.to_string()), *number, own)
        });
        for (number, stat) in stats {
            match stat.map_err(Problem::Unread).flatten() {
                Ok(None) => {}
                Ok(Some(process)) => match names.iter().find(|name| process.command == **name) {
                    Some(name) => {
                        found.entry(*name).or_default().insert(number);
                    }
                    None => {
                        others.insert(number, process);
                    }
                },
                Err(problem) => unread.push(problem.text(number, None)),
            }
        }
        // A process may rename itself; its first argument still names the started program.
        let folder = proc.to_owned();
        let command_lines = self
            .command_line
            .read(others.keys().copied().collect(), move |number| {
                first_argument(&folder.join(number.to_string()))
            });
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = BTreeMap::new();
        for (number, command_line) in command_lines {
            let Some(identity) = others.remove(&number) else {
                continue;
            };
            let first = match command_line.map_err(Problem::Unread).flatten() {
                Ok(first) => first,
                // The last known name counts: a process that hangs has not executed another program meanwhile.
                Err(problem) => {
                    let Some(first) = seen.get(&identity) else {
                        unread.push(problem.text(number, Some(&identity.command)));
                        continue;
                    };
                    first.clone()
                }
            };
            if let Some(name) = names.iter().find(|name| first.as_deref() == Some(**name)) {
                found.entry(*name).or_default().insert(number);
            }
            now.insert(identity, first);
        }
        *seen = now;
        Ok(Running {
            names: found,
            unread: bounded(unread),
        })
    }
}

/// Reason why a process could not be read.
#[derive(Debug)]
enum Problem {
    Unread(Unread),
    Refused(io::Error),
    Malformed,
}

impl Problem {
    fn text(&self, number: u32, command: Option<&str>) -> String {
        let process = command.map_or_else(
            || format!("process {number}"),
            |command| format!("process {number} ({command})"),
        );
        match self {
            Self::Unread(Unread::Stuck) => format!("could not read {process} within 2 s"),
            Self::Unread(why @ (Unread::Late | Unread::NoThread | Unread::Ended)) => {
                format!("could not read {process}: {why}")
            }
            Self::Refused(error) => format!("could not read {process}: {error}"),
            Self::Malformed => format!("could not read {process}: stat is malformed"),
        }
    }
}

/// The first few texts, and the number of the others.
fn bounded(mut texts: Vec<String>) -> Vec<String> {
    let more = texts.len().saturating_sub(MOST_NAMED);
    texts.truncate(MOST_NAMED);
    if more > 0 {
        texts.push(format!("further processes that could not be read: {more}"));
    }
    texts
}

/// The numbers of all processes.
///
/// # Errors
///
/// `/proc` cannot be listed.
pub fn numbers(proc: &Path) -> Result<Vec<u32>, FileError> {
    let entries = fs::read_dir(proc).map_err(FileError::of("list folder", proc))?;
    let mut numbers = Vec::new();
    for entry in entries {
        let entry = entry.map_err(FileError::of("list folder", proc))?;
        numbers.extend(
            entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok()),
        );
    }
    Ok(numbers)
}

/// The identity of a living process in the same network namespace; `None` for other processes.
fn living(process: &Path, number: u32, own: Option<u64>) -> Result<Option<Identity>, Problem> {
    let Some(bytes) = unless_ended(read_at_most(&process.join("stat"), MOST))? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    // pid (name) state ...: the name may contain any character, also a bracket.
    let (Some(open), Some(close)) = (text.find('('), text.rfind(')')) else {
        return Err(Problem::Malformed);
    };
    let command = text.get(open + 1..close).unwrap_or_default();
    let mut rest = text.get(close + 1..).unwrap_or_default().split_ascii_whitespace();
    let state = rest.next().ok_or(Problem::Malformed)?;
    if matches!(state, "Z" | "X") || !shares_network(process, own) {
        return Ok(None);
    }
    Ok(Some(Identity {
        number,
        // Field 22 of proc(5); the state is field 3.
        started: rest
            .nth(18)
            .and_then(|field| field.parse().ok())
            .unwrap_or_default(),
        command: command.to_owned(),
    }))
}

/// The file name of the started program; `None` for a kernel thread or an ended process.
fn first_argument(process: &Path) -> Result<Option<String>, Problem> {
    let Some(bytes) = unless_ended(read_at_most(&process.join("cmdline"), MOST))? else {
        return Ok(None);
    };
    let first = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let path = PathBuf::from(String::from_utf8_lossy(first).into_owned());
    Ok(path.file_name().map(|name| name.to_string_lossy().into_owned()))
}

/// The result of a read; `None` if the process has ended. ESRCH means that it ended between opening and reading.
fn unless_ended<T>(read: io::Result<T>) -> Result<Option<T>, Problem> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(Errno::ESRCH as i32) =>
        {
            Ok(None)
        }
        Err(error) => Err(Problem::Refused(error)),
    }
}

fn shares_network(process: &Path, own: Option<u64>) -> bool {
    match (network(process), own) {
        (Some(theirs), Some(own)) => theirs == own,
        (Some(_) | None, _) => true,
    }
}

/// Identifies the network namespace of a process: the kernel has separate files for each. The link `ns/net` identifies it, too,
/// but reading that link needs a capability.
fn network(process: &Path) -> Option<u64> {
    fs::metadata(process.join("net/dev")).ok().map(|file| file.ino())
}

#[cfg(test)]
mod tests;
