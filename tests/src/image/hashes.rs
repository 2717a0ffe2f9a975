//! Hashes of files: a process that packs the same images for several labs reads each file once.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// A file that was written more recently may be written again within the same tick of the file system's clock: each read
/// hashes it again.
const SETTLED: Duration = Duration::from_secs(10);

static KNOWN: LazyLock<Mutex<HashMap<PathBuf, Known>>> = LazyLock::new(Mutex::default);

struct Known {
    size: u64,
    modified: SystemTime,
    hash: String,
}

impl Known {
    fn is_of(&self, data: &Metadata) -> bool {
        self.size == data.len() && data.modified().is_ok_and(|modified| modified == self.modified)
    }
}

/// The hash of the file's contents.
pub(super) fn hash_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let data = file
        .metadata()
        .with_context(|| format!("read the metadata of {}", path.display()))?;
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known().get(path)
        && known.is_of(&data)
    {
        return Ok(known.hash.clone());
    }
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash).with_context(|| format!("read {}", path.display()))?;
    let hash = format!("{:x}", hash.finalize());
    if let Ok(modified) = data.modified()
        && modified.elapsed().is_ok_and(|age| age > SETTLED)
    {
        let size = data.len();
        known().insert(
            path.to_owned(),
            Known {
                size,
                modified,
                hash: hash.clone(),
            },
        );
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Writes the file with a modification time of this age.
    fn write(path: &Path, contents: &str, age: Duration) {
        fs::write(path, contents).unwrap();
        let time = SystemTime::now() - age;
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    }

    #[test]
    fn a_file_is_read_again_only_after_a_change_of_size_or_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let hour = Duration::from_hours(1);
        write(&path, "one", hour);
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let one = hash_of(&path).unwrap();
        assert_eq!(one, format!("{:x}", Sha256::digest("one")));
        // The same size and time: the file counts as unchanged.
        fs::write(&path, "two").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(time).unwrap();
        assert_eq!(hash_of(&path).unwrap(), one, "the file was read again");
        write(&path, "two", hour / 2);
        let two = format!("{:x}", Sha256::digest("two"));
        assert_eq!(hash_of(&path).unwrap(), two);
        file.set_len(2).unwrap();
        file.set_modified(fs::metadata(&path).unwrap().modified().unwrap())
            .unwrap();
        assert_eq!(hash_of(&path).unwrap(), format!("{:x}", Sha256::digest("tw")));
    }

    #[test]
    fn a_file_written_just_now_is_read_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        for contents in ["one", "two", "six"] {
            fs::write(&path, contents).unwrap();
            let expected = format!("{:x}", Sha256::digest(contents));
            assert_eq!(hash_of(&path).unwrap(), expected, "{contents}");
        }
    }
}
