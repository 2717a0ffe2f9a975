//! One record of the journal: what was there before a change, on one line of JSON.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use api::node_migration::StepDone;
use flannel_to_calico::host::{HostStep, Orders};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::host::files::{self, FileError};
use crate::host::snapshot::Snapshot;

/// How records are written. A file of a later version is not understood, and not touched.
const VERSION: u32 = 1;

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

impl Before {
    /// What was there before a change that was made twice: the files and tables of the second time, the texts of the first.
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
}

impl SavedFile {
    /// Whether the copy is what was saved.
    pub fn is_whole(&self) -> Result<bool, FileError> {
        Ok(files::read_if_there(&self.copy)?.is_some_and(|bytes| sha256(&bytes) == self.sha256))
    }
}

/// SHA-256, hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
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
    /// What the coordinator wants, when it wants something new.
    Ordered(Orders),
    /// Nobody did anything for too long: the way back is gone, whatever was ordered.
    FellBack {
        why: String,
    },
    /// The coordinator knows of it.
    TakenNotice,
    /// The host is as it was: nothing stands any more, also where somebody else has put it back.
    CameBack,
    /// Everything that is needed of the records before, which are not there any more.
    Kept {
        standing: Vec<Change>,
        done: Vec<StepDone>,
        #[serde(default)]
        orders: Option<Orders>,
        #[serde(default)]
        fell_back: Option<String>,
    },
}

fn first_version() -> u32 {
    1
}

/// A change that was made, and what was there before it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Change {
    pub step: HostStep,
    pub before: Before,
}

/// Why a line is no record.
pub(super) struct Unreadable {
    /// What is wrong with it.
    pub problem: String,
    /// Whether it was never written to its end. One that a later agent wrote is whole.
    pub spoilt: bool,
}

impl Record {
    /// The next record, as this version writes it.
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

    /// A whole line, understood.
    pub(super) fn read(line: &[u8]) -> Result<Self, Unreadable> {
        let spoilt = |problem: String| Unreadable {
            problem,
            spoilt: true,
        };
        let text = line
            .strip_suffix(b"\n")
            .ok_or_else(|| spoilt("it is cut short".to_owned()))?;
        let value: Value = serde_json::from_slice(text).map_err(|error| spoilt(error.to_string()))?;
        let version = value["version"].as_u64().unwrap_or(u64::from(VERSION));
        let whole = |problem: String| Unreadable {
            problem,
            spoilt: false,
        };
        if version > u64::from(VERSION) {
            return Err(whole(format!(
                "it is of version {version}, needed at most {VERSION}: a later agent wrote it"
            )));
        }
        serde_json::from_value(value).map_err(|error| whole(error.to_string()))
    }
}
