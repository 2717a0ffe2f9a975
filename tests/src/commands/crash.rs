//! `cargo lab crash`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use api::migration::LegacyPods;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use crash_point::Edge;

use super::demo::Kind;
use super::demo::pod_cidr::Mode;
use super::interrupted;
use super::up::ClusterArguments;
use crate::cluster::{Cluster, PodNetwork};
use crate::crash::matrix::{self, Round, Step, Victim};
use crate::crash::pod_cidr::steps::{self, Cell, Leg};
use crate::crash::{Bench, Matrix, pod_cidr, shorten_restart_delay};
use crate::demo::Tools;
use crate::demo::operator::Operator;
use crate::demo::pod_cidr::Request;

/// Targets of a crash while the range changes: only the coordinator takes these steps, for the whole cluster.
const VICTIMS_OF_POD_CIDR: [Victim; 3] = [Victim::Coordinator, Victim::ApiServer, Victim::Etcd];

/// `cargo lab crash`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Kind of migration
    #[arg(long, value_enum, default_value = "flannel-to-calico")]
    pub migration: Kind,
    /// Targets of the crashes. Default: agent, coordinator, API server and node; for a change of range the coordinator.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "VICTIM")]
    pub victim: Vec<Victim>,
    /// Progress of the step at the crash: announced: decided and in the agent's journal; changed: made but not yet
    /// recorded; recorded: recorded. Default: changed; for a change of range both of its edges.
    #[arg(
        long,
        value_parser = PossibleValuesParser::new(Edge::ALL.map(Edge::as_str)).try_map(|text| edge(&text)),
        value_delimiter = ',',
        value_name = "EDGE"
    )]
    pub edge: Vec<Edge>,
    /// Only these steps. Default: all steps. `list` names them.
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    pub step: Vec<String>,
    /// From flannel: only these rounds, counted from 1, as FROM-TO. A whole matrix takes more than an hour.
    #[arg(long, value_name = "FROM-TO", value_parser = range)]
    pub rounds: Option<(usize, usize)>,
    /// From flannel: leave the pods from before on flannel's bridge. Default: they are adopted.
    #[arg(long)]
    pub keep_pods: bool,
    /// Change of range: only these directions. Default: all.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LEG")]
    pub leg: Vec<Leg>,
    /// Change of range: how pods leave the old range. Default: by workload.
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// Write the result as JSON into this file.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

fn edge(text: &str) -> Result<Edge, String> {
    Edge::ALL
        .into_iter()
        .find(|edge| edge.as_str() == text)
        .ok_or_else(|| format!("{text:?} is not an edge of a step"))
}

