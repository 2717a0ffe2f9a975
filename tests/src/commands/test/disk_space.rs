//! Checks the disk space for the requested parts before anything is built: a lab that does not fit must not fail after half an
//! hour.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::part::{Compiles, Part};
use crate::cluster::disk_space::{FileSystem, MEGABYTE};

/// Megabytes of the target folder after all parts, built from nothing: about 15 GB, as a whole run left them.
const TESTS: u64 = 15_000;
/// Megabytes of the target folder with the programs alone, built from nothing. An estimate: 1.6 GB of compiled dependencies, five
/// programs, and the data for incremental builds.
const PROGRAMS: u64 = 4_000;
/// Megabytes of the archives of a lab's images, as measured. A lab itself reads their size once they are built.
const ARCHIVES: u64 = 700;
/// Bytes of a block in the metadata of a file, on every file system.
const BLOCK: u64 = 512;

/// Space that a run takes in one folder.
#[derive(Clone, Debug)]
struct Need {
    /// The purpose.
    purpose: String,
    /// The folder.
    folder: PathBuf,
    /// The file system of the folder.
    file_system: FileSystem,
    /// Bytes that the run adds.
    bytes: u64,
}

/// Refuses parts that do not fit on the disk. Reads the size of the target folder, and the free space there and in the folder of
/// the labs.
pub(super) fn check(parts: &[Part], labs: &Path) -> Result<()> {
    let target = target_folder()?;
    let mut needs = vec![Need {
        purpose: "for the build".to_owned(),
        file_system: FileSystem::of(existing(&target)?)?,
        bytes: to_build(parts, size_of(&target)),
        folder: target,
    }];
    if let Some(nodes) = largest_lab(parts) {
        let file_system = FileSystem::of(existing(labs)?)?;
        needs.push(Need {
            purpose: format!("for a lab of {nodes} nodes"),
            folder: labs.to_owned(),
            bytes: file_system.needed(nodes, ARCHIVES * MEGABYTE),
            file_system,
        });
    }
    match shortage(&needs) {
        None => Ok(()),
        Some(text) => bail!(text),
    }
}

/// Bytes that the build of these parts adds to a target folder of this size.
fn to_build(parts: &[Part], present: u64) -> u64 {
    let most = parts.iter().map(|part| part.compiles()).max();
    let whole = match most.unwrap_or(Compiles::Nothing) {
        Compiles::Nothing => 0,
        Compiles::Programs => PROGRAMS,
        Compiles::Tests => TESTS,
    };
    (whole * MEGABYTE).saturating_sub(present)
}

/// The number of nodes of the largest lab. Each lab is removed before the next one.
fn largest_lab(parts: &[Part]) -> Option<usize> {
    parts.iter().filter_map(|part| part.nodes()).max()
}

/// The file systems on which the needs do not fit, as text. Folders on one file system need the sum.
fn shortage(needs: &[Need]) -> Option<String> {
    let mut file_systems: BTreeMap<u64, Vec<&Need>> = BTreeMap::new();
    for need in needs.iter().filter(|need| need.bytes > 0) {
        file_systems
            .entry(need.file_system.device)
            .or_default()
            .push(need);
    }
    let mut short = Vec::new();
    for needs in file_systems.values() {
        let needed: u64 = needs.iter().map(|need| need.bytes).sum();
        let free = needs.iter().map(|need| need.file_system.free).min();
        let free = free.unwrap_or_default();
        if free >= needed {
            continue;
        }
        let each: Vec<String> = needs
            .iter()
            .map(|need| {
                let megabytes = need.bytes / MEGABYTE;
                format!("{megabytes} MB {} in {}", need.purpose, need.folder.display())
            })
            .collect();
        short.push(format!(
            "{} MB are free, needed {} MB: {}",
            free / MEGABYTE,
            needed / MEGABYTE,
            each.join(", and ")
        ));
    }
    let fix = "Free the space, use folders on other file systems (CARGO_TARGET_DIR for the build, --dir for labs), or run fewer \
               parts with --only";
    (!short.is_empty()).then(|| format!("disk space: {}. {fix}", short.join("; ")))
}

/// The target folder of the build that made this program, which is also that of the builds to come.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("find the lab's own program")?;
    let folder = program.ancestors().nth(2);
    folder
        .map(Path::to_owned)
        .with_context(|| format!("find the target folder above {}", program.display()))
}

