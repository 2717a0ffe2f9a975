//! Checks the disk space for a lab.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Kubelets evict every pod when less than this percentage of the file system is free (see `node::kubelet_configuration`).
const KEPT_FREE_PERCENT: u64 = 1;
/// Bytes of a megabyte, the unit of messages.
pub const MEGABYTE: u64 = 1_000_000;

/// The file system of a folder.
#[derive(Clone, Copy, Debug)]
pub struct FileSystem {
    /// Number of its device: two folders on one file system have the same.
    pub device: u64,
    /// Bytes that programs can still write.
    pub free: u64,
    /// Bytes of the whole file system.
    pub all: u64,
}

impl FileSystem {
    /// Reads the file system of an existing folder.
    pub fn of(folder: &Path) -> Result<Self> {
        let what = || format!("read the free space of {}", folder.display());
        let space = nix::sys::statvfs::statvfs(folder).with_context(what)?;
        Ok(Self {
            device: std::fs::metadata(folder).with_context(what)?.dev(),
            free: space.blocks_available() * space.fragment_size(),
            all: space.blocks() * space.fragment_size(),
        })
    }

    /// Bytes that must be free for a lab with archives of this size. A node has the images twice, packed and unpacked: 1.1 GB for
    /// 0.7 GB of archives, as measured.
    pub fn needed(&self, nodes: usize, archives: u64) -> u64 {
        self.all * KEPT_FREE_PERCENT / 100 + nodes as u64 * archives * 17 / 10
    }
}

/// Refuses a lab that does not fit.
pub fn check(folder: &Path, nodes: usize, archives: &[PathBuf]) -> Result<()> {
    let archives = archives
        .iter()
        .map(|archive| {
            std::fs::metadata(archive)
                .map(|metadata| metadata.len())
                .with_context(|| format!("read the size of {}", archive.display()))
        })
        .sum::<Result<u64>>()?;
    let file_system = FileSystem::of(folder)?;
    let needed = file_system.needed(nodes, archives);
    if file_system.free < needed {
        bail!(
            "{}: {} MB are free, and a lab of {} nodes needs {}: images on every node, and {KEPT_FREE_PERCENT} % of the file \
             system, below which kubelets evict every pod. Make room, or name another folder with --dir",
            folder.display(),
            file_system.free / MEGABYTE,
            nodes,
            needed / MEGABYTE
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lab_without_enough_disk_space_is_refused_with_the_needed_size() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("image.tar");
        // A file without contents, as large as the largest disk.
        std::fs::File::create(&archive).unwrap().set_len(1 << 42).unwrap();
        let error = check(folder.path(), 3, &[archive]).unwrap_err().to_string();
        assert!(
            error.contains("a lab of 3 nodes needs") && error.contains("--dir"),
            "{error}"
        );
        let missing = check(folder.path(), 3, &[folder.path().join("none.tar")]).unwrap_err();
        assert!(missing.to_string().contains("none.tar"), "{missing}");
    }
}
