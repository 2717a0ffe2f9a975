//! An etcd with the v2 API: Debian's package, unpacked and not installed, because an installed one starts a service
//! on the machine.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use super::retry::{Failure, three_times};
use super::{default_cache, packages};
use crate::progress::{Detail, Progress};

const PACKAGE: &str = "etcd-server";
/// The last versions with the v2 API.
const VERSIONS: [&str; 2] = ["3.4.", "3.5."];

/// The program, unpacked into the cache if missing.
pub async fn old_etcd(progress: &Progress) -> Result<PathBuf> {
    let folder = default_cache()?.join("tools").join(PACKAGE);
    let program = folder.join("usr/bin/etcd");
    if !program.is_file() {
        let title = format!("fetching Debian's package {PACKAGE}");
        let work = three_times(&title, progress, async || {
            fetch(&folder).await.map_err(Failure::Again)
        });
        progress.during(&title, &Detail::default(), work).await?;
    }
    let version = crate::datastore::etcd::version(&program).await?;
    if !VERSIONS.iter().any(|start| version.starts_with(start)) {
        bail!(
            "{} is etcd {version}, needed one of {VERSIONS:?}: later versions have no v2 API",
            program.display()
        );
    }
    Ok(program)
}

async fn fetch(folder: &Path) -> Result<()> {
    let parts = folder.with_extension("part");
    // Left by an interrupted attempt.
    match std::fs::remove_dir_all(&parts) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("remove {}", parts.display()));
        }
        Ok(()) | Err(_) => {}
    }
    std::fs::create_dir_all(&parts).with_context(|| format!("create {}", parts.display()))?;
    if let Err(first) = run("apt-get", &["download", PACKAGE], &parts).await {
        // A new machine has no list of packages yet.
        packages::update()
            .await
            .with_context(|| format!("after: {first:#}"))?;
        run("apt-get", &["download", PACKAGE], &parts).await?;
    }
    let entries = std::fs::read_dir(&parts).context("find the package")?;
    let mut files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let Some(file) = files.find(|path| path.extension().is_some_and(|extension| extension == "deb")) else {
        bail!(
            "apt-get download {PACKAGE} left no package in {}",
            parts.display()
        );
    };
    let file = file.display().to_string();
    run("dpkg-deb", &["--extract", &file, "."], &parts).await?;
    std::fs::rename(&parts, folder).with_context(|| format!("name {}", folder.display()))
}

async fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        bail!(
            "`{program} {}` failed ({}): {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
