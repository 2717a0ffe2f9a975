//! Kills processes of pods, as in a crash. For services of a machine see [`Cluster::kill_service`].

use std::time::Duration;

use anyhow::Result;

use super::Cluster;
use super::wait::{self, Observation};

/// Time limit for the next pod of a `DaemonSet` on a node to start.
const LIMIT: Duration = Duration::from_mins(1);

/// Identifies a process: its name, and words that its command line must not have.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    without: &'static str,
}

impl Process {
    const fn named(name: &'static str) -> Self {
        Self { name, without: "-" }
    }
}

/// replumb's agent. The pods that answer probes and generate traffic run the same program.
pub const AGENT: Process = Process {
    name: "replumb-agent",
    without: "*' echo'*|*' traffic'*",
};
/// replumb's coordinator: the kernel keeps 15 characters of a name.
pub const COORDINATOR: Process = Process::named("replumb-coordin");
/// Calico's agent.
pub const CALICO_NODE: Process = Process::named("calico-node");
/// flannel's daemon.
pub const FLANNELD: Process = Process::named("flanneld");

impl Cluster {
    /// Kills a process on a node with SIGKILL, and waits for it while its pod is being replaced. No process of that
    /// name is an error.
    pub async fn kill_process(&self, node: &str, process: &Process) -> Result<()> {
        let Process { name, without } = process;
        let script = format!(
            "for process in /proc/[0-9]*; do
                 [ \"$(cat $process/comm 2>/dev/null)\" = {name} ] || continue
                 case \"$(tr '\\0' ' ' < $process/cmdline)\" in {without}) continue;; esac
                 kill -9 ${{process#/proc/}} && echo killed
             done"
        );
        let what = format!("process {name} on node {node}, to kill it");
        wait::until(&what, LIMIT, &self.directory.logs(), async || {
            let said = self.run_in_node(node, &["sh", "-c", &script]).await?;
            Ok(if said.contains("killed") {
                Observation::Done(())
            } else {
                Observation::NotYet("no process of that name".to_owned())
            })
        })
        .await
    }
}