/// The folder itself, or the nearest one above it that exists.
fn existing(folder: &Path) -> Result<&Path> {
    folder
        .ancestors()
        .find(|folder| folder.exists())
        .with_context(|| format!("find an existing folder above {}", folder.display()))
}

/// Bytes that a folder takes on the disk. Cargo links one file under two names: it counts once. Files that another program
/// removes meanwhile do not count.
fn size_of(folder: &Path) -> u64 {
    let mut seen = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    let mut size = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                folders.push(entry.path());
            }
            if metadata.is_dir() || metadata.nlink() == 1 || seen.insert(metadata.ino()) {
                size += metadata.blocks() * BLOCK;
            }
        }
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(folder: &str, device: u64, free: u64, bytes: u64) -> Need {
        Need {
            purpose: format!("for {folder}"),
            folder: Path::new("/").join(folder),
            file_system: FileSystem {
                device,
                free: free * MEGABYTE,
                all: 100_000 * MEGABYTE,
            },
            bytes: bytes * MEGABYTE,
        }
    }

    #[test]
    fn parts_that_compile_more_need_more_and_the_present_build_is_subtracted() {
        let megabytes = |parts: &[Part], present| to_build(parts, present * MEGABYTE) / MEGABYTE;
        assert_eq!(megabytes(&[], 0), 0);
        assert_eq!(megabytes(&[Part::Format, Part::Go], 0), 0);
        assert_eq!(megabytes(&[Part::Format, Part::Back], 0), PROGRAMS);
        assert_eq!(megabytes(&Part::ALL, 0), TESTS);
        assert_eq!(megabytes(&Part::ALL, 14_000), TESTS - 14_000);
        assert_eq!(megabytes(&Part::ALL, 40_000), 0);
    }

    #[test]
    fn only_the_largest_lab_counts() {
        assert_eq!(largest_lab(&[Part::Unit, Part::Api]), None);
        assert_eq!(largest_lab(&[Part::Unit, Part::Back, Part::PodCidr]), Some(3));
        assert_eq!(largest_lab(&Part::ALL), Some(6));
    }

    #[test]
    fn folders_on_one_file_system_need_the_sum() {
        let build = need("target", 1, 20_000, 15_000);
        let lab = |megabytes| need("lab", 1, 20_000, megabytes);
        assert_eq!(shortage(&[build.clone(), lab(5_000)]), None);
        let text = shortage(&[build, lab(5_662)]).unwrap();
        for part in [
            "20000 MB are free, needed 20662 MB",
            "15000 MB for target in /target",
            "5662 MB for lab in /lab",
            "--dir",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn folders_on_two_file_systems_need_space_on_each() {
        let build = need("target", 1, 15_000, 15_000);
        let lab = |free| need("lab", 2, free, 5_662);
        assert_eq!(shortage(&[build.clone(), lab(5_662)]), None);
        let text = shortage(&[build, lab(3_759)]).unwrap();
        let names = text.contains("3759 MB are free, needed 5662 MB") && !text.contains("/target");
        assert!(names, "{text}");
    }

    #[test]
    fn a_folder_that_needs_nothing_is_not_checked() {
        assert_eq!(shortage(&[need("target", 1, 0, 0)]), None);
    }

    #[test]
    fn a_file_with_two_names_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("below");
        fs::create_dir(&below).unwrap();
        let empty = size_of(folder.path());
        fs::write(below.join("one"), vec![1; 1 << 20]).unwrap();
        // Some file systems allocate blocks when the file is synchronized.
        fs::File::open(below.join("one")).unwrap().sync_all().unwrap();
        let one = size_of(folder.path());
        assert!(one >= empty + (1 << 20), "{empty} {one}");
        fs::hard_link(below.join("one"), folder.path().join("other")).unwrap();
        assert_eq!(size_of(folder.path()), one);
        assert_eq!(size_of(&folder.path().join("none")), 0);
    }

    #[test]
    fn a_folder_that_does_not_exist_is_on_the_file_system_of_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(existing(&folder.path().join("a/b")).unwrap(), folder.path());
        assert!(check(&[Part::Format], &folder.path().join("a/b")).is_ok());
    }
}
