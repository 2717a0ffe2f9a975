//! The journal: what was there before each change, on disk before the change is made. Touches one folder.
//!
//! One JSON record a line, each synced before the step goes on. A line that a crash cut short is taken away at
//! the next start: the change that it would have announced was not made.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use api::node_migration::StepDone;
use jiff::Timestamp;
use plan::flannel_to_calico::host::HostStep;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::host::files::{self, FileError};
use crate::host::snapshot::Snapshot;

/// How many finished steps are shown in status: three migrations' worth.
const SHOWN_STEPS: usize = 32;

/// A record of a link with the routes of a few hundred nodes.
const LARGE_RECORD: usize = 64 * 1024;

/// Why the journal could not be kept. No step is performed without it.
#[derive(Debug, Error)]
pub enum JournalError {
    /// A file of the journal could not be read or written.
    #[error("the journal cannot be kept, so nothing is changed; make room in the folder or mend it")]
    File(#[from] FileError),
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
            Self::Broken { .. } => "JournalBroken",
        }
    }
}

/// What was there before a change: enough to put it back, by the program or by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Before {
    /// Files that are moved away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SavedFile>,
    /// Small files that are removed: path and text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub texts: BTreeMap<PathBuf, String>,
    /// A link with its addresses, routes, neighbours and forwarding entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Snapshot>,
    /// Firewall rules, in the words of the program that lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
}

/// A file that is moved away, and where its bytes are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedFile {
    /// Where it stood.
    pub path: PathBuf,
    /// Its copy, in the journal's folder.
    pub copy: PathBuf,
    /// SHA-256 of its bytes, hexadecimal.
    pub sha256: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    sequence: u64,
    at: Timestamp,
    event: Event,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Event {
    Started { step: HostStep, before: Before },
    Finished { step: HostStep },
}

#[derive(Debug)]
struct OpenStep {
    step: HostStep,
    before: Before,
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
    done: Vec<StepDone>,
}

impl Journal {
    /// Opens the journal in this folder and takes away a line that a crash cut short.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        let mut journal = Self {
            folder: folder.to_owned(),
            sequence: 0,
            length: 0,
            open: None,
            done: Vec::new(),
        };
        fs::create_dir_all(journal.backups()).map_err(FileError::of("make folder", &journal.backups()))?;
        journal.try_out()?;
        let path = journal.path();
        let Some(bytes) = files::read_if_there(&path)? else {
            return Ok(journal);
        };
        let whole = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        for (index, line) in bytes[..whole].split(|byte| *byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let record: Record = serde_json::from_slice(line).map_err(|error| JournalError::Broken {
                path: path.clone(),
                line: index + 1,
                problem: error.to_string(),
            })?;
            journal.take(&record);
        }
        journal.length = whole as u64;
        if whole < bytes.len() {
            journal
                .cut_back()
                .map_err(FileError::of("cut the unfinished record off", &path))?;
        }
        Ok(journal)
    }

    /// The journal's file.
    pub fn path(&self) -> PathBuf {
        self.folder.join("journal.jsonl")
    }

    /// The step that was begun and is not known to be finished: the process ended in the middle of it.
    pub fn open_step(&self) -> Option<&HostStep> {
        self.open.as_ref().map(|open| &open.step)
    }

    /// What was there before this step, when it was begun and not finished.
    pub fn before_interrupted(&self, step: &HostStep) -> Option<&Before> {
        self.open
            .as_ref()
            .filter(|open| open.step == *step)
            .map(|open| &open.before)
    }

    /// Steps that are finished, the newest last; the last few.
    pub fn done(&self) -> &[StepDone] {
        &self.done
    }

    /// Records that a step begins, and what is there before it. Returns once that is on disk.
    pub fn begin(&mut self, step: &HostStep, before: Before, now: Timestamp) -> Result<(), JournalError> {
        // A step that failed and is tried again on the same host has its record already.
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.step == *step && open.before == before)
        {
            return Ok(());
        }
        self.append(
            now,
            Event::Started {
                step: step.clone(),
                before,
            },
        )
    }

    /// Records that a step is finished.
    pub fn finish(&mut self, step: &HostStep, now: Timestamp) -> Result<(), JournalError> {
        self.append(now, Event::Finished { step: step.clone() })
    }

    /// Copies a file into the journal's folder, durably. `None` when there is no such file.
    pub fn save(&self, path: &Path) -> Result<Option<SavedFile>, JournalError> {
        use std::os::unix::fs::MetadataExt;
        let Some(bytes) = files::read_if_there(path)? else {
            return Ok(None);
        };
        let metadata = fs::metadata(path).map_err(FileError::of("look at", path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let sha256 = hexadecimal(&Sha256::digest(&bytes));
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
        let record = Record {
            sequence: self.sequence + 1,
            at: now,
            event,
        };
        let path = self.path();
        let mut line = serde_json::to_vec(&record)
            .map_err(io::Error::from)
            .map_err(FileError::of("write a record of", &path))?;
        line.push(b'\n');
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
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
        Ok(())
    }

    fn cut_back(&self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path())?;
        file.set_len(self.length)?;
        file.sync_all()
    }

    fn take(&mut self, record: &Record) {
        self.sequence = record.sequence;
        match &record.event {
            Event::Started { step, before } => {
                self.open = Some(OpenStep {
                    step: step.clone(),
                    before: before.clone(),
                    since: record.at,
                });
            }
            Event::Finished { step } => {
                let began = self
                    .open
                    .take()
                    .filter(|open| open.step == *step)
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

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
