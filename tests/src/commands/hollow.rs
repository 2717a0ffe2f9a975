//! `cargo lab hollow`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;

use super::{Ended, interrupted};
use crate::apilab;
use crate::scale::POD_NETWORK;
use crate::scale::hollow::Fleet;

/// `cargo lab hollow`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Access to the API server. Its user must be allowed to write the status of every `NodeMigration`.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: PathBuf,
    /// Network of flannel
    #[arg(long, value_name = "RANGE", default_value = POD_NETWORK)]
    pub pod_network: Ipv4Net,
}

/// Plays the agents of every node until the program is told to end.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let file = &arguments.kubeconfig;
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let client = apilab::client(&text).await?;
    println!(
        "these agents are hollow: they have no hosts, change nothing and report every probe as answered"
    );
    tokio::select! {
        ended = Fleet::new(client, arguments.pod_network).run() => ended.map(|()| ExitCode::SUCCESS),
        signal = interrupted() => Err(Ended(signal?).into()),
    }
}
