//! One build at a time in a cache folder.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::progress::{Detail, Progress};

/// The lock of a build. It ends with the process at the latest.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Takes the lock; waits while another process has it.
pub async fn take(cache: &Path, progress: &Progress) -> Result<Lock> {
    let path = cache.join("lock");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            file.read_to_string(&mut owner).ok();
            let what = format!(
                "waiting for process {}, which builds into {}",
                owner.trim(),
                cache.display()
            );
            let waiting = file
                .try_clone()
                .with_context(|| format!("open {} again", path.display()))?;
            let work = async {
                tokio::task::spawn_blocking(move || waiting.lock())
                    .await
                    .context("wait")?
                    .context("take the lock")
            };
            progress.during(&what, &Detail::default(), work).await?;
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("lock {}", path.display()));
        }
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .with_context(|| format!("sign {}", path.display()))?;
    Ok(Lock { _file: file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_build_waits_for_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let progress = Progress::default();
        let first = take(folder.path(), &progress).await.unwrap();
        let mut second = std::pin::pin!(take(folder.path(), &progress));
        let early = tokio::time::timeout(std::time::Duration::from_millis(200), &mut second).await;
        assert!(
            early.is_err(),
            "the second lock was taken while the first is held"
        );
        drop(first);
        tokio::time::timeout(std::time::Duration::from_secs(10), second)
            .await
            .unwrap()
            .unwrap();
    }
}
