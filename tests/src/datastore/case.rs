//! One case of a corpus: what is in both stores before, what is done, and what Calico's own tool made of it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

/// A file of a corpus.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Keys of v2, with their values as etcd has them. One that ends with a slash is an empty directory.
    pub v1: BTreeMap<String, String>,
    /// Keys of v3 that are there before. What is no text is written as JSON.
    #[serde(default)]
    pub v3pre: BTreeMap<String, Value>,
    /// What is done, one after the other.
    pub steps: Vec<Step>,
    /// Keys of v3 in the end.
    pub v3: BTreeMap<String, Value>,
}

/// One step.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// `dry-run`, `start`, `start --ignore-v3-data`, `complete`, `abort`, `needed`, `inprogress`; or what somebody else does meanwhile:
    /// `v2put` and `v3put` of `key` and `value`, `v3del` of every key with the prefix `key`.
    pub step: String,
    /// What somebody else writes.
    pub key: Option<String>,
    /// And which value.
    pub value: Option<Value>,
    /// Exit code of Calico's own tool.
    pub rc: i64,
    /// `/calico/v1/Ready` after it.
    pub v1_ready: Option<String>,
    /// `datastoreReady` after it.
    pub v3_datastore_ready: Option<Value>,
    /// Whether v2 was as before but for Ready.
    pub v1_unchanged: bool,
    /// Keys below `/calico/` in v3 after it.
    pub v3_key_count: usize,
    /// Its reports.
    #[serde(default)]
    pub reports: BTreeMap<String, String>,
}

impl Case {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no case of a corpus", path.display()))
    }

    /// Every case of a folder, by name.
    pub fn all(folder: &Path) -> Result<Vec<Self>> {
        let entries =
            std::fs::read_dir(folder).with_context(|| format!("read the folder {}", folder.display()))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry
                .with_context(|| format!("read the folder {}", folder.display()))?
                .path();
            if path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        anyhow::ensure!(
            !paths.is_empty(),
            "there is no case (*.json) in {}",
            folder.display()
        );
        paths.iter().map(|path| Self::read(path)).collect()
    }
}
