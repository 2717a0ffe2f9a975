//! Writes all of Calico's data in both stores to one file with a checksum, before any change.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use calico_datastore::v2::Tree;
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::etcd3::Entry;

/// The file could not be written.
#[derive(Debug, Error)]
#[error("{attempt} {}: {source}", path.display())]
pub struct BackupError {
    attempt: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Path and content of a backup.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backup {
    /// The file.
    pub path: PathBuf,
    /// SHA-256 of the file; `sha256sum --check PATH.sha256` compares it.
    pub sha256: String,
    /// Number of keys of v2.
    pub v2_keys: usize,
    /// Number of keys of v3.
    pub v3_keys: usize,
}

/// Writes the file and next to it the checksum. Each appears only when it is complete. Only the owner can read the files, since
/// they contain endpoints.
///
/// # Errors
///
/// The folder or a file cannot be created, written or synced.
pub fn write(folder: &Path, tree: &Tree, entries: &[Entry], now: Timestamp) -> Result<Backup, BackupError> {
    let failed = |attempt: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| BackupError {
            attempt,
            path,
            source,
        }
    };
    std::fs::create_dir_all(folder).map_err(failed("creating the folder", folder))?;
    let name = format!("calico-datastore-{}.json", now.strftime("%Y%m%dT%H%M%SZ"));
    let path = free(folder, &name);
    let Content { text, sha256 } = content(tree, entries, now);
    let file_name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or(name);
    let checksum = path.with_file_name(format!("{file_name}.sha256"));
    put(&checksum, format!("{sha256}  {file_name}\n").as_bytes()).map_err(failed("writing", &checksum))?;
    put(&path, text.as_bytes()).map_err(failed("writing", &path))?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(failed("syncing the folder", folder))?;
    Ok(Backup {
        path,
        sha256,
        v2_keys: tree.values.len(),
        v3_keys: entries.len(),
    })
}

/// An unused name: several backups can start within one second. With too many of them the last one is overwritten.
fn free(folder: &Path, name: &str) -> PathBuf {
    const MOST: usize = 10_000;
    let stem = name.trim_end_matches(".json");
    let path = |number: usize| match number {
        1 => folder.join(name),
        _ => folder.join(format!("{stem}-{number}.json")),
    };
    (1..MOST)
        .map(path)
        .find(|path| !path.exists())
        .unwrap_or_else(|| path(MOST))
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut begun = path.as_os_str().to_owned();
    begun.push(".part");
    let begun = PathBuf::from(begun);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&begun)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&begun, path)
}

/// The content of a backup as one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// One JSON object.
    pub text: String,
    /// SHA-256 of the text, in hexadecimal.
    pub sha256: String,
}

/// Builds the text. Values of v3 that are not UTF-8 are in `v3Base64`.
pub fn content(tree: &Tree, entries: &[Entry], now: Timestamp) -> Content {
    let mut texts = BTreeMap::new();
    let mut bytes = BTreeMap::new();
    for entry in entries {
        match String::from_utf8(entry.value.clone()) {
            Ok(text) => texts.insert(entry.key.clone(), text),
            Err(error) => bytes.insert(entry.key.clone(), STANDARD.encode(error.as_bytes())),
        };
    }
    let text = json!({
        "takenAt": now, "v2": tree.values, "v2Directories": tree.directories, "v3": texts, "v3Base64": bytes,
    })
    .to_string();
    let sha256 = HEXLOWER.encode(&Sha256::digest(text.as_bytes()));
    Content { text, sha256 }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_backup_has_all_keys_and_a_valid_checksum() {
        let folder = tempfile::tempdir().unwrap();
        let tree = Tree::of(BTreeMap::from([(
            "/calico/v1/Ready".to_owned(),
            "true".to_owned(),
        )]));
        let entry = Entry {
            key: "/calico/x".to_owned(),
            value: vec![0xff],
            revision: 1,
        };
        let now = "2026-11-24T07:00:00Z".parse().unwrap();
        let write = || write(folder.path(), &tree, std::slice::from_ref(&entry), now).unwrap();
        let (one, other) = (write(), write());
        assert_ne!(one.path, other.path);
        let text = std::fs::read_to_string(&one.path).unwrap();
        assert_eq!(HEXLOWER.encode(&Sha256::digest(text.as_bytes())), one.sha256);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["v2"]["/calico/v1/Ready"], "true");
        assert_eq!(value["v3Base64"]["/calico/x"], "/w==");
        let line = std::fs::read_to_string(format!("{}.sha256", one.path.display())).unwrap();
        assert_eq!(
            line,
            format!("{}  calico-datastore-20261124T070000Z.json\n", one.sha256)
        );
    }
}
