//! The journal: the state before each change, synced to disk before the change is performed. Touches one folder.
//!
//! One JSON record per line, each synced before the step continues. A last line that a crash left incomplete is removed at the
//! next start: the change that it announces was not performed. A large file is compacted to the data that is still needed:
//! standing changes, each with the state before it.

mod record;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use api::node_migration::FinishedStep;
use flannel_to_calico::host::{HostStep, JournalState, Orders, Undo};
use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
pub use record::{Before, SavedFile};
use record::{Change, Event, Record};
use thiserror::Error;

use crate::host::files::{self, FileError};

/// Number of finished steps in the status: those of three migrations.
const SHOWN_STEPS: usize = 32;

/// Name of the file.
const FILE: &str = "journal.jsonl";
/// Size of a large record: a link with the routes of a few hundred nodes.
const LARGE_RECORD: usize = 64 * 1024;
/// Length from which the file is compacted, if that halves its length.
const LARGE_FILE: u64 = 1024 * 1024;
/// Maximum length: standing changes of a migration in a cluster of 5 000 nodes need a few MiB.
const MOST_JOURNAL: u64 = 64 << 20;

/// The journal could not be read or written. No step is performed without it.
#[derive(Debug, Error)]
pub enum JournalError {
    /// A file of the journal could not be read or written.
    #[error(
        "journal could not be read or written, so nothing is changed: free disk space or repair its folder"
    )]
    File(#[from] FileError),
    /// Another process holds the journal's lock.
    #[error(
        "{path} is locked by another agent on this node: remove one of the replumb installations (find pods named \
         replumb-agent on this node with `kubectl get pods -A -o wide`)"
    )]
    Locked {
        /// The locked file.
        path: PathBuf,
    },
    /// A record before the last one is malformed.
    #[error("{path}, line {line}: malformed record ({problem}): move the file away to start a new journal")]
    Broken {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
}

impl JournalError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        match self {
            Self::File(_) => "JournalFile",
            Self::Locked { .. } => "JournalTaken",
            Self::Broken { .. } => "JournalBroken",
        }
    }
}

#[derive(Debug)]
struct OpenStep {
    change: Change,
    since: Timestamp,
}

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    sequence: u64,
    /// Length of the file up to the end of the last whole record.
    length: u64,
    /// The step that was started and not finished.
    open: Option<OpenStep>,
    /// Changes that have not been undone, the newest last.
    standing: Vec<Change>,
    done: Vec<FinishedStep>,
    orders: Option<Orders>,
    fell_back: Option<String>,
    /// When the last record was written.
    last_at: Option<Timestamp>,
    /// Lock against other processes. The kernel releases it when this process ends.
    _lock: Flock<File>,
}

