//! `cargo lab policies`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::interrupted;
use super::up::ClusterArguments;
use crate::assets;
use crate::cluster::{Cluster, PodNetwork, ProxyMode};
use crate::policies::{self, DataPlane, ROUNDS, Request, Round};
use crate::progress::Progress;

/// Value in place of a round: prints the names of the rounds.
const LIST: &str = "list";

/// `cargo lab policies`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Measure only this round; may be repeated. `list` names the rounds. Default: all of them.
    #[arg(long = "round", value_name = "ROUND")]
    pub rounds: Vec<String>,
    /// Data plane of Felix. nftables needs kube-proxy in the same mode, which is then set, too.
    #[arg(long, value_enum, default_value_t)]
    pub data_plane: DataPlane,
    /// Write the result as JSON into this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

impl Arguments {
    /// Refuses a cluster without policies, and starts no more than the comparison needs. Returns the implementation of Calico and
    /// the rounds.
    fn prepare(&mut self) -> Result<(String, Vec<Round>)> {
        let cluster = &mut self.cluster;
        let Some(calico) = &cluster.calico_bin else {
            bail!(
                "the stand-in for Calico enforces no NetworkPolicy, so there is nothing to compare: add --calico-bin DIR with the \
                 real calico-node and calico"
            );
        };
        let calico = format!("real, from {}", calico.display());
        let network = *cluster.network.get_or_insert(PodNetwork::Calico);
        if network != PodNetwork::Calico {
            bail!(
                "--network {}: the policies of a cluster with Calico are compared; omit the option",
                network.option()
            );
        }
        if cluster.nodes < 3 {
            bail!(
                "--nodes {}: pods on three nodes are compared; use 3 or more",
                cluster.nodes
            );
        }
        (cluster.no_sample, cluster.no_traffic) = (true, true);
        match self.data_plane {
            DataPlane::Iptables => {}
            DataPlane::Nftables => cluster.proxy_mode = ProxyMode::Nftables,
        }
        Ok((calico, Round::find(&self.rounds)?))
    }
}

/// Compares the preview with Felix. Exit code 1 if they differ, or if a connection was not measured.
pub async fn run(mut arguments: Arguments) -> Result<ExitCode> {
    if arguments.rounds.iter().any(|round| round == LIST) {
        for round in ROUNDS {
            println!("{}", round.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (calico, rounds) = arguments.prepare()?;
    let traffic = assets::traffic(arguments.cluster.build(), &Progress::default()).await?;
    let cluster = arguments.cluster.up().await?;
    let directory = cluster.directory().clone();
    let request = Request {
        calico: &calico,
        traffic: &traffic,
        data_plane: arguments.data_plane,
        rounds,
        listen: arguments.cluster.ip_families.unspecified(),
    };
    let ended = tokio::select! {
        ended = policies::compare(&cluster, &request) => ended,
        signal = interrupted() => Err(anyhow::anyhow!("ended by {}", signal?)),
    };
    let report = match ended {
        Ok(report) => report,
        Err(error) => {
            drop(cluster);
            return Err(arguments.cluster.abandon(&directory, error).await);
        }
    };
    println!("\n{}", report.text());
    if let Some(file) = &arguments.report {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("write the report {}", file.display()))?;
    }
    if arguments.cluster.keep {
        Cluster::keep(&directory)?;
        println!("the lab is kept: `cargo lab down` removes it");
    } else {
        cluster.remove().await?;
    }
    Ok(if report.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn refusal(options: &str) -> String {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            arguments: Arguments,
        }
        let mut arguments = Line::parse_from(format!("policies {options}").split_whitespace()).arguments;
        arguments
            .prepare()
            .map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn a_cluster_without_enforced_policies_is_refused() {
        let said = refusal("");
        assert!(
            said.contains("stand-in") && said.contains("--calico-bin"),
            "{said}"
        );
        let real = "--calico-bin /nowhere";
        assert_eq!(refusal(real), "");
        assert!(refusal(&format!("{real} --network flannel")).contains("--network flannel"));
        assert!(refusal(&format!("{real} --nodes 2")).contains("--nodes 2"));
        assert!(refusal(&format!("{real} --round nothing")).contains("nothing"));
    }
}
