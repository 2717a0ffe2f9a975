//! `cargo lab crash`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use crash_point::Edge;

use super::interrupted;
use super::up::ClusterArguments;
use crate::cluster::{Cluster, PodNetwork};
use crate::crash::matrix::{self, Round, STEPS, STEPS_OF_REAL_CALICO, Step, Victim};
use crate::crash::{Bench, Matrix, start_again_at_once};
use crate::demo::Tools;
use crate::demo::operator::Operator;

/// `cargo lab crash`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Whom the crashes strike; agent, coordinator, API server and node by default.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "VICTIM")]
    pub victim: Vec<Victim>,
    /// How far the step has come when it happens: announced is decided, and in the agent's journal; changed is made, and
    /// nobody has recorded it; recorded is recorded.
    #[arg(
        long,
        value_parser = PossibleValuesParser::new(Edge::ALL.map(Edge::as_str)).try_map(|text| edge(&text)),
        value_delimiter = ',',
        value_name = "EDGE",
        default_value = "changed"
    )]
    pub edge: Vec<Edge>,
    /// Only at these steps; at every one by default. `list` names them.
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    pub step: Vec<String>,
    /// Only these rounds, counted from 1, as FROM-TO: a whole matrix takes more than an hour.
    #[arg(long, value_name = "FROM-TO", value_parser = range)]
    pub rounds: Option<(usize, usize)>,
    /// Write how it went as JSON into this file.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

fn edge(text: &str) -> Result<Edge, String> {
    Edge::ALL
        .into_iter()
        .find(|edge| edge.as_str() == text)
        .ok_or_else(|| format!("{text:?} is no edge of a step"))
}

fn range(text: &str) -> Result<(usize, usize), String> {
    let wrong = || format!("{text:?} is no range such as 3-7");
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    let (from, to) = (
        from.parse().map_err(|_| wrong())?,
        to.parse().map_err(|_| wrong())?,
    );
    if from == 0 || from > to {
        return Err(wrong());
    }
    Ok((from, to))
}

/// Runs it. Exit code 0 when every crash ended in the same state as without one.
pub async fn run(mut arguments: Arguments) -> Result<ExitCode> {
    let steps = steps(arguments.cluster.calico_bin.is_some());
    if arguments.step == ["list"] {
        for step in &steps {
            println!("{:<18} {:?}  {}", step.leg.words(), step.owner, step.name);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let rounds = wanted(&arguments, &steps)?;
    arguments.cluster.start_on(PodNetwork::Flannel)?;
    if arguments.cluster.no_traffic || arguments.cluster.no_sample {
        bail!("--no-traffic, --no-sample: a crash is judged by both; leave them out");
    }
    arguments.cluster.replumb = true;
    arguments.cluster.crash_points = true;
    let tools = arguments.cluster.tools().await?;
    let cluster = arguments.cluster.up().await?;
    let directory = cluster.directory().clone();
    let ended = tokio::select! {
        ended = perform(&cluster, &tools, &rounds) => ended,
        signal = interrupted() => Err(anyhow!("ended by {}", signal?)),
    };
    let matrix = match ended {
        Ok(matrix) => matrix,
        Err(error) => {
            drop(cluster);
            return Err(arguments.cluster.abandon(&directory, error).await);
        }
    };
    println!("\n{}", matrix.text());
    if let Some(file) = &arguments.report {
        std::fs::write(file, serde_json::to_string_pretty(&matrix)?)
            .with_context(|| format!("write the report {}", file.display()))?;
    }
    if arguments.cluster.keep && !matrix.is_well() {
        Cluster::leave_standing(&directory)?;
        println!("the lab is kept in {}", directory.path().display());
    } else {
        cluster.remove().await?;
    }
    Ok(if matrix.is_well() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn steps(real: bool) -> Vec<Step> {
    let more = if real {
        STEPS_OF_REAL_CALICO.as_slice()
    } else {
        &[]
    };
    STEPS.iter().chain(more).copied().collect()
}

fn wanted(arguments: &Arguments, steps: &[Step]) -> Result<Vec<Round>> {
    let wanted = matrix::Wanted {
        victims: if arguments.victim.is_empty() {
            Victim::USUAL.to_vec()
        } else {
            arguments.victim.clone()
        },
        edges: arguments.edge.clone(),
        steps: arguments.step.clone(),
    };
    let cells = wanted.cells(steps).map_err(|error| anyhow!("--step: {error}"))?;
    let mut rounds = matrix::rounds(&cells, arguments.cluster.nodes);
    if let Some((from, to)) = arguments.rounds {
        if from > rounds.len() {
            bail!("--rounds {from}-{to}: there are {} rounds", rounds.len());
        }
        rounds.truncate(to);
        rounds.drain(..from - 1);
    }
    // Nobody is struck in the first: its hosts are what those of the others are compared with.
    rounds.insert(0, Round::default());
    Ok(rounds)
}

async fn perform(cluster: &Cluster, tools: &Tools, rounds: &[Round]) -> Result<Matrix> {
    start_again_at_once(cluster).await?;
    let operator = Operator::new(cluster, &tools.command_line);
    let mut bench = Bench::new(cluster, operator);
    Ok(Matrix::run(&mut bench, rounds, &tools.calico).await)
}
