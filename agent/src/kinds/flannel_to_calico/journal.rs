//! The journal: the state before each change, synced to disk before the change is performed. Touches one folder.
//!
//! One JSON record per line, each synced before the step continues. A last line that a crash left incomplete is removed at the
//! next start: the change that it announces was not performed. A large file is compacted to the data that is still needed:
//! standing changes, each with the state before it.

mod error;
mod record;
mod state;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use api::node_migration::FinishedStep;
pub use error::JournalError;
use flannel_to_calico::host::{HostStep, JournalState, Orders};
use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
pub use record::{Before, SavedFile};
use record::{Change, Event, Record};
use state::State;

use crate::host::files::{self, FileError};

/// Name of the file.
const FILE: &str = "journal.jsonl";
/// Size of a large record: a link with the routes of a few hundred nodes.
const LARGE_RECORD: usize = 64 * 1024;
/// Length from which the file is compacted, if that halves its length.
const LARGE_FILE: u64 = 1024 * 1024;
/// Maximum length: standing changes of a migration in a cluster of 5 000 nodes need a few MiB.
const MOST_JOURNAL: u64 = 64 << 20;

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    /// Length of the file up to the end of the last whole record.
    length: u64,
    state: State,
    /// Lock against other processes. The kernel releases it when this process ends.
    _lock: Flock<File>,
}

impl Journal {
    /// Opens the journal in this folder and removes an incomplete last line.
    ///
    /// # Errors
    ///
    /// The folder cannot be written, another agent holds the lock, or a complete record cannot be read.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        fs::create_dir_all(folder).map_err(FileError::of("create folder", folder))?;
        let mut journal = Self {
            folder: folder.to_owned(),
            length: 0,
            state: State::default(),
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
                Ok(record) => journal.state.replay(&record),
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
        self.state.open_step()
    }

    /// The journal's state for decisions.
    pub fn remembered(&self) -> JournalState {
        self.state.remembered()
    }

    /// The state before the change that this step undoes.
    pub fn before_change(&self, undo: &HostStep) -> Option<Before> {
        self.state.before_change(undo)
    }

    /// The state before this step, if it was started and not finished.
    pub fn before_interrupted(&self, step: &HostStep) -> Option<&Before> {
        self.state.before_interrupted(step)
    }

    /// The last finished steps, the newest last.
    pub fn done(&self) -> &[FinishedStep] {
        &self.state.done
    }

    /// The coordinator's last goal and settings.
    pub fn orders(&self) -> Option<&Orders> {
        self.state.orders.as_ref()
    }

    /// Why the host is rolled back automatically; `None` when it is not.
    pub fn automatic_rollback(&self) -> Option<&str> {
        self.state.fell_back.as_deref()
    }

    /// Time of the last record.
    pub fn last_at(&self) -> Option<Timestamp> {
        self.state.last_at
    }

    /// Counts this start of an agent, and returns the number of earlier starts since the last record. If the count cannot be
    /// written, the next start counts as the first; the journal is not affected.
    pub fn count_start(&self) -> u32 {
        let path = self.folder.join("starts");
        let last = self.state.last_at.map(|at| at.to_string()).unwrap_or_default();
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
    ///
    /// # Errors
    ///
    /// The journal cannot be written.
    pub fn record_goal(&mut self, orders: Orders, now: Timestamp) -> Result<(), JournalError> {
        if self.state.orders.as_ref() == Some(&orders) {
            return Ok(());
        }
        self.append(now, Event::Ordered(orders))
    }

    /// Records that the host is rolled back automatically.
    ///
    /// # Errors
    ///
    /// The journal cannot be written.
    pub fn record_automatic_rollback(&mut self, why: String, now: Timestamp) -> Result<(), JournalError> {
        self.append(now, Event::FellBack { why })
    }

    /// Records that the coordinator knows about the automatic rollback.
    ///
    /// # Errors
    ///
    /// The journal cannot be written.
    pub fn acknowledge_rollback(&mut self, now: Timestamp) -> Result<(), JournalError> {
        if self.state.fell_back.is_none() {
            return Ok(());
        }
        self.append(now, Event::TakenNotice)
    }

    /// Records that calico-node has not taken the links of the pods with these sandboxes in time.
    ///
    /// # Errors
    ///
    /// The journal cannot be written.
    pub fn record_not_taken(
        &mut self,
        sandboxes: BTreeSet<String>,
        now: Timestamp,
    ) -> Result<(), JournalError> {
        if sandboxes.is_subset(&self.state.not_taken) {
            return Ok(());
        }
        self.append(now, Event::NotTaken { sandboxes })
    }

    /// Records that the host is completely rolled back.
    ///
    /// # Errors
    ///
    /// The journal cannot be written.
    pub fn record_rollback(&mut self, now: Timestamp) -> Result<(), JournalError> {
        if self.state.standing.is_empty() && self.state.not_taken.is_empty() {
            return Ok(());
        }
        self.append(now, Event::CameBack)
    }

    /// Records the start of a step and the state before it. Returns once the record is on disk.
    ///
    /// # Errors
    ///
    /// The journal cannot be written.
    pub fn begin(&mut self, step: &HostStep, before: Before, now: Timestamp) -> Result<(), JournalError> {
        // A failed step that is repeated with the same state has its record already.
        if self
            .state
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
    ///
    /// # Errors
    ///
    /// The journal cannot be written.
    pub fn finish(&mut self, step: &HostStep, now: Timestamp) -> Result<(), JournalError> {
        self.append(now, Event::Finished { step: step.clone() })
    }

    /// Copies a file durably into the journal's folder. `None` when the file does not exist.
    ///
    /// # Errors
    ///
    /// The file exists and cannot be read, or the copy cannot be written.
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
        let record = Record::new(self.state.sequence + 1, now, event);
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
        self.state.replay(&record);
        self.compact(now)
    }

    /// Rewrites a large file with one record. Only between two steps: an open step has its own record.
    fn compact(&mut self, now: Timestamp) -> Result<(), JournalError> {
        if self.length < LARGE_FILE || self.state.open.is_some() {
            return Ok(());
        }
        let path = self.path();
        let record = Record::new(self.state.sequence + 1, now, self.state.summary());
        let line = record.line().map_err(FileError::of("write a record of", &path))?;
        if line.len() as u64 > self.length / 2 {
            return Ok(());
        }
        files::write_durably(&path, &line)?;
        (self.length, self.state.sequence) = (line.len() as u64, record.sequence);
        Ok(())
    }

    fn truncate(&self) -> io::Result<()> {
        let file = own_file().write(true).open(self.path())?;
        file.set_len(self.length)?;
        file.sync_all()
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
mod tests;
