//! The packages of the machine that the lab needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tokio::process::Command;
use tokio::sync::Mutex;

use super::retry::{Failure, three_times};
use crate::progress::{Detail, Progress};

/// Programs and the Debian packages that provide them.
const PROGRAMS: [(&str, &str); 14] = [
    ("bridge", "iproute2"),
    ("busybox", "busybox-static"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("ipset", "ipset"),
    ("iptables-legacy", "iptables"),
    ("iptables-nft", "iptables"),
    ("jq", "jq"),
    ("ldd", "libc-bin"),
    ("mount", "mount"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("runc", "runc"),
    ("tar", "tar"),
];
const PROGRAM_FOLDERS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// CNI plugins that nodes and images need.
const PLUGINS: [&str; 6] = [
    "bandwidth",
    "bridge",
    "host-local",
    "loopback",
    "portmap",
    "tuning",
];
const PLUGIN_PACKAGE: &str = "containernetworking-plugins";
/// The folders of Debian and other distributions.
const PLUGIN_FOLDERS: [&str; 3] = ["/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin"];

/// As root, installs missing packages and prints a message; otherwise returns an error with their names.
pub async fn ensure(progress: &Progress) -> Result<()> {
    /// The package manager refuses to run twice at once.
    static ALONE: Mutex<()> = Mutex::const_new(());
    let _alone = ALONE.lock().await;
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.iter().copied().collect::<Vec<_>>().join(" ");
    if !nix::unistd::geteuid().is_root() || find("apt-get", &PROGRAM_FOLDERS).is_none() {
        bail!(
            "the lab needs programs of these packages: {list}; install them (as root: `apt-get install {list}`)"
        );
    }
    let what = format!("installing Debian packages: {list}");
    let work = three_times(&what, progress, async || {
        install_with_list(&missing).await.map_err(Failure::Again)
    });
    progress.during(&what, &Detail::default(), work).await?;
    let still = self::missing();
    if !still.is_empty() {
        bail!("apt-get installed {list}, but programs of {still:?} are still missing");
    }
    Ok(())
}

/// The folder that has all basic CNI plugins.
pub fn plugins_folder() -> Result<PathBuf> {
    let complete = |folder: &&Path| PLUGINS.iter().all(|name| folder.join(name).is_file());
    match PLUGIN_FOLDERS.iter().map(Path::new).find(complete) {
        Some(folder) => Ok(folder.to_owned()),
        None => bail!(
            "none of {} has all of the CNI plugins {}: install the package {PLUGIN_PACKAGE}",
            PLUGIN_FOLDERS.join(", "),
            PLUGINS.join(", ")
        ),
    }
}

fn missing() -> BTreeSet<&'static str> {
    let programs = PROGRAMS
        .iter()
        .filter(|(program, _)| find(program, &PROGRAM_FOLDERS).is_none());
    let mut packages: BTreeSet<&str> = programs.map(|(_, package)| *package).collect();
    if plugins_folder().is_err() {
        packages.insert(PLUGIN_PACKAGE);
    }
    packages
}

fn find(name: &str, folders: &[&str]) -> Option<PathBuf> {
    folders
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.is_file())
}

async fn install_with_list(packages: &BTreeSet<&str>) -> Result<()> {
    if let Err(first) = install(packages).await {
        // A new machine has no list of packages yet.
        update().await.with_context(|| format!("after: {first:#}"))?;
        install(packages).await?;
    }
    Ok(())
}

async fn install(packages: &BTreeSet<&str>) -> Result<()> {
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&arguments).await
}

/// Downloads the list of packages.
pub(super) async fn update() -> Result<()> {
    apt_get(&["update"]).await
}

async fn apt_get(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        // A killed package manager leaves an inconsistent state: it is allowed to finish.
        .kill_on_drop(false)
        .output()
        .await
        .context("run apt-get")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`apt-get {}` failed ({}): {}",
            arguments.join(" "),
            output.status,
            error.trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_the_folders_of_debian() {
        assert!(find("tar", &PROGRAM_FOLDERS).is_some());
        assert!(find("no-such-program", &PROGRAM_FOLDERS).is_none());
    }
}
