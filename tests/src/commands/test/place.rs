//! Folders of the labs of one test run. Two runs at the same time have two folders.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cluster::{Cluster, Directory};
use crate::commands::Place;
use crate::progress::Progress;

/// A lock on a folder and the labs in it. The lock ends with the process, however the process ends.
#[derive(Debug)]
pub(super) struct Run {
    folder: PathBuf,
    _lock: File,
}

impl Run {
    /// Takes the first folder beside `directory` that no other run has locked. Removes labs that a killed run has
    /// left in one of the folders: they would take processor time from this run.
    pub(super) async fn begin(directory: &Path, progress: &Progress) -> Result<Self> {
        let (run, idle) = take(directory)?;
        for one in idle.iter().chain([&run]) {
            one.sweep(progress).await?;
        }
        Ok(run)
    }

    /// The folder of a lab with this number of nodes.
    pub(super) fn place(&self, nodes: usize) -> Place {
        Place {
            directory: self.folder.join(nodes.to_string()),
        }
    }

    /// The labs in the folder.
    fn labs(&self) -> Result<Vec<Directory>> {
        let mut labs = Vec::new();
        for entry in fs::read_dir(&self.folder).with_context(|| format!("list {}", self.folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                labs.push(Directory::open(&path)?);
            }
        }
        Ok(labs)
    }

    /// Keeps the labs of the folder for inspection.
    pub(super) fn keep(&self) -> Result<()> {
        self.labs()?.iter().try_for_each(Cluster::keep)
    }

    /// Removes labs in the folder that no command uses.
    pub(super) async fn sweep(&self, progress: &Progress) -> Result<()> {
        for lab in self.labs()? {
            if Cluster::remove_abandoned(&lab).await? {
                progress.say(format_args!(
                    "removed the lab that an earlier run has left in {}",
                    lab.path().display()
                ));
            }
        }
        Ok(())
    }
}

/// The first free folder, and all other free folders of earlier runs.
fn take(directory: &Path) -> Result<(Run, Vec<Run>)> {
    let mut own = None;
    let mut idle = Vec::new();
    for number in 1_u32.. {
        let folder = directory.with_file_name(format!("test-run-{number}"));
        if own.is_some() && !folder.exists() {
            break;
        }
        match attempt(folder)? {
            Some(run) if own.is_none() => own = Some(run),
            Some(run) => idle.push(run),
            None => {}
        }
    }
    Ok((own.context("find a free number for this test run")?, idle))
}

/// Locks this folder; `None` if another run has locked it.
fn attempt(folder: PathBuf) -> Result<Option<Run>> {
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let path = folder.join("lock");
    let lock = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(Run { folder, _lock: lock })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(run: &Run) -> String {
        run.folder.file_name().unwrap().to_string_lossy().into_owned()
    }

    #[test]
    fn two_runs_have_two_folders_and_the_next_run_removes_their_labs() {
        let machine = tempfile::tempdir().unwrap();
        let directory = machine.path().join("default");
        let (first, idle) = take(&directory).unwrap();
        assert_eq!((folder(&first).as_str(), idle.len()), ("test-run-1", 0));
        let (second, idle) = take(&directory).unwrap();
        assert_eq!((folder(&second).as_str(), idle.len()), ("test-run-2", 0));
        assert_ne!(first.place(3).directory, second.place(3).directory);
        assert_ne!(first.place(3).directory, first.place(5).directory);

        // The first run was killed; the folder of the second run is still in use and is not cleaned.
        drop(first);
        let (third, idle) = take(&directory).unwrap();
        assert_eq!((folder(&third).as_str(), idle.len()), ("test-run-1", 0));
        drop((second, third));
        let (fourth, idle) = take(&directory).unwrap();
        assert_eq!(folder(&fourth), "test-run-1");
        assert_eq!(idle.iter().map(folder).collect::<Vec<_>>(), ["test-run-2"]);
    }

    #[test]
    fn every_lab_of_a_folder_is_listed_and_the_lock_file_is_not() {
        let machine = tempfile::tempdir().unwrap();
        let (run, _) = take(&machine.path().join("default")).unwrap();
        assert_eq!(run.labs().unwrap(), []);
        let made: Vec<Directory> = [3, 5].map(|nodes| run.place(nodes).open().unwrap()).into();
        let mut found = run.labs().unwrap();
        found.sort_by_key(|lab| lab.path().to_owned());
        assert_eq!(found, made);
    }
}
