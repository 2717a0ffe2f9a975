//! Flags of the connection to a cluster.

#![expect(
    clippy::doc_markdown,
    reason = "these are help texts: a terminal shows the backticks"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::value;

/// The cluster and the user.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct Connection {
    /// Path of the kubeconfig file. Default: KUBECONFIG, then ~/.kube/config, then the ServiceAccount of the pod.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of the kubeconfig context to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Name of the kubeconfig cluster to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// Name of the kubeconfig user to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// User to impersonate.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,
    /// Group to impersonate; may be given several times.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub impersonate_groups: Vec<String>,
    /// Namespace that replumb is installed in. Migrations have no namespace.
    #[arg(long, short, global = true, value_name = "NAMESPACE", default_value = api::names::NAMESPACE,
        value_parser = value::namespace)]
    pub namespace: String,
    /// Timeout of a single request to the API server.
    #[arg(long, global = true, value_name = "DURATION", default_value = "10s", value_parser = value::wait)]
    pub request_timeout: Duration,
}
