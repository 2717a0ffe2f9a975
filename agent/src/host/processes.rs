//! Which processes run on the host. Reads /proc.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::files::FileError;

/// Why the host's processes could not be seen.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// /proc could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The agent is process 1: it sees itself and nothing of its host.
    #[error("the agent sees its own processes only; its pod needs hostPID: true")]
    OwnNamespace,
}

impl ProcessError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        match self {
            Self::File(_) => "ProcessList",
            Self::OwnNamespace => "HostPidMissing",
        }
    }
}

/// Which of these names a process in the agent's own network namespace has.
///
/// Processes of other namespaces (a node inside a node) are told apart by their network namespace. Where that
/// cannot be read, the process counts: to wait for one that is not ours is safer than to overlook one that is.
pub fn running(proc: &Path, names: &[&'static str]) -> Result<BTreeSet<&'static str>, ProcessError> {
    if nix::unistd::getpid().as_raw() == 1 {
        return Err(ProcessError::OwnNamespace);
    }
    let own = fs::read_link(proc.join("thread-self/ns/net")).ok();
    let entries = fs::read_dir(proc).map_err(FileError::of("list folder", proc))?;
    let mut found = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(FileError::of("list folder", proc))?;
        if !entry
            .file_name()
            .to_string_lossy()
            .bytes()
            .all(|byte| byte.is_ascii_digit())
        {
            continue;
        }
        if let Some(name) = living_name(&entry.path(), names)?
            && shares_network(&entry.path(), own.as_ref())
        {
            found.insert(name);
        }
    }
    Ok(found)
}

/// Which of these names this process has, if it lives.
fn living_name(process: &Path, names: &[&'static str]) -> Result<Option<&'static str>, ProcessError> {
    let stat = process.join("stat");
    let text = match fs::read(&stat) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        // ESRCH is a process that ended between opening and reading.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(FileError::of("read", &stat)(error).into()),
    };
    // pid (name) state ...: the name may hold anything, a bracket too.
    let (Some(open), Some(close)) = (text.find('('), text.rfind(')')) else {
        return Ok(None);
    };
    let command = text.get(open + 1..close).unwrap_or_default();
    let state = text
        .get(close + 1..)
        .unwrap_or_default()
        .trim_start()
        .chars()
        .next();
    if matches!(state, Some('Z' | 'X')) {
        return Ok(None);
    }
    // A thread may rename itself; the first argument still says what was started.
    let first = first_argument(process);
    Ok(names
        .iter()
        .copied()
        .find(|name| command == *name || first.as_deref() == Some(*name)))
}

fn first_argument(process: &Path) -> Option<String> {
    let bytes = fs::read(process.join("cmdline")).ok()?;
    let first = bytes.split(|byte| *byte == 0).next()?;
    let path = PathBuf::from(String::from_utf8_lossy(first).into_owned());
    Some(path.file_name()?.to_string_lossy().into_owned())
}

fn shares_network(process: &Path, own: Option<&PathBuf>) -> bool {
    match (fs::read_link(process.join("ns/net")), own) {
        (Ok(theirs), Some(own)) => theirs == *own,
        (Ok(_), None) | (Err(_), _) => true,
    }
}