impl Journal {
    /// Opens the journal in this folder and removes an incomplete last line.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        fs::create_dir_all(folder).map_err(FileError::of("create folder", folder))?;
        let mut journal = Self {
            folder: folder.to_owned(),
            sequence: 0,
            length: 0,
            open: None,
            standing: Vec::new(),
            done: Vec::new(),
            orders: None,
            fell_back: None,
            last_at: None,
            _lock: lock(&folder.join("lock"))?,
        };
        fs::create_dir_all(journal.backups()).map_err(FileError::of("create folder", &journal.backups()))?;
        journal.check_writable()?;
        let path = journal.path();
        let Some(files::FileContent { bytes, .. }) = files::read_limited_if_exists(&path, MOST_JOURNAL)?
        else {
            return Ok(journal);
        };
        let mut whole = 0;
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let is_last = whole + line.len() == bytes.len();
            match Record::read(line) {
                Ok(record) => journal.replay(&record),
                // A crash interrupted the write: the change was not performed.
                Err(unreadable) if is_last && unreadable.is_incomplete => break,
                Err(unreadable) => {
                    return Err(JournalError::Broken {
                        path,
                        line: index + 1,
                        problem: unreadable.problem,
                    });
                }
            }
            whole += line.len();
        }
        journal.length = whole as u64;
        if whole < bytes.len() {
            journal
                .truncate()
                .map_err(FileError::of("remove the incomplete record of", &path))?;
        }
        Ok(journal)
    }

    /// Whether a journal exists in this folder.
    pub fn exists(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    /// The journal's file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// The step that was started and not recorded as finished: the process ended during it.
    pub fn open_step(&self) -> Option<&HostStep> {
        self.open.as_ref().map(|open| &open.change.step)
    }

    /// The journal's state for decisions.
    pub fn remembered(&self) -> JournalState {
        JournalState {
            interrupted: self.open_step().cloned(),
            unreverted: self.standing.iter().map(|change| change.step.clone()).collect(),
            without_coordinator: self.fell_back.is_some(),
        }
    }

    /// The state before the change that this step undoes.
    pub fn before_change(&self, undo: &HostStep) -> Option<&Before> {
        self.standing
            .iter()
            .rev()
            .find(|change| undo.reverts(&change.step))
            .map(|change| &change.before)
    }

    /// The state before this step, if it was started and not finished.
    pub fn before_interrupted(&self, step: &HostStep) -> Option<&Before> {
        self.open
            .as_ref()
            .filter(|open| open.change.step == *step)
            .map(|open| &open.change.before)
    }

    /// The last finished steps, the newest last.
    pub fn done(&self) -> &[FinishedStep] {
        &self.done
    }

    /// The coordinator's last goal and settings.
    pub fn orders(&self) -> Option<&Orders> {
        self.orders.as_ref()
    }

    /// Why the host is rolled back automatically; `None` when it is not.
    pub fn automatic_rollback(&self) -> Option<&str> {
        self.fell_back.as_deref()
    }

    /// Time of the last record.
    pub fn last_at(&self) -> Option<Timestamp> {
        self.last_at
    }

    /// Counts this start of an agent, and returns the number of earlier starts since the last record. If the count cannot be
    /// written, the next start counts as the first; the journal is not affected.
    pub fn count_start(&self) -> u32 {
        let path = self.folder.join("starts");
        let last = self.last_at.map(|at| at.to_string()).unwrap_or_default();
        let before = files::read_if_exists(&path)
            .ok()
            .flatten()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| {
                let (count, at) = text.trim().split_once(' ')?;
                (at == last).then(|| count.parse::<u32>().ok())?
            })
            .unwrap_or_default();
        let text = format!("{} {last}\n", before.saturating_add(1));
        if let Err(error) = files::write_durably(&path, text.as_bytes()) {
            tracing::debug!(%error, "counting the start failed");
        }
        before
    }

    /// Records the coordinator's goal and settings if they have changed.
    pub fn record_goal(&mut self, orders: Orders, now: Timestamp) -> Result<(), JournalError> {
        if self.orders.as_ref() == Some(&orders) {
            return Ok(());
        }
        self.append(now, Event::Ordered(orders))
    }

    /// Records that the host is rolled back automatically.
    pub fn record_automatic_rollback(&mut self, why: String, now: Timestamp) -> Result<(), JournalError> {
        self.append(now, Event::FellBack { why })
    }

    /// Records that the coordinator knows about the automatic rollback.
    pub fn acknowledge_rollback(&mut self, now: Timestamp) -> Result<(), JournalError> {
        if self.fell_back.is_none() {
            return Ok(());
        }
        self.append(now, Event::TakenNotice)
    }

    /// Records that the host is completely rolled back.
    pub fn record_rollback(&mut self, now: Timestamp) -> Result<(), JournalError> {
        if self.standing.is_empty() {
            return Ok(());
        }
        self.append(now, Event::CameBack)
    }

    /// Records the start of a step and the state before it. Returns once the record is on disk.
    pub fn begin(&mut self, step: &HostStep, before: Before, now: Timestamp) -> Result<(), JournalError> {
        // A failed step that is repeated with the same state has its record already.
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.change.step == *step && open.change.before == before)
        {
            return Ok(());
        }
        self.append(
            now,
            Event::Started(Box::new(Change {
                step: step.clone(),
                before,
            })),
        )
    }

    /// Records that a step is finished.
    pub fn finish(&mut self, step: &HostStep, now: Timestamp) -> Result<(), JournalError> {
        self.append(now, Event::Finished { step: step.clone() })
    }

    /// Copies a file durably into the journal's folder. `None` when the file does not exist.
    pub fn save(&self, path: &Path) -> Result<Option<SavedFile>, JournalError> {
        use std::os::unix::fs::MetadataExt;
        // Owner and permissions are read from the same open file as the content.
        let Some(files::FileContent { bytes, metadata }) = files::read_limited_if_exists(path, files::MOST)?
        else {
            return Ok(None);
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let sha256 = record::sha256(&bytes);
        // The name contains a hash of the content: a repeated save finds its copy, and other content never overwrites it.
        let copy = self
            .backups()
            .join(format!("{name}.{}", sha256.get(..16).unwrap_or_default()));
        files::write_durably(&copy, &bytes)?;
        Ok(Some(SavedFile {
            path: path.to_owned(),
            copy,
            sha256,
            mode: metadata.mode() & 0o7777,
            user: metadata.uid(),
            group: metadata.gid(),
        }))
    }

    /// Writes as much as a record may need: a full or read-only disk is detected before the migration of the node starts.
    fn check_writable(&self) -> Result<(), JournalError> {
        let path = self.folder.join("trial");
        files::write_durably(&path, &vec![0; LARGE_RECORD])?;
        Ok(files::remove_durably(&path)?)
    }

    fn backups(&self) -> PathBuf {
        self.folder.join("backup")
    }

    fn append(&mut self, now: Timestamp, event: Event) -> Result<(), JournalError> {
        let record = Record::new(self.sequence + 1, now, event);
        let path = self.path();
        let line = record.line().map_err(FileError::of("write a record of", &path))?;
        let write = || -> io::Result<()> {
            let mut file = own_file().create(true).append(true).open(&path)?;
            file.write_all(&line)?;
            file.sync_all()?;
            // The name of a new file is durable once its folder is synced.
            File::open(&self.folder)?.sync_all()
        };
        if let Err(error) = write() {
            // On a full disk a part of the line is written, and the next record would be appended to that part. If the truncation
            // fails, the next start repeats it.
            let truncated = self.truncate();
            tracing::debug!(?truncated, "removed an incomplete record of the journal");
            return Err(FileError::of("write a record of", &path)(error).into());
        }
        self.length += line.len() as u64;
        self.replay(&record);
        self.compact(now)
    }

    /// Rewrites a large file with one record. Only between two steps: an open step has its own record.
    fn compact(&mut self, now: Timestamp) -> Result<(), JournalError> {
        if self.length < LARGE_FILE || self.open.is_some() {
            return Ok(());
        }
        let path = self.path();
        let kept = Event::Kept {
            standing: self.standing.clone(),
            done: self.done.clone(),
            orders: self.orders.clone(),
            fell_back: self.fell_back.clone(),
        };
        let record = Record::new(self.sequence + 1, now, kept);
        let line = record.line().map_err(FileError::of("write a record of", &path))?;
        if line.len() as u64 > self.length / 2 {
            return Ok(());
        }
        files::write_durably(&path, &line)?;
        (self.length, self.sequence) = (line.len() as u64, record.sequence);
        Ok(())
    }

    fn truncate(&self) -> io::Result<()> {
        let file = own_file().write(true).open(self.path())?;
        file.set_len(self.length)?;
        file.sync_all()
    }

    /// Adds a standing change. A change stands as soon as it is announced: a crash may be before or after the change itself.
    fn add_standing(&mut self, change: &Change) {
        let undo = change.step.undo();
        if let Undo::Nothing(_) = undo {
            return;
        }
        let same = self.standing.iter().position(|change| change.step.undo() == undo);
        let first = same.map(|at| self.standing.remove(at).before).unwrap_or_default();
        self.standing.push(Change {
            step: change.step.clone(),
            before: change.before.clone().merged(first),
        });
    }

    fn replay(&mut self, record: &Record) {
        self.sequence = record.sequence;
        self.last_at = Some(record.at);
        match &record.event {
            Event::Ordered(orders) => self.orders = Some(orders.clone()),
            Event::FellBack { why } => self.fell_back = Some(why.clone()),
            Event::TakenNotice => self.fell_back = None,
            Event::CameBack => self.standing.clear(),
            Event::Kept {
                standing,
                done,
                orders,
                fell_back,
            } => {
                self.open = None;
                self.orders.clone_from(orders);
                self.fell_back.clone_from(fell_back);
                self.standing.clone_from(standing);
                self.done.clone_from(done);
            }
            Event::Started(change) => {
                self.add_standing(change);
                self.open = Some(OpenStep {
                    change: (**change).clone(),
                    since: record.at,
                });
            }
            Event::Finished { step } => {
                self.standing.retain(|change| !step.reverts(&change.step));
                let began = self
                    .open
                    .take()
                    .filter(|open| open.change.step == *step)
                    .map_or(record.at, |open| open.since);
                self.done.push(FinishedStep {
                    name: step.name().to_owned(),
                    started_at: began,
                    finished_at: record.at,
                });
                if self.done.len() > SHOWN_STEPS {
                    self.done.remove(0);
                }
            }
        }
    }
}

/// Options for the journal's own files: a symbolic link is not followed.
fn own_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlag::O_NOFOLLOW.bits());
    options
}

fn lock(path: &Path) -> Result<Flock<File>, JournalError> {
    let file = own_file()
        .create(true)
        .append(true)
        .open(path)
        .map_err(FileError::of("create lock", path))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        Errno::EWOULDBLOCK => JournalError::Locked {
            path: path.to_owned(),
        },
        error => FileError::of("lock", path)(error.into()).into(),
    })
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
