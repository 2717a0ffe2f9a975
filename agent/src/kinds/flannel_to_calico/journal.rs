//! The journal: what was there before each change, on disk before the change is made. Touches one folder.
//!
//! One JSON record a line, each synced before the step goes on. A last line that a crash cut short or spoilt is taken away
//! at the next start: the change that it would have announced was not made. A file that grows large is written anew with
//! what is needed of it: changes that stand, with what was there before each.

mod record;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use api::node_migration::StepDone;
use flannel_to_calico::host::{HostStep, Orders, Remembered, Undo};
use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
pub use record::{Before, SavedFile};
use record::{Change, Event, Record};
use thiserror::Error;

use crate::host::files::{self, FileError};

/// How many finished steps are shown in status: three migrations' worth.
const SHOWN_STEPS: usize = 32;

/// The file's name.
const FILE: &str = "journal.jsonl";
/// A record of a link with the routes of a few hundred nodes.
const LARGE_RECORD: usize = 64 * 1024;
/// From this length on the file is written anew, if that makes it half as long.
const LARGE_FILE: u64 = 1024 * 1024;
/// A longer one is not the agent's: what stands of a migration in a cluster of 5 000 nodes is a few MiB.
const MOST_JOURNAL: u64 = 64 << 20;

/// Why the journal could not be kept. No step is performed without it.
#[derive(Debug, Error)]
pub enum JournalError {
    /// A file of the journal could not be read or written.
    #[error("the journal cannot be kept, so nothing is changed; make room in the folder or mend it")]
    File(#[from] FileError),
    /// Another process has the journal.
    #[error(
        "{path} is locked: another agent works on this node. One of replumb's installations has to go; see \
         `kubectl get pods -A -o wide` for pods named replumb-agent on this node"
    )]
    Taken {
        /// The file that is locked.
        path: PathBuf,
    },
    /// A record in the middle is no record.
    #[error(
        "{path}, line {line} is no record of the journal ({problem}); move the file away to begin a new one"
    )]
    Broken {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

impl JournalError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        match self {
            Self::File(_) => "JournalFile",
            Self::Taken { .. } => "JournalTaken",
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
    /// The step that was begun and not finished.
    open: Option<OpenStep>,
    /// Changes that have not been taken back, the newest last.
    standing: Vec<Change>,
    done: Vec<StepDone>,
    orders: Option<Orders>,
    fell_back: Option<String>,
    /// When the last record was written.
    last_at: Option<Timestamp>,
    /// As long as this is held no other process opens the journal. The kernel lets it go with ours.
    _lock: Flock<File>,
}

impl Journal {
    /// Opens the journal in this folder and takes away a line that a crash cut short.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        fs::create_dir_all(folder).map_err(FileError::of("make folder", folder))?;
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
        fs::create_dir_all(journal.backups()).map_err(FileError::of("make folder", &journal.backups()))?;
        journal.try_out()?;
        let path = journal.path();
        let Some(files::Whole { bytes, .. }) = files::whole_if_there(&path, MOST_JOURNAL)? else {
            return Ok(journal);
        };
        let mut whole = 0;
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let is_last = whole + line.len() == bytes.len();
            match Record::read(line) {
                Ok(record) => journal.take(&record),
                // Power went before it was on disk: nothing was changed on its account.
                Err(unreadable) if is_last && unreadable.spoilt => break,
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
                .cut_back()
                .map_err(FileError::of("cut the unfinished record off", &path))?;
        }
        Ok(journal)
    }

    /// Whether there is one in this folder.
    pub fn is_there(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    /// The journal's file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// The step that was begun and is not known to be finished: the process ended in the middle of it.
    pub fn open_step(&self) -> Option<&HostStep> {
        self.open.as_ref().map(|open| &open.change.step)
    }

    /// What a decision has to know of the past.
    pub fn remembered(&self) -> Remembered {
        Remembered {
            interrupted: self.open_step().cloned(),
            standing: self.standing.iter().map(|change| change.step.clone()).collect(),
            alone: self.fell_back.is_some(),
        }
    }

    /// What was there before the change that this step takes back.
    pub fn before_change(&self, undo: &HostStep) -> Option<&Before> {
        self.standing
            .iter()
            .rev()
            .find(|change| undo.takes_back(&change.step))
            .map(|change| &change.before)
    }

    /// What was there before this step, when it was begun and not finished.
    pub fn before_interrupted(&self, step: &HostStep) -> Option<&Before> {
        self.open
            .as_ref()
            .filter(|open| open.change.step == *step)
            .map(|open| &open.change.before)
    }

    /// Steps that are finished, the newest last; the last few.
    pub fn done(&self) -> &[StepDone] {
        &self.done
    }

    /// What the coordinator wanted last.
    pub fn orders(&self) -> Option<&Orders> {
        self.orders.as_ref()
    }

    /// Why the host goes back by itself; `None` when it does not.
    pub fn fell_back(&self) -> Option<&str> {
        self.fell_back.as_deref()
    }

    /// When something was last recorded.
    pub fn last_at(&self) -> Option<Timestamp> {
        self.last_at
    }

    /// Counts this start of an agent, and returns how many there were before it since the last record. Where that cannot be written, this is
    /// the first: no record is missing by it.
    pub fn count_start(&self) -> u32 {
        let path = self.folder.join("starts");
        let last = self.last_at.map(|at| at.to_string()).unwrap_or_default();
        let before = files::read_if_there(&path)
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
            tracing::debug!(%error, "the start is not counted");
        }
        before
    }

    /// Records what the coordinator wants, where it differs from what is known.
    pub fn order(&mut self, orders: Orders, now: Timestamp) -> Result<(), JournalError> {
        if self.orders.as_ref() == Some(&orders) {
            return Ok(());
        }
        self.append(now, Event::Ordered(orders))
    }

    /// Records that the host goes back by itself.
    pub fn fall_back(&mut self, why: String, now: Timestamp) -> Result<(), JournalError> {
        self.append(now, Event::FellBack { why })
    }

    /// Records that the coordinator knows of it.
    pub fn take_notice(&mut self, now: Timestamp) -> Result<(), JournalError> {
        if self.fell_back.is_none() {
            return Ok(());
        }
        self.append(now, Event::TakenNotice)
    }

    /// Records that the host is as it was.
    pub fn came_back(&mut self, now: Timestamp) -> Result<(), JournalError> {
        if self.standing.is_empty() {
            return Ok(());
        }
        self.append(now, Event::CameBack)
    }

    /// Records that a step begins, and what is there before it. Returns once that is on disk.
    pub fn begin(&mut self, step: &HostStep, before: Before, now: Timestamp) -> Result<(), JournalError> {
        // A step that failed and is tried again on the same host has its record already.
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

    /// Copies a file into the journal's folder, durably. `None` when there is no such file.
    pub fn save(&self, path: &Path) -> Result<Option<SavedFile>, JournalError> {
        use std::os::unix::fs::MetadataExt;
        // Owner and permissions of the very file whose bytes these are.
        let Some(files::Whole { bytes, metadata }) = files::whole_if_there(path, files::MOST)? else {
            return Ok(None);
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let sha256 = record::sha256(&bytes);
        // Named by content: a second try finds its copy, and another content never overwrites it.
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

    /// Writes as much as a record may need: a disk that is full or read-only is found out before a node is in
    /// work, not in the middle of it.
    fn try_out(&self) -> Result<(), JournalError> {
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
            // The name of a new file lasts once its folder is on disk.
            File::open(&self.folder)?.sync_all()
        };
        if let Err(error) = write() {
            // A full disk takes a part of the line: without it the next record would be glued to that part.
            // When even this fails, the next start cuts it off.
            let cut = self.cut_back();
            tracing::debug!(?cut, "cut an unfinished record off the journal");
            return Err(FileError::of("write a record of", &path)(error).into());
        }
        self.length += line.len() as u64;
        self.take(&record);
        self.shorten(now)
    }

    /// Writes the file anew once it is large. Between two steps only: an open step has its own record.
    fn shorten(&mut self, now: Timestamp) -> Result<(), JournalError> {
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

    fn cut_back(&self) -> io::Result<()> {
        let file = own_file().write(true).open(self.path())?;
        file.set_len(self.length)?;
        file.sync_all()
    }

    /// A change stands from the moment at which it is announced: a crash may have come before or after it.
    fn stand(&mut self, change: &Change) {
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

    fn take(&mut self, record: &Record) {
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
                self.stand(change);
                self.open = Some(OpenStep {
                    change: (**change).clone(),
                    since: record.at,
                });
            }
            Event::Finished { step } => {
                self.standing.retain(|change| !step.takes_back(&change.step));
                let began = self
                    .open
                    .take()
                    .filter(|open| open.change.step == *step)
                    .map_or(record.at, |open| open.since);
                self.done.push(StepDone {
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

/// A file of the journal's own: a link in its place leads to a file that is not.
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
        .map_err(FileError::of("make the lock", path))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        Errno::EWOULDBLOCK => JournalError::Taken {
            path: path.to_owned(),
        },
        error => FileError::of("lock", path)(error.into()).into(),
    })
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
