//! The holder: creates the namespaces, starts process 1 in them, and waits for its end.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::MachineSpec;
use crate::cluster::cgroup;

/// Runs as the machine's holder until process 1 has ended. Must be called before the process has a second thread.
pub fn hold(file: &Path) -> Result<()> {
    let spec = MachineSpec::read(file)?;
    // A separate session: a Ctrl-C at the caller's terminal must not end the machine.
    nix::unistd::setsid().context("start a session for the machine")?;
    // The cgroup is first: if a later step fails, `down` finds every process of the machine there.
    cgroup::join(&spec.cgroup)?;
    let namespaces = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWPID;
    unshare(namespaces)
        .with_context(|| format!("create the namespaces of machine {} (are you root?)", spec.name))?;
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .context("set the machine's mounts to private")?;

    let log = File::options()
        .create(true)
        .append(true)
        .open(spec.logs.join("init.log"))
        .with_context(|| format!("open the log of machine {}", spec.name))?;
    // Process 1 changes the root of the whole mount namespace, also for the holder: needed files are opened before.
    let pid_file = MachineSpec::pid_file(&spec.directory);
    let mut pid_out = File::create(&pid_file).with_context(|| format!("create {}", pid_file.display()))?;
    let proc_directory = File::open("/proc").context("open /proc")?;
    let mut child = Command::new("/proc/self/exe")
        .arg("machine-init")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("start process 1 of machine {}", spec.name))?;
    let started = start_time_in(&proc_directory, child.id()).unwrap_or_default();
    writeln!(pid_out, "{} {started}", child.id()).with_context(|| format!("write {}", pid_file.display()))?;
    pid_out.sync_all().ok();
    let status = child.wait().context("wait for process 1")?;
    if !status.success() {
        bail!("process 1 of machine {} ended: {status}", spec.name);
    }
    Ok(())
}

/// The start time of a process in clock ticks since boot: with the pid it identifies one process.
pub fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn start_time_in(proc_directory: &File, pid: u32) -> Option<u64> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}/{pid}/stat", proc_directory.as_raw_fd());
    parse_start_time(&std::fs::read_to_string(path).ok()?)
}

fn parse_start_time(stat: &str) -> Option<u64> {
    // The second field is the command in parentheses, which may have spaces; the next is the state, field 22 the start time.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // A process that has ended but is not reaped yet counts as ended.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_start_time_even_with_a_strange_name() {
        assert!(start_time(std::process::id()).is_some());
        let stat = "17 (a) b c) S 1 17 17 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 9";
        assert_eq!(parse_start_time(stat), Some(4242));
        let ended = stat.replace(") S ", ") Z ");
        assert_eq!(parse_start_time(&ended), None);
    }

    #[test]
    fn an_ended_process_has_no_start_time() {
        assert_eq!(start_time(u32::MAX), None);
    }
}
