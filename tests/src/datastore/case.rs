//! One case of a corpus: the contents of both stores before, the steps, and the result of Calico's own tool.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

/// A file of a corpus.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// The name.
    pub name: String,
    /// Keys of v2, with their values as in etcd. A key with a trailing slash is an empty directory.
    pub v1: BTreeMap<String, String>,
    /// Keys of v3 that exist before. A value that is not text is written as JSON.
    #[serde(default)]
    pub v3pre: BTreeMap<String, Value>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The final keys of v3.
    pub v3: BTreeMap<String, Value>,
}

/// One step.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// `dry-run`, `start`, `start --ignore-v3-data`, `complete`, `abort`, `needed`, `inprogress`; or a change by
    /// another program: `v2put` and `v3put` of `key` and `value`, `v3del` of every key with the prefix `key`.
    pub step: String,
    /// The key that another program writes.
    pub key: Option<String>,
    /// The value that it writes.
    pub value: Option<Value>,
    /// Exit code of Calico's own tool.
    pub rc: i64,
    /// `/calico/v1/Ready` after the step.
    pub v1_ready: Option<String>,
    /// `datastoreReady` after the step.
    pub v3_datastore_ready: Option<Value>,
    /// Whether v2 was as before except for Ready.
    pub v1_unchanged: bool,
    /// Number of keys below `/calico/` in v3 after the step.
    pub v3_key_count: usize,
    /// The reports.
    #[serde(default)]
    pub reports: BTreeMap<String, String>,
}

impl Case {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a case of a corpus", path.display()))
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
