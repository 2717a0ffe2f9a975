//! Builds one Go module.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::modules::Module;
use super::retry::{Failure, three_times};
use crate::progress::{Detail, Progress};

/// How to install Go.
const HINT: &str = "install Go from https://go.dev/dl and put its folder bin on PATH";
/// Number of lines of a failed build that are shown.
const SHOWN: usize = 40;

/// Returns the folder with the module's programs, which are built if missing.
pub async fn ensure(module: &Module, cache: &Path, progress: &Progress) -> Result<PathBuf> {
    let stamp = module.stamp(&tool_chain().await?)?;
    let folder = cache.join("built").join(format!("{}-{stamp}", module.folder));
    if folder.is_dir() {
        return Ok(folder);
    }
    let title = format!("building {} {}", module.title, module.version()?);
    let detail = Detail::default();
    let work = three_times(&title, progress, async || {
        build(module, cache, &folder, &detail).await
    });
    progress.during(&title, &detail, work).await?;
    remove_older(module, &folder)?;
    Ok(folder)
}

async fn build(module: &Module, cache: &Path, folder: &Path, detail: &Detail) -> Result<(), Failure> {
    // Built elsewhere and renamed as a whole: a folder with a stamp is complete. Go's own cache keeps the packages of
    // an interrupted build.
    let temporary = cache.join("building").join(module.folder);
    empty(&temporary).map_err(Failure::Final)?;
    compile(module, &temporary, detail).await?;
    finish(module, &temporary, folder).map_err(Failure::Final)
}

fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove the incomplete {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))
}

fn finish(module: &Module, temporary: &Path, folder: &Path) -> Result<()> {
    for (built, known) in module.renamed {
        let (from, to) = (temporary.join(built), temporary.join(known));
        fs::rename(&from, &to).with_context(|| format!("rename {} to {}", from.display(), to.display()))?;
    }
    for name in module.outputs {
        if !temporary.join(name).is_file() {
            bail!(
                "the build of {} succeeded, but created no {name} in {}",
                module.path().display(),
                temporary.display()
            );
        }
    }
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    fs::rename(temporary, folder)
        .with_context(|| format!("rename {} to {}", temporary.display(), folder.display()))
}

/// `go` with these arguments for a module, always in the same environment, so that each run reuses the packages of the others.
pub fn command(module: &Module, arguments: &[String]) -> Command {
    let mut command = Command::new("go");
    command
        .args(arguments)
        .current_dir(module.path())
        .env("CGO_ENABLED", "0")
        .env_remove("GOFLAGS")
        .env("GOWORK", "off");
    command
}

async fn compile(module: &Module, target: &Path, detail: &Detail) -> Result<(), Failure> {
    let (status, said) = run_build(module, target, detail).await.map_err(Failure::Final)?;
    if status.success() {
        return Ok(());
    }
    let last = said.len().saturating_sub(SHOWN);
    let error = anyhow::anyhow!(
        "go build in {} failed ({status}):\n{}",
        module.path().display(),
        said[last..].join("\n")
    );
    // An error of a download comes before the compilation; the compiler's messages begin with the package name.
    Err(if said.iter().any(|line| line.starts_with("# ")) {
        Failure::Final(error)
    } else {
        Failure::Again(error)
    })
}

/// Runs the build, and returns its status and its output without the names of packages.
async fn run_build(module: &Module, target: &Path, detail: &Detail) -> Result<(ExitStatus, Vec<String>)> {
    // A single program is named by its file, several by their folder.
    let target = match module.renamed {
        [(built, _)] if module.package == "." => target.join(built),
        _ => target.join(""),
    };
    let mut child = command(module, &module.arguments()?)
        .arg("-o")
        .arg(&target)
        .arg(module.package)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("run go build in {}: {HINT}", module.path().display()))?;
    let output = child.stderr.take().context("open the error output of go")?;
    let mut lines = BufReader::new(output).lines();
    let (mut packages, mut said) = (0_u32, Vec::new());
    while let Some(line) = lines.next_line().await.context("read the output of go")? {
        if is_package(&line) {
            packages += 1;
            detail.set(format_args!("{packages} packages compiled"));
        } else if let Some(name) = line.strip_prefix("go: downloading ") {
            detail.set(format_args!("downloading {name}"));
        } else {
            said.push(line);
        }
    }
    let status = child.wait().await.context("wait for go")?;
    Ok((status, said))
}

/// `go build -v` prints the path of each package that it compiles.
fn is_package(line: &str) -> bool {
    !line.is_empty() && !line.contains([' ', '\t', ':']) && !line.starts_with('#')
}

/// The version of Go and its target.
async fn tool_chain() -> Result<String> {
    let output = Command::new("go")
        .args(["env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64"])
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("run `go env`: {HINT}"))?;
    if !output.status.success() {
        bail!(
            "`go env` failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" "))
}

/// Removes builds of the module that have not been used for a while; another checkout may need a recent one. Sets
/// have their own links.
fn remove_older(module: &Module, kept: &Path) -> Result<()> {
    const LIFE: Duration = Duration::from_hours(7 * 24);
    let Some(parent) = kept.parent() else {
        return Ok(());
    };
    let prefix = format!("{}-", module.folder);
    for entry in fs::read_dir(parent).with_context(|| format!("list {}", parent.display()))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let age = fs::metadata(&path)
            .and_then(|data| data.modified())
            .ok()
            .and_then(|time| time.elapsed().ok());
        if path != kept && name.starts_with(&prefix) && age.is_some_and(|age| age > LIFE) {
            fs::remove_dir_all(&path).with_context(|| format!("remove the older {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_names_are_separated_from_messages() {
        for package in ["internal/abi", "k8s.io/kubernetes/cmd/kubelet", "net/http"] {
            assert!(is_package(package), "{package}");
        }
        for message in [
            "# k8s.io/kubernetes/cmd/kubelet",
            "main.go:3:1: syntax error",
            "",
            "go: updates needed",
        ] {
            assert!(!is_package(message), "{message}");
        }
    }
}
