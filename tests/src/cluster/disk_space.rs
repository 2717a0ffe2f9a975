//! Checks the disk space for a lab.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Kubelets evict every pod when less than this percentage of the file system is free (see `node::kubelet_configuration`).
const KEPT_FREE_PERCENT: u64 = 1;

/// A node has the images twice, packed and unpacked: 1.1 GB for 0.7 GB of archives, as measured.
pub fn check(folder: &Path, nodes: usize, archives: &[PathBuf]) -> Result<()> {
    const MEGABYTE: u64 = 1_000_000;
    let archives = archives
        .iter()
        .map(|archive| {
            std::fs::metadata(archive)
                .map(|metadata| metadata.len())
                .with_context(|| format!("read the size of {}", archive.display()))
        })
        .sum::<Result<u64>>()?;
    let room = nix::sys::statvfs::statvfs(folder)
        .with_context(|| format!("read the free space of {}", folder.display()))?;
    let (free, all) = (
        room.blocks_available() * room.fragment_size(),
        room.blocks() * room.fragment_size(),
    );
    let needed = all * KEPT_FREE_PERCENT / 100 + nodes as u64 * archives * 17 / 10;
    if free < needed {
        bail!(
            "{}: {} MB are free, and a lab of {} nodes needs {}: images on every node, and {KEPT_FREE_PERCENT} % of the file \
             system, below which kubelets evict every pod. Make room, or name another folder with --dir",
            folder.display(),
            free / MEGABYTE,
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
