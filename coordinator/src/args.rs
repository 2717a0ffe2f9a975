//! What was typed, as values.

use std::net::{IpAddr, SocketAddr};

use clap::Parser;
use runtime::log::Log;

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
    /// Address and port of metrics and health; by default the node's own address, and every address where that is not said either.
    #[arg(long, env = "REPLUMB_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Port on which metrics are served instead, by TLS and to tokens whose user may get /metrics; none by default.
    #[arg(long, env = "REPLUMB_SECURE_METRICS_PORT")]
    pub secure_metrics_port: Option<u16>,
    /// The node's own address: the one that the kubelet asks for health.
    #[arg(long, env = api::names::HOST_ADDRESS_ENVIRONMENT)]
    pub host_address: Option<IpAddr>,
    /// Its log.
    #[command(flatten)]
    pub log: Log,
}