fn range(text: &str) -> Result<(usize, usize), String> {
    let wrong = || format!("{text:?} is not a range such as 3-7");
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

/// The work to do in the cluster.
enum Job {
    FlannelToCalico(LegacyPods, Vec<Round>),
    PodCidr(Request, Vec<Cell>),
}

/// Result of the crashes.
struct Ended {
    text: String,
    is_well: bool,
    report: serde_json::Value,
}

/// Runs the crashes. Exit code 0 if every crash ended in the same state as a run without a crash.
pub async fn run(mut arguments: Arguments) -> Result<ExitCode> {
    if arguments.step == ["list"] {
        list(&arguments)?;
        return Ok(ExitCode::SUCCESS);
    }
    let job = Job::prepare(&mut arguments)?;
    if arguments.cluster.no_traffic || arguments.cluster.no_sample {
        bail!("--no-traffic, --no-sample: a crash is judged by traffic and samples: omit both options");
    }
    arguments.cluster.replumb = true;
    arguments.cluster.crash_points = true;
    let tools = arguments.cluster.tools().await?;
    let cluster = arguments.cluster.up().await?;
    let directory = cluster.directory().clone();
    let ended = tokio::select! {
        ended = job.perform(&cluster, &tools) => ended,
        signal = interrupted() => Err(anyhow!("ended by {}", signal?)),
    };
    let Ended {
        text,
        is_well,
        report,
    } = match ended {
        Ok(ended) => ended,
        Err(error) => {
            drop(cluster);
            return Err(arguments.cluster.abandon(&directory, error).await);
        }
    };
    println!("\n{text}");
    if let Some(file) = &arguments.report {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("write the report {}", file.display()))?;
    }
    if arguments.cluster.keep && !is_well {
        Cluster::keep(&directory)?;
        println!("the lab is kept in {}", directory.path().display());
    } else {
        cluster.remove().await?;
    }
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Crashes between the writes of this kind are tested for one Service at a time.
const NO_MATRIX: &str = "--migration service-cidr has no crash matrix in a lab: `cargo test -p lab --test api_services -- --ignored` \
                         kills between any two writes on a real API server";

/// Crashes between writes to the stores are tested without a cluster.
const NO_MATRIX_OF_STORES: &str = "--migration calico-datastore has no crash matrix in a lab: `cargo lab test --only datastore` kills at \
                                   each write to the stores, `--only calico-datastore` kills the coordinator";

fn list(arguments: &Arguments) -> Result<()> {
    match arguments.migration {
        Kind::FlannelToCalico => {
            for step in steps_from_flannel(arguments) {
                println!("{:<18} {:?}  {}", step.leg.words(), step.owner, step.name);
            }
        }
        Kind::PodCidr => {
            let all = Arguments {
                step: Vec::new(),
                ..arguments.clone()
            };
            for cell in cells(&all)? {
                println!(
                    "{:<32} {:<20} {}",
                    cell.leg.words(),
                    cell.step,
                    cell.edge.as_str()
                );
            }
        }
        Kind::ServiceCidr => bail!(NO_MATRIX),
        Kind::CalicoDatastore => bail!(NO_MATRIX_OF_STORES),
    }
    Ok(())
}

impl Job {
    /// Refuses options that exclude each other.
    fn prepare(arguments: &mut Arguments) -> Result<Self> {
        match arguments.migration {
            Kind::FlannelToCalico => {
                if !arguments.leg.is_empty() || arguments.mode.is_some() {
                    bail!(
                        "--leg and --mode apply to a change of range: add --migration pod-cidr, or omit them"
                    );
                }
                arguments.cluster.start_on(PodNetwork::Flannel)?;
                let steps = steps_from_flannel(arguments);
                let legacy_pods = if arguments.keep_pods {
                    LegacyPods::Keep
                } else {
                    LegacyPods::Adopt
                };
                Ok(Self::FlannelToCalico(legacy_pods, wanted(arguments, &steps)?))
            }
            Kind::PodCidr => {
                if arguments.keep_pods {
                    bail!("--keep-pods applies to the migration from flannel: omit it");
                }
                if arguments.rounds.is_some() {
                    bail!("--rounds applies to the migration from flannel: use --leg and --step");
                }
                arguments.cluster.start_on(PodNetwork::Calico)?;
                let wanted = Request {
                    mode: arguments.mode.unwrap_or_default().into(),
                    ..Request::new("1")?
                };
                Ok(Self::PodCidr(wanted, cells(arguments)?))
            }
            Kind::ServiceCidr => bail!(NO_MATRIX),
            Kind::CalicoDatastore => bail!(NO_MATRIX_OF_STORES),
        }
    }

    async fn perform(&self, cluster: &Cluster, tools: &Tools) -> Result<Ended> {
        shorten_restart_delay(cluster).await?;
        match self {
            Self::FlannelToCalico(legacy_pods, rounds) => {
                let operator = Operator::new(cluster, &tools.command_line);
                let mut bench = Bench::new(cluster, operator, *legacy_pods);
                let matrix = Matrix::run(&mut bench, rounds, &tools.calico).await;
                Ok(Ended {
                    text: matrix.text(),
                    is_well: matrix.is_well(),
                    report: serde_json::to_value(&matrix)?,
                })
            }
            Self::PodCidr(wanted, cells) => {
                let matrix = pod_cidr::Matrix::run(cluster, tools, wanted.clone(), cells).await?;
                Ok(Ended {
                    text: matrix.text(),
                    is_well: matrix.is_well(),
                    report: serde_json::to_value(&matrix)?,
                })
            }
        }
    }
}

fn steps_from_flannel(arguments: &Arguments) -> Vec<Step> {
    matrix::steps(arguments.cluster.calico_bin.is_some(), !arguments.keep_pods)
}

/// The crashes while the range changes.
fn cells(arguments: &Arguments) -> Result<Vec<Cell>> {
    let victim = match arguments.victim.as_slice() {
        [] => Victim::Coordinator,
        [victim] if VICTIMS_OF_POD_CIDR.contains(victim) => *victim,
        _ => bail!(
            "--victim: each step of a change of range is the coordinator's, for the whole cluster; use one of {}",
            VICTIMS_OF_POD_CIDR.map(Victim::words).join(", ")
        ),
    };
    let mode = arguments.mode.unwrap_or_default().into();
    let mut cells = steps::cells(mode, victim, &arguments.leg, &arguments.step)
        .map_err(|error| anyhow!("--step: {error}"))?;
    cells.retain(|cell| arguments.edge.is_empty() || arguments.edge.contains(&cell.edge));
    if cells.is_empty() {
        bail!("--leg, --step and --edge select no crash: `--step list` lists all steps");
    }
    Ok(cells)
}

fn wanted(arguments: &Arguments, steps: &[Step]) -> Result<Vec<Round>> {
    let wanted = matrix::Selection {
        victims: if arguments.victim.is_empty() {
            Victim::USUAL.to_vec()
        } else {
            arguments.victim.clone()
        },
        edges: if arguments.edge.is_empty() {
            vec![Edge::Changed]
        } else {
            arguments.edge.clone()
        },
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
    // The first round has no crash: the hosts of the other rounds are compared with its hosts.
    rounds.insert(0, Round::default());
    Ok(rounds)
}
