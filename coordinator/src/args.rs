//! What was typed, as values.

use std::net::SocketAddr;

use clap::{Parser, ValueEnum};

/// The coordinator of replumb: sets the order across the cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "replumb-coordinator", version)]
pub struct Args {
    /// Namespace that the coordinator, its Lease and its probe pods live in.
    #[arg(long, env = "POD_NAMESPACE", default_value = api::names::NAMESPACE)]
    pub namespace: String,
    /// Name of the coordinator's pod: its identity in the Lease.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: String,
    /// Name of the node that the coordinator runs on: it is changed last.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Image of the agent, which is on every node already: probe pods use it.
    #[arg(long, env = "AGENT_IMAGE")]
    pub agent_image: String,
    /// Address of metrics and health.
    #[arg(long, env = "REPLUMB_LISTEN", default_value_t = SocketAddr::from(([0, 0, 0, 0], api::names::COORDINATOR_PORT)))]
    pub listen: SocketAddr,
    /// How log lines are written.
    #[arg(long, env = "REPLUMB_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Which log lines are written, in the syntax of `RUST_LOG`.
    #[arg(long, env = "REPLUMB_LOG_FILTER", default_value = "info,kube=warn")]
    pub log_filter: String,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}
