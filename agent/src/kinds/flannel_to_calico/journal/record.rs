//! One record of the journal: the state before a change, as one line of JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use api::node_migration::FinishedStep;
use data_encoding::HEXLOWER;
use flannel_to_calico::host::{HostStep, Orders};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::host::files::{self, FileError};
use crate::host::snapshot::Snapshot;

/// Version of the format. A file of a later version is neither read nor changed.
const VERSION: u32 = 1;

/// The state before a change: sufficient to restore it, by the program or manually.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Before {
    /// Copies of files that are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SavedFile>,
    /// Small files that are removed or changed: path and content.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub texts: BTreeMap<PathBuf, String>,
    /// A link with its addresses, routes, neighbours and forwarding entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Snapshot>,
    /// Firewall rules, as printed by the backend's program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
}

/// A file that is removed, and its copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Path of the copy in the journal's folder.
    pub copy: PathBuf,
    /// SHA-256 of the content, hexadecimal.
    pub sha256: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub user: u32,
    /// Group.
    pub group: u32,
}

impl Before {
    /// The state before a change that was started twice: files, network and rules of the second start, texts of the first.
    pub(super) fn merged(self, first: Self) -> Self {
        let mut texts = self.texts;
        texts.extend(first.texts);
        Self {
            files: if self.files.is_empty() {
                first.files
            } else {
                self.files
            },
            network: self.network.or(first.network),
            rules: if self.rules.is_empty() {
                first.rules
            } else {
                self.rules
            },
            texts,
        }
    }

    /// This state and an earlier one of other objects, or of the same ones: the earlier value of a text counts.
    pub(super) fn joined(mut self, earlier: &Self) -> Self {
        self.texts.extend(earlier.texts.clone());
        if let Some(network) = &earlier.network {
            let links = &mut self.network.get_or_insert_default().links;
            links.splice(0..0, network.links.iter().cloned());
        }
        self
    }
}

impl Change {
    /// What remains of the change after this step.
    pub(super) fn after(self, step: &HostStep) -> Option<Self> {
        Some(Self {
            step: step.remainder(&self.step)?,
            before: self.before,
        })
    }
}

impl SavedFile {
    /// Whether the copy is unchanged since it was saved.
    ///
    /// # Errors
    ///
    /// The copy exists and cannot be read, or its folder is missing.
    pub fn is_whole(&self) -> Result<bool, FileError> {
        Ok(files::read_if_exists(&self.copy)?.is_some_and(|bytes| sha256(&bytes) == self.sha256))
    }
}

/// SHA-256, hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    #[serde(default = "first_version")]
    pub version: u32,
    pub sequence: u64,
    pub at: Timestamp,
    pub event: Event,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Event {
    Started(Box<Change>),
    Finished {
        step: HostStep,
    },
    /// The coordinator's new goal and settings.
    Ordered(Orders),
    /// No progress for too long: the host is rolled back, whatever the goal.
    FellBack {
        why: String,
    },
    /// The coordinator knows about the automatic rollback.
    TakenNotice,
    /// calico-node has not taken the links of these pods in time: they return to `cni0`.
    NotTaken {
        sandboxes: BTreeSet<String>,
    },
    /// The host is rolled back: no change stands any more, also if another program has undone it.
    CameBack,
    /// Summary of the earlier records, which were removed.
    Kept {
        standing: Vec<Change>,
        done: Vec<FinishedStep>,
        #[serde(default)]
        orders: Option<Orders>,
        #[serde(default)]
        fell_back: Option<String>,
        #[serde(default)]
        not_taken: BTreeSet<String>,
    },
}

fn first_version() -> u32 {
    1
}

/// A change, and the state before it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Change {
    pub step: HostStep,
    pub before: Before,
}

/// Reason why a line is not a valid record.
pub(super) struct Unreadable {
    /// The problem.
    pub problem: String,
    /// Whether the write was interrupted. A record of a later agent is complete.
    pub is_incomplete: bool,
}

impl Record {
    /// The next record in this version's format.
    pub(super) fn new(sequence: u64, at: Timestamp, event: Event) -> Self {
        Self {
            version: VERSION,
            sequence,
            at,
            event,
        }
    }

    /// The record as a line.
    pub(super) fn line(&self) -> io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Parses a complete line.
    pub(super) fn read(line: &[u8]) -> Result<Self, Unreadable> {
        let incomplete = |problem: String| Unreadable {
            problem,
            is_incomplete: true,
        };
        let text = line
            .strip_suffix(b"\n")
            .ok_or_else(|| incomplete("no end of line".to_owned()))?;
        let value: Value = serde_json::from_slice(text).map_err(|error| incomplete(error.to_string()))?;
        let version = value["version"].as_u64().unwrap_or(u64::from(VERSION));
        let complete = |problem: String| Unreadable {
            problem,
            is_incomplete: false,
        };
        if version > u64::from(VERSION) {
            return Err(complete(format!(
                "record version {version}, needed at most {VERSION}; written by a later agent"
            )));
        }
        serde_json::from_value(value).map_err(|error| complete(error.to_string()))
    }
}
