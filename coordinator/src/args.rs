//! Command-line arguments as values.

use std::net::{IpAddr, SocketAddr};

use clap::Parser;
use runtime::log::Log;

/// The replumb coordinator: decides the order of changes across the cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "replumb-coordinator", version)]
pub struct Args {
    /// Namespace of the coordinator, its Lease and its probe pods.
    #[arg(long, env = "POD_NAMESPACE", default_value = api::names::NAMESPACE)]
    pub namespace: String,
    /// Name of the coordinator's pod, used as its identity in the Lease.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: String,
    /// Node of the coordinator; this node is changed last.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Image of the agent, used for probe pods because every node already has it.
    #[arg(long, env = "AGENT_IMAGE")]
    pub agent_image: String,
    /// Address and port for metrics and health. Default: the node's address, or all addresses if no node address is set.
    #[arg(long, env = "REPLUMB_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Port that serves metrics over TLS instead, to tokens whose user may get /metrics. Default: none.
    #[arg(long, env = "REPLUMB_SECURE_METRICS_PORT")]
    pub secure_metrics_port: Option<u16>,
    /// Address of the node. The kubelet sends health probes to it.
    #[arg(long, env = api::names::HOST_ADDRESS_ENVIRONMENT)]
    pub host_address: Option<IpAddr>,
    /// Logging.
    #[command(flatten)]
    pub log: Log,
}
