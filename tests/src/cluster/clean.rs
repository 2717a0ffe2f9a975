//! Removes a lab in any state, and lists the things that remain.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::directory::Directory;
use super::{cgroup, network};

/// Time limit for killed processes to end; a process that needs longer is stuck in the kernel.
const LIMIT: Duration = Duration::from_secs(30);

/// Kills every process of a cgroup and waits until they have ended.
pub async fn end_processes(name: &str) -> Result<()> {
    let started = Instant::now();
    loop {
        let processes = cgroup::processes(name)?;
        if processes.is_empty() {
            return Ok(());
        }
        if started.elapsed() > LIMIT {
            bail!(
                "processes {processes:?} of {name} still exist {} s after SIGKILL",
                LIMIT.as_secs()
            );
        }
        for pid in processes {
            match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error).with_context(|| format!("kill process {pid} of {name}")),
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Removes a cgroup whose processes were just killed: the kernel may still use it for a moment.
pub async fn remove_cgroup(name: &str) -> Result<()> {
    let started = Instant::now();
    loop {
        match cgroup::remove(name) {
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() > LIMIT => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Removes everything of the lab in this folder except its logs. Every step is tried, also after a failed one; the
/// result lists the things that a new check still finds.
pub async fn remove(directory: &Directory) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    let mut note = |result: Result<()>| {
        if let Err(error) = result {
            failures.push(format!("{error:#}"));
        }
    };
    // Process 1 of every machine is in the cgroup, too; killing it ends its whole pid namespace, mounts and links.
    note(end_processes(&directory.cgroup()).await);
    note(remove_cgroup(&directory.cgroup()).await);
    note(cgroup::remove_parent_if_empty());
    note(network::remove_host_link(&directory.host_link()).await);
    let mounts = mounts_below(directory)?;
    if mounts.is_empty() {
        for folder in [directory.machines(), directory.keys(), directory.images()] {
            note(remove_folder(&folder));
        }
        for file in [
            directory.kubeconfig(),
            directory.calico_v3(),
            directory.program(),
            directory.state(),
        ] {
            note(remove_file(&file));
        }
    }
    failures.extend(leftovers(directory).await?);
    Ok(failures)
}

/// The existing things of the lab in this folder, as a list for the user.
pub async fn leftovers(directory: &Directory) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for pid in cgroup::processes(&directory.cgroup())? {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        found.push(format!("process {pid}: {}", command.trim()));
    }
    for path in cgroup::existing(&directory.cgroup())? {
        found.push(format!("cgroup {}", path.display()));
    }
    if network::host_link_exists(&directory.host_link()).await? {
        found.push(format!("interface {}", directory.host_link()));
    }
    found.extend(
        mounts_below(directory)?
            .into_iter()
            .map(|mount| format!("mount {mount}")),
    );
    for path in [directory.machines(), directory.state()] {
        if path.exists() {
            found.push(format!("files {}", path.display()));
        }
    }
    Ok(found)
}

/// Mounts below the lab's folder that this process sees. The lab itself mounts only in its own namespaces.
fn mounts_below(directory: &Directory) -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read the mount table")?;
    let below = |line: &str| {
        let point = line.split_whitespace().nth(4)?;
        std::path::Path::new(point)
            .starts_with(directory.machines())
            .then(|| point.to_owned())
    };
    Ok(table.lines().filter_map(below).collect())
}

fn remove_folder(path: &std::path::Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
    }
}

fn remove_file(path: &std::path::Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
    }
}
