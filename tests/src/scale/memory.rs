//! The coordinator's memory limit: a cgroup below the lab's or, if no cgroup can be created, a limit of its data.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Mount of the memory hierarchy in version 1.
const V1: &str = "/sys/fs/cgroup/memory";
/// Where version 2 is mounted.
const V2: &str = "/sys/fs/cgroup";

/// Prefix of the names; the number of the process follows.
const NAME: &str = "replumb-scale-";

/// A memory limit for one program.
#[derive(Debug)]
pub enum MemoryLimit {
    /// As in a container: resident memory counts, and the kernel ends the process.
    Cgroup(Cgroup),
    /// `RLIMIT_DATA`, in bytes: private writable memory counts, resident or not.
    Data(u64),
}

impl MemoryLimit {
    /// A limit in bytes.
    pub fn create(bytes: u64) -> Result<Self> {
        match Cgroup::place()? {
            Place::Below(parent, file) => Cgroup::create(&parent, file, bytes).map(Self::Cgroup),
            Place::Nowhere(why) => {
                eprintln!("the coordinator is limited by RLIMIT_DATA, not by a cgroup: {why}");
                Ok(Self::Data(bytes))
            }
        }
    }

    /// The kind of limit, for a report.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cgroup(_) => "cgroup",
            Self::Data(_) => "RLIMIT_DATA",
        }
    }

    /// The command that becomes this program under the limit, and ends with the thread that runs it.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.arg("--pdeathsig=KILL");
        match self {
            // The shell joins the cgroup and then becomes the program.
            Self::Cgroup(cgroup) => command
                .args(["sh", "-c", r#"echo $$ > "$0" && exec "$@""#])
                .arg(cgroup.folder.join("cgroup.procs")),
            Self::Data(bytes) => command.arg("prlimit").arg(format!("--data={bytes}")),
        };
        command.arg(program);
        command
    }
}

/// A cgroup with a memory limit. Dropped, it is removed; by then no process may run in it.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
}

/// The place for a new cgroup.
enum Place {
    /// Below this cgroup, with its limit in a file of this name.
    Below(PathBuf, &'static str),
    /// No place, with the reason.
    Nowhere(String),
}

impl Cgroup {
    fn create(parent: &Path, file: &str, bytes: u64) -> Result<Self> {
        remove_abandoned(parent)?;
        let folder = parent.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("create the cgroup {}", folder.display()))?;
        let cgroup = Self { folder };
        let file = cgroup.folder.join(file);
        fs::write(&file, bytes.to_string()).with_context(|| format!("write {}", file.display()))?;
        Ok(cgroup)
    }

    /// Below the cgroup of this process.
    fn place() -> Result<Place> {
        let text = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        if Path::new(V1).join("memory.limit_in_bytes").exists() {
            let line = text.lines().find_map(|line| line.split_once(":memory:"));
            let Some((_, path)) = line else {
                bail!("this process is in no memory cgroup: {text}");
            };
            return Ok(Place::Below(below(V1, path), "memory.limit_in_bytes"));
        }
        let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::")) else {
            return Ok(Place::Nowhere("there is no memory cgroup".to_owned()));
        };
        let folder = below(V2, path);
        let file = folder.join("cgroup.subtree_control");
        let handed_on = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        if handed_on.split_whitespace().any(|name| name == "memory") {
            return Ok(Place::Below(folder, "memory.max"));
        }
        Ok(Place::Nowhere(format!("{} does not list memory", file.display())))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!(
                "the cgroup {} could not be removed: {error}",
                self.folder.display()
            );
        }
    }
}

/// Removes the cgroups of runs that were killed.
fn remove_abandoned(parent: &Path) -> Result<()> {
    for entry in fs::read_dir(parent).with_context(|| format!("list {}", parent.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let owner = name.and_then(|name| name.strip_prefix(NAME)?.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            fs::remove_dir(&path).with_context(|| format!("remove the cgroup {}", path.display()))?;
        }
    }
    Ok(())
}

/// A container sees its own cgroup as the root, whatever path the file has.
fn below(mount: &str, path: &str) -> PathBuf {
    let folder = Path::new(mount).join(path.trim_start_matches('/'));
    if folder.is_dir() {
        folder
    } else {
        PathBuf::from(mount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_precedes_its_arguments_in_the_command() {
        let command = MemoryLimit::Data(4096).command(Path::new("/bin/true"));
        let words: Vec<_> = command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        assert_eq!(words, ["--pdeathsig=KILL", "prlimit", "--data=4096", "/bin/true"]);
    }
}
