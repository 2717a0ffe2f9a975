//! Command-line arguments.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use runtime::log::Log;

/// The node agent of replumb: observes and changes one node.
#[derive(Clone, Debug, Parser)]
#[command(name = "replumb-agent", version, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// Command; default: run the agent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`.
    #[command(flatten)]
    pub run: Run,
}

/// Commands of the program.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the agent of this node until the process is terminated (the default).
    Run(Box<Run>),
    /// Answer probes on UDP and TCP: the probe pod.
    Echo(Echo),
    /// Answer probes, and send the probes that the agent of the node requests: the traffic pod.
    Traffic(Traffic),
}

/// Flags of `run`.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// Name of the node that the agent runs on.
    #[arg(long, env = api::names::NODE_NAME_ENVIRONMENT)]
    pub node_name: Option<String>,
    /// Address and port for metrics and health. Default: the address of --host-address, or every address if that is not set.
    #[arg(long, env = "REPLUMB_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Port for metrics over TLS instead; needs a token whose user may get /metrics. Default: no such port.
    #[arg(long, env = "REPLUMB_SECURE_METRICS_PORT")]
    pub secure_metrics_port: Option<u16>,
    /// IP address of the node, to which the kubelet sends health probes.
    #[arg(long, env = api::names::HOST_ADDRESS_ENVIRONMENT)]
    pub host_address: Option<IpAddr>,
    /// Folder of the socket for the traffic pods of the node.
    #[arg(long, env = "REPLUMB_RUN_DIR", default_value = api::names::RUN_DIRECTORY)]
    pub run_dir: PathBuf,
    /// Folder for the journal and the backups.
    #[arg(long, env = "REPLUMB_STATE_DIR", default_value = "/var/lib/replumb")]
    pub state_dir: PathBuf,
    /// Folder in which flanneld writes `subnet.env`.
    #[arg(long, env = "REPLUMB_FLANNEL_DIR", default_value = "/run/flannel")]
    pub flannel_dir: PathBuf,
    /// Folder with the state of CNI plugins.
    #[arg(long, env = "REPLUMB_CNI_STATE_DIR", default_value = "/var/lib/cni")]
    pub cni_state_dir: PathBuf,
    /// Folder with the executables of CNI plugins.
    #[arg(long, env = "REPLUMB_CNI_PLUGINS_DIR", default_value = "/opt/cni/bin")]
    pub cni_plugins_dir: PathBuf,
    /// Folder with the configuration of CRI-O, on hosts with CRI-O.
    #[arg(long, env = "REPLUMB_CRIO_DIR", default_value = "/etc/crio")]
    pub crio_dir: PathBuf,
    /// Writable mount of the host's `/proc/sys/net`; a container's own is read-only.
    #[arg(long, env = "REPLUMB_SYSCTL_DIR", default_value = "/host/proc/sys/net")]
    pub sysctl_dir: PathBuf,
    /// Folder with the host's processes and kernel parameters.
    #[arg(long, env = "REPLUMB_PROC_DIR", default_value = "/proc")]
    pub proc_dir: PathBuf,
    /// UID of the agent's own pod, which cannot always be read from its processes.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,
    /// Flags of the log.
    #[command(flatten)]
    pub log: Log,
}

/// Flags of the probe pod.
#[derive(Clone, Debug, Args)]
pub struct Echo {
    /// Port on which probes are answered, UDP and TCP.
    #[arg(long, env = "REPLUMB_ECHO_PORT", default_value_t = api::names::PROBE_PORT)]
    pub port: u16,
    /// UID of the pod, contained in each answer.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,
}

/// Flags of the traffic pod.
#[derive(Clone, Debug, Args)]
pub struct Traffic {
    /// Flags of answering.
    #[command(flatten)]
    pub echo: Echo,
    /// Folder of the socket of the node's agent.
    #[arg(long, env = "REPLUMB_RUN_DIR", default_value = api::names::RUN_DIRECTORY)]
    pub run_dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_command_runs_the_agent() {
        let arguments = Arguments::parse_from(["replumb-agent", "--node-name", "a"]);
        assert!(arguments.command.is_none());
        assert_eq!(arguments.run.node_name.as_deref(), Some("a"));
    }

    #[test]
    fn echo_needs_no_node_name() {
        let arguments = Arguments::parse_from(["replumb-agent", "echo", "--port", "9812"]);
        assert!(matches!(
            arguments.command,
            Some(Command::Echo(Echo { port: 9812, .. }))
        ));
    }
}
