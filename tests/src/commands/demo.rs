//! `cargo lab demo`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::interrupted;
use super::up::ClusterArguments;
use crate::cluster::Cluster;
use crate::demo::cases::{self, CASES, Case};
use crate::demo::operator::Operator;
use crate::demo::{self, Run, Tools, Wanted};

/// Milliseconds between two probes where nothing is to be lost: a finer look than draining needs.
const IN_PLACE_PROBE_INTERVAL: u64 = 5;

/// `cargo lab demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// How many nodes may be out of work at the same time: a number or a percentage.
    #[arg(long, value_name = "N|N%", default_value = "1")]
    pub max_unavailable: String,
    /// How a node changes its network.
    #[arg(long, value_enum, default_value_t = Strategy::Drain)]
    pub strategy: Strategy,
    /// In place: restart the pods that were there before, under their budgets, once every node is on Calico.
    #[arg(long)]
    pub restart_pods: bool,
    /// In place: hold the mixed state for so long, with pods created, deleted and scaled on every node.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub hold: Option<u64>,
    /// What follows once every node is on Calico.
    #[arg(long, value_enum)]
    pub then: Option<Then>,
    /// Write how it went as JSON into this file.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Spoil a prerequisite first: the migration has to be refused. `list` names the cases.
    #[arg(long = "break", value_name = "CASE")]
    pub broken: Option<String>,
}

/// What follows once every node is on Calico.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Then {
    /// Everything is taken back, and every host compared with what it was before.
    Rollback,
}

/// How a node changes its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Strategy {
    /// Pods leave the node by eviction before its network changes.
    Drain,
    /// The node changes its network under its pods: they keep running, with their addresses.
    InPlace,
}

/// Runs it. Exit code 0 when everything is as it should be; with `--break` 2, as the refused tool itself.
pub async fn run(mut arguments: Arguments) -> Result<ExitCode> {
    let case = match arguments.broken.as_deref() {
        Some("list") => {
            for case in CASES {
                println!("{:<22} {:<34} {}", case.name, case.check, case.about);
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some(name) => Some(cases::find(name)?),
        None => None,
    };
    arguments.cluster.replumb = true;
    if arguments.strategy == Strategy::InPlace {
        arguments
            .cluster
            .probe_interval
            .get_or_insert(IN_PLACE_PROBE_INTERVAL);
    }
    if arguments.then.is_some() && arguments.strategy == Strategy::Drain {
        bail!(
            "--then rollback after --strategy drain: flannel's DaemonSet is deleted by then, which is the point of no return; \
             use --strategy in-place"
        );
    }
    if arguments.then.is_some() && arguments.restart_pods {
        bail!(
            "--then rollback after --restart-pods: the migration goes on to its point of no return by itself; leave one out"
        );
    }
    if arguments.hold.is_some() && (arguments.strategy == Strategy::Drain || arguments.restart_pods) {
        bail!(
            "--hold: pods of both networks live side by side with --strategy in-place and without --restart-pods only"
        );
    }
    arguments.cluster.can_migrate()?;
    let tools = arguments.cluster.tools().await?;
    let cluster = arguments.cluster.up().await?;
    let directory = cluster.directory().clone();
    let ended = tokio::select! {
        ended = perform(&arguments, &cluster, &tools, case) => ended,
        signal = interrupted() => Err(anyhow::anyhow!("ended by {}", signal?)),
    };
    match ended {
        Ok(code) if arguments.cluster.keep => {
            Cluster::leave_standing(&directory)?;
            println!(
                "the lab is kept: `cargo lab kubectl get nmig` looks at it, `cargo lab down` takes it away"
            );
            Ok(code)
        }
        Ok(code) => {
            cluster.remove().await?;
            Ok(code)
        }
        Err(error) => {
            drop(cluster);
            Err(arguments.cluster.abandon(&directory, error).await)
        }
    }
}

async fn perform(
    arguments: &Arguments,
    cluster: &Cluster,
    tools: &Tools,
    case: Option<&Case>,
) -> Result<ExitCode> {
    if let Some(case) = case {
        let text = demo::refuse(cluster, &Operator::new(cluster, &tools.command_line), case).await?;
        println!("{text}");
        println!(
            "refused, as it should be ({}): the cluster has not changed",
            case.about
        );
        return Ok(ExitCode::from(2));
    }
    let mut run = Run::begin(cluster, tools).await?;
    let wanted = Wanted {
        strategy: match arguments.strategy {
            Strategy::Drain => api::migration::Strategy::Drain,
            Strategy::InPlace => api::migration::Strategy::InPlace,
        },
        max_unavailable: arguments.max_unavailable.clone(),
        spec: if arguments.restart_pods {
            serde_json::json!({ "flannelToCalico": { "legacyPods": "Restart" } })
        } else {
            serde_json::json!({})
        },
    };
    let watch = run.migrate(&wanted).await?;
    if let Some(seconds) = arguments.hold {
        run.hold(Duration::from_secs(seconds)).await?;
    }
    match arguments.then {
        Some(Then::Rollback) => run.roll_back().await?,
        None => {}
    }
    let report = run.report(watch).await?;
    println!("\n{}", report.text());
    if let Some(file) = &arguments.report {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("write the report {}", file.display()))?;
    }
    Ok(if report.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
