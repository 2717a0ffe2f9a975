//! What was typed, as values.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use runtime::log::Log;

/// The node agent of replumb: reads one node and changes it.
#[derive(Clone, Debug, Parser)]
#[command(name = "replumb-agent", version, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// What to do; the agent itself when nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of the agent itself.
    #[command(flatten)]
    pub run: Run,
}

/// What the program can do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Look after this node until the process is ended (the default).
    Run(Box<Run>),
    /// Answer probes on UDP and TCP: the probe pod.
    Echo(Echo),
    /// Answer probes, and send without pause what the agent of the node asks for: the traffic pod.
    Traffic(Traffic),
}

/// Flags of the agent itself.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// Name of the node that the agent runs on.
    #[arg(long, env = api::names::NODE_NAME_ENVIRONMENT)]
    pub node_name: Option<String>,
    /// Address and port of metrics and health; by default the node's own address, and every address where that is not said either.
    #[arg(long, env = "REPLUMB_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Port on which metrics are served instead, by TLS and to tokens whose user may get /metrics; none by default.
    #[arg(long, env = "REPLUMB_SECURE_METRICS_PORT")]
    pub secure_metrics_port: Option<u16>,
    /// The node's own address: the one that the kubelet asks for health.
    #[arg(long, env = api::names::HOST_ADDRESS_ENVIRONMENT)]
    pub host_address: Option<IpAddr>,
    /// Folder in which it listens for the traffic pods of its node.
    #[arg(long, env = "REPLUMB_RUN_DIR", default_value = api::names::RUN_DIRECTORY)]
    pub run_dir: PathBuf,
    /// Folder of the journal and the backups.
    #[arg(long, env = "REPLUMB_STATE_DIR", default_value = "/var/lib/replumb")]
    pub state_dir: PathBuf,
    /// Folder in which flanneld writes `subnet.env`.
    #[arg(long, env = "REPLUMB_FLANNEL_DIR", default_value = "/run/flannel")]
    pub flannel_dir: PathBuf,
    /// Folder of the state of CNI plugins.
    #[arg(long, env = "REPLUMB_CNI_STATE_DIR", default_value = "/var/lib/cni")]
    pub cni_state_dir: PathBuf,
    /// Folder of the programs of CNI plugins.
    #[arg(long, env = "REPLUMB_CNI_PLUGINS_DIR", default_value = "/opt/cni/bin")]
    pub cni_plugins_dir: PathBuf,
    /// The host's `/proc/sys/net`, where it can be written: a container's own is read-only.
    #[arg(long, env = "REPLUMB_SYSCTL_DIR", default_value = "/host/proc/sys/net")]
    pub sysctl_dir: PathBuf,
    /// Where the host's processes and kernel parameters are.
    #[arg(long, env = "REPLUMB_PROC_DIR", default_value = "/proc")]
    pub proc_dir: PathBuf,
    /// UID of the agent's own pod: its processes do not always say it themselves.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,
    /// Its log.
    #[command(flatten)]
    pub log: Log,
}

/// Flags of the probe pod.
#[derive(Clone, Debug, Args)]
pub struct Echo {
    /// Port to answer on, UDP and TCP.
    #[arg(long, env = "REPLUMB_ECHO_PORT", default_value_t = api::names::PROBE_PORT)]
    pub port: u16,
    /// UID of the pod: what `who` is answered with.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,
}

/// Flags of the traffic pod.
#[derive(Clone, Debug, Args)]
pub struct Traffic {
    /// Where it answers.
    #[command(flatten)]
    pub echo: Echo,
    /// Folder in which the agent of the node listens.
    #[arg(long, env = "REPLUMB_RUN_DIR", default_value = api::names::RUN_DIRECTORY)]
    pub run_dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_word_it_is_the_agent() {
        let arguments = Arguments::parse_from(["replumb-agent", "--node-name", "a"]);
        assert!(arguments.command.is_none());
        assert_eq!(arguments.run.node_name.as_deref(), Some("a"));
    }

    #[test]
    fn the_probe_pod_needs_no_node() {
        let arguments = Arguments::parse_from(["replumb-agent", "echo", "--port", "9812"]);
        assert!(matches!(
            arguments.command,
            Some(Command::Echo(Echo { port: 9812, .. }))
        ));
    }
}
