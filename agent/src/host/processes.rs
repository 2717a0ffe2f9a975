//! Which processes run on the host. Reads /proc: files of other processes apart, since each of them may never answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use thiserror::Error;

use super::apart::{self, ApartError, Each, Unread};
use super::files::{FileError, read_at_most};

/// The kernel writes less into `stat`, and no more than this of a command line is needed for its first argument.
const MOST: usize = 4096;
/// So many processes that could not be read are named.
const MOST_NAMED: usize = 8;

/// Why the host's processes could not be seen.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// /proc could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no thread that reads them.
    #[error(transparent)]
    Apart(#[from] ApartError),
    /// The agent is process 1: it sees itself and nothing of its host.
    #[error("the agent sees its own processes only; its pod needs hostPID: true")]
    OwnNamespace,
}

impl ProcessError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        match self {
            Self::File(_) | Self::Apart(_) => "ProcessList",
            Self::OwnNamespace => "HostPidMissing",
        }
    }
}

/// Which of the names that were asked for run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Names that a living process in the agent's own network namespace has.
    pub names: BTreeSet<&'static str>,
    /// Processes that may have one of the names and could not be read, one sentence each.
    pub unread: Vec<String>,
}

/// The eye on the processes. It remembers what each of them was, for as long as that one cannot be read. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    stat: Each<u32>,
    command_line: Each<u32>,
    seen: Arc<Mutex<BTreeMap<Identity, Option<String>>>>,
}

/// Whose command line it is: a number is given again to another process, and a process may become another program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    number: u32,
    started: u64,
    command: String,
}

impl Processes {
    /// Which of these names a process in the agent's own network namespace has.
    ///
    /// Processes of other namespaces (a node inside a node) are told apart by their network namespace. Where that
    /// cannot be read, the process counts: to wait for one that is not ours is safer than to overlook one that is.
    pub async fn running(
        &self,
        proc: &Path,
        names: &'static [&'static str],
    ) -> Result<Running, ProcessError> {
        if nix::unistd::getpid().as_raw() == 1 {
            return Err(ProcessError::OwnNamespace);
        }
        let (eye, proc) = (self.clone(), proc.to_owned());
        apart::read("the host's processes", move || eye.look(&proc, names)).await?
    }

    fn look(&self, proc: &Path, names: &'static [&'static str]) -> Result<Running, ProcessError> {
        let own = network(&proc.join("thread-self"));
        let mut unread = Vec::new();
        let mut found = BTreeSet::new();
        let mut others = BTreeMap::new();
        let folder = proc.to_owned();
        let said = self.stat.read(numbers(proc)?, move |number| {
            living(&folder.join(number.to_string()), *number, own)
        });
        for (number, said) in said {
            match said.map_err(Problem::Unread).flatten() {
                Ok(None) => {}
                Ok(Some(process)) => match names.iter().find(|name| process.command == **name) {
                    Some(name) => {
                        found.insert(*name);
                    }
                    None => {
                        others.insert(number, process);
                    }
                },
                Err(problem) => unread.push(problem.sentence(number, None)),
            }
        }
        // A thread may rename itself; the first argument still says what was started.
        let folder = proc.to_owned();
        let said = self
            .command_line
            .read(others.keys().copied().collect(), move |number| {
                first_argument(&folder.join(number.to_string()))
            });
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = BTreeMap::new();
        for (number, said) in said {
            let Some(identity) = others.remove(&number) else {
                continue;
            };
            let first = match said.map_err(Problem::Unread).flatten() {
                Ok(first) => first,
                // It is what it was: a process that cannot be read has not become another program meanwhile.
                Err(problem) => {
                    let Some(first) = seen.get(&identity) else {
                        unread.push(problem.sentence(number, Some(&identity.command)));
                        continue;
                    };
                    first.clone()
                }
            };
            found.extend(names.iter().find(|name| first.as_deref() == Some(**name)));
            now.insert(identity, first);
        }
        *seen = now;
        Ok(Running {
            names: found,
            unread: bounded(unread),
        })
    }
}

/// Why something of a process is not known.
#[derive(Debug)]
enum Problem {
    Unread(Unread),
    Refused(io::Error),
    NotUnderstood,
}

impl Problem {
    fn sentence(&self, number: u32, command: Option<&str>) -> String {
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
            Self::NotUnderstood => format!("could not read {process}: its stat is not understood"),
        }
    }
}

/// The first few, and how many more.
fn bounded(mut sentences: Vec<String>) -> Vec<String> {
    let more = sentences.len().saturating_sub(MOST_NAMED);
    sentences.truncate(MOST_NAMED);
    if more > 0 {
        sentences.push(format!("could not read {more} more processes"));
    }
    sentences
}

/// The numbers of all processes.
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

/// Who this process is, if it lives and shares the network.
fn living(process: &Path, number: u32, own: Option<u64>) -> Result<Option<Identity>, Problem> {
    let Some(bytes) = there(read_at_most(&process.join("stat"), MOST))? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    // pid (name) state ...: the name may hold anything, a bracket too.
    let (Some(open), Some(close)) = (text.find('('), text.rfind(')')) else {
        return Err(Problem::NotUnderstood);
    };
    let command = text.get(open + 1..close).unwrap_or_default();
    let mut rest = text.get(close + 1..).unwrap_or_default().split_ascii_whitespace();
    let state = rest.next().ok_or(Problem::NotUnderstood)?;
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

/// The file name of what was started; `None` where there is no such (a thread of the kernel) or the process has ended.
fn first_argument(process: &Path) -> Result<Option<String>, Problem> {
    let Some(bytes) = there(read_at_most(&process.join("cmdline"), MOST))? else {
        return Ok(None);
    };
    let first = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let path = PathBuf::from(String::from_utf8_lossy(first).into_owned());
    Ok(path.file_name().map(|name| name.to_string_lossy().into_owned()))
}

/// What was read; `None` where the process has ended. ESRCH is one that ended between opening and reading.
fn there<T>(read: io::Result<T>) -> Result<Option<T>, Problem> {
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

/// What tells a process's network namespace from others: the kernel has files of its own for each. The link `ns/net` says the same to
/// those alone who may trace the process, which takes a capability.
fn network(process: &Path) -> Option<u64> {
    fs::metadata(process.join("net/dev")).ok().map(|file| file.ino())
}

#[cfg(test)]
#[path = "processes_tests.rs"]
mod tests;
