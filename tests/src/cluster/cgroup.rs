//! The lab's cgroups: `replumb-lab/INSTANCE/MACHINE` below every hierarchy. With them `down` finds every process of
//! an instance, however the process was started and whichever other process was killed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;

const MOUNTS: &str = "/sys/fs/cgroup";
/// The folder of all labs below each hierarchy.
pub const PARENT: &str = "replumb-lab";
/// Holder, process 1 and the services run in this leaf, so that a unified hierarchy has no process in an inner folder.
const LEAF: &str = "system";

/// Every writable hierarchy: one folder each for version 1, the mount itself for version 2.
pub fn hierarchies() -> Result<Vec<PathBuf>> {
    let mounts = Path::new(MOUNTS);
    if mounts.join("cgroup.controllers").exists() {
        return Ok(vec![mounts.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(mounts).with_context(|| format!("list the cgroup hierarchies in {MOUNTS}"))? {
        let path = entry?.path();
        // Links (cpu -> cpu,cpuacct) name a hierarchy twice.
        if !path.is_symlink() && path.join("cgroup.procs").exists() {
            found.push(path);
        }
    }
    if found.is_empty() {
        bail!("no cgroup hierarchy is mounted below {MOUNTS}: kubelet needs them");
    }
    found.sort();
    Ok(found)
}

/// Creates the folder in every hierarchy, with its leaf.
pub fn create(cgroup: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let mut path = hierarchy.clone();
        for part in Path::new(cgroup).join(LEAF).components() {
            delegate(&path)?;
            let parent = path.clone();
            path.push(part);
            match fs::create_dir(&path) {
                Ok(()) => inherit_cpuset(&parent, &path)?,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("create the cgroup {}", path.display()));
                }
            }
        }
    }
    Ok(())
}

/// In a unified hierarchy a folder passes its controllers to its children only if configured.
fn delegate(path: &Path) -> Result<()> {
    let Ok(controllers) = fs::read_to_string(path.join("cgroup.controllers")) else {
        return Ok(());
    };
    let wanted: Vec<String> = controllers
        .split_whitespace()
        .map(|name| format!("+{name}"))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    fs::write(path.join("cgroup.subtree_control"), wanted.join(" "))
        .with_context(|| format!("enable the controllers of {} for its children", path.display()))
}

/// A new version 1 cpuset is empty and takes no process until it has processors and memory nodes.
fn inherit_cpuset(parent: &Path, child: &Path) -> Result<()> {
    if child.join("cgroup.controllers").exists() {
        return Ok(());
    }
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let file = child.join(name);
        if file.exists() {
            let value = fs::read(parent.join(name))
                .with_context(|| format!("read {}", parent.join(name).display()))?;
            fs::write(&file, value).with_context(|| format!("write {}", file.display()))?;
        }
    }
    Ok(())
}

/// Moves this process into the leaf of the folder, in every hierarchy.
pub fn join(cgroup: &str) -> Result<()> {
    move_in(cgroup, 0)
}

/// Moves another process into the leaf of the folder, in every hierarchy.
pub fn adopt(cgroup: &str, process: u32) -> Result<()> {
    move_in(cgroup, process)
}

/// 0 means this process.
fn move_in(cgroup: &str, process: u32) -> Result<()> {
    for hierarchy in hierarchies()? {
        let file = hierarchy.join(cgroup).join(LEAF).join("cgroup.procs");
        fs::write(&file, process.to_string())
            .with_context(|| format!("join the cgroup by {}", file.display()))?;
    }
    Ok(())
}

/// Every process in the folder or below it, in any hierarchy.
pub fn processes(cgroup: &str) -> Result<BTreeSet<i32>> {
    let mut found = BTreeSet::new();
    for hierarchy in hierarchies()? {
        collect(&hierarchy.join(cgroup), &mut found)?;
    }
    Ok(found)
}

fn collect(folder: &Path, found: &mut BTreeSet<i32>) -> Result<()> {
    let Some(children) = folders(folder)? else {
        return Ok(());
    };
    match fs::read_to_string(folder.join("cgroup.procs")) {
        // Pid 0 means a process outside this pid namespace, which has no name here.
        Ok(text) => found.extend(
            text.lines()
                .filter_map(|line| line.parse::<i32>().ok())
                .filter(|pid| *pid > 0),
        ),
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("read the processes of {}", folder.display()));
        }
    }
    children.iter().try_for_each(|child| collect(child, found))
}

/// Removes the folder and all folders below it, in every hierarchy; their processes must have ended.
pub fn remove(cgroup: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        remove_tree(&hierarchy.join(cgroup))?;
    }
    Ok(())
}

/// Removes the folder of all labs unless another lab has a cgroup in it.
pub fn remove_parent_if_empty() -> Result<()> {
    for hierarchy in hierarchies()? {
        let parent = hierarchy.join(PARENT);
        if folders(&parent)?.is_some_and(|children| children.is_empty()) {
            remove_tree(&parent)?;
        }
    }
    Ok(())
}

/// The folders that still exist.
pub fn existing(cgroup: &str) -> Result<Vec<PathBuf>> {
    Ok(hierarchies()?
        .into_iter()
        .map(|hierarchy| hierarchy.join(cgroup))
        .filter(|path| path.exists())
        .collect())
}

fn remove_tree(folder: &Path) -> Result<()> {
    let Some(children) = folders(folder)? else {
        return Ok(());
    };
    children.iter().try_for_each(|child| remove_tree(child))?;
    match fs::remove_dir(folder) {
        Ok(()) => Ok(()),
        Err(error) if is_missing(&error) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("remove the cgroup {}", folder.display())),
    }
}

fn folders(folder: &Path) -> Result<Option<Vec<PathBuf>>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("list the cgroup {}", folder.display())),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(Some(found))
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::ENOENT | Errno::ENODEV)
    )
}
