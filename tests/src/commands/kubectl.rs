//! `cargo lab kubectl`.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::Place;
use crate::cluster::Cluster;

/// `cargo lab kubectl`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The lab.
    #[command(flatten)]
    pub place: Place,
    /// Arguments for kubectl.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub arguments: Vec<String>,
}

/// Replaces this process with kubectl.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let cluster = Cluster::open(arguments.place.open()?).await?;
    let kubectl = cluster.kubectl_program().await;
    let error = std::process::Command::new(&kubectl)
        .arg(format!("--kubeconfig={}", cluster.kubeconfig().display()))
        .args(&arguments.arguments)
        .exec();
    Err(error).with_context(|| format!("start {}", kubectl.display()))
}
