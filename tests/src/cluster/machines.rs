//! Switches machines on and off.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};

use super::cgroup;
use super::clean;
use super::directory::Directory;
use super::node::IMAGES;
use super::state::{CONTROL_PLANE, State};
use super::wait::{Observation, until};
use crate::machine::{Control, MachineSpec, start_time};

/// Time limit to create namespaces and a socket: less than a second, unless the machine under the lab is busy.
const LIMIT: Duration = Duration::from_secs(30);

/// The pid of process 1, if exactly this process still lives.
pub fn pid(folder: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(MachineSpec::pid_file(folder)).ok()?;
    let mut words = text.split_whitespace();
    let pid: u32 = words.next()?.parse().ok()?;
    let started: u64 = words.next()?.parse().ok()?;
    (start_time(pid)? == started).then_some(pid)
}

/// Starts a machine and waits until its process 1 answers.
pub async fn power_on(directory: &Directory, state: &State, name: &str) -> Result<u32> {
    let folder = directory.machine(name);
    let spec = MachineSpec {
        name: name.to_owned(),
        directory: folder.clone(),
        logs: directory.machine_logs(name),
        cgroup: directory.machine_cgroup(name),
        binds: vec![
            (state.binaries.clone(), PathBuf::from("/opt/lab/bin")),
            (directory.images(), PathBuf::from(IMAGES)),
        ],
        sysctls: sysctls(name == CONTROL_PLANE),
    };
    cgroup::create(&spec.cgroup).with_context(|| format!("create the cgroups of machine {name}"))?;
    let file = spec.write()?;
    let pid_file = MachineSpec::pid_file(&folder);
    if pid_file.exists() {
        std::fs::remove_file(&pid_file).with_context(|| format!("remove the old {}", pid_file.display()))?;
    }
    let log = spec.logs.join("holder.log");
    let log = std::fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
    // Dropped without an end: the holder outlives this program, and tokio reaps it if it ends before.
    let mut holder = tokio::process::Command::new(&state.program)
        .arg("machine-hold")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("start {} for machine {name}", state.program.display()))?;
    // The holder also joins the cgroup, but until then a removal of the lab would not find it. A holder that has
    // ended already is reported below, with its output.
    if let Some(process) = holder.id() {
        cgroup::adopt(&spec.cgroup, process).ok();
    }
    let control = Control::new(&folder);
    until(
        &format!("process 1 of machine {name}"),
        LIMIT,
        &spec.logs,
        async || {
            if let Some(status) = holder.try_wait()? {
                let said = std::fs::read_to_string(spec.logs.join("init.log")).unwrap_or_default();
                let last = said.lines().last().unwrap_or("nothing");
                return Ok(Observation::NotYet(format!(
                    "process ended ({status}) with: {last}"
                )));
            }
            let Some(pid) = pid(&folder) else {
                return Ok(Observation::NotYet("no process 1 yet".into()));
            };
            control.status().await?;
            Ok(Observation::Done(pid))
        },
    )
    .await
}

/// Powers a machine off: every process of the machine is killed at once, as in a power failure.
pub async fn power_off(directory: &Directory, name: &str) -> Result<()> {
    let name_of_cgroup = directory.machine_cgroup(name);
    clean::end_processes(&name_of_cgroup)
        .await
        .with_context(|| format!("switch machine {name} off"))?;
    // A machine that starts again has no cgroups of its earlier pods.
    clean::remove_cgroup(&name_of_cgroup).await
}

fn sysctls(switch: bool) -> Vec<(String, String)> {
    let settings: &[(&str, &str)] = if switch {
        // The bridge only forwards frames: the lab's traffic must not pass a packet filter here.
        &[
            ("net/bridge/bridge-nf-call-iptables", "0"),
            ("net/bridge/bridge-nf-call-ip6tables", "0"),
            ("net/bridge/bridge-nf-call-arptables", "0"),
        ]
    } else {
        // The settings of a kubeadm node: forwarding, bridged traffic through iptables, strict reverse path filters.
        &[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/rp_filter", "1"),
            ("net/ipv4/conf/default/rp_filter", "1"),
            ("net/bridge/bridge-nf-call-iptables", "1"),
            ("net/bridge/bridge-nf-call-ip6tables", "1"),
        ]
    };
    settings
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}
