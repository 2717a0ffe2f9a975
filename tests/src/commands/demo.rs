//! `cargo lab demo`. The options of only one kind of migration are in the module of the kind.

mod calico_datastore;
mod flannel_to_calico;
pub mod pod_cidr;
#[cfg(test)]
mod schema;
mod service_cidr;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::interrupted;
use super::up::ClusterArguments;
use crate::cluster::Cluster;
use crate::demo::breaking::Case;
use crate::demo::report::{OwnPart, Report};
use crate::demo::{self, End, Tools};

/// Value in place of a case: prints the names of the cases.
const LIST: &str = "list";

/// `cargo lab demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Kind of migration
    #[arg(long, value_enum, default_value_t)]
    pub migration: Kind,
    /// Maximum number of nodes that may be unavailable at the same time: a number or a percentage
    #[arg(long, value_name = "N|N%", default_value = "1")]
    pub max_unavailable: String,
    /// Break a prerequisite first, so that the migration must be refused. `list` names the cases.
    #[arg(long = "break", value_name = "CASE")]
    pub broken: Option<String>,
    /// Action once every node is on Calico or every pod has an address of the other range; for Calico's datastore,
    /// once the first node has changed.
    #[arg(long, value_enum)]
    pub then: Option<Then>,
    /// Options of the migration from flannel to Calico.
    #[command(flatten)]
    pub flannel_to_calico: flannel_to_calico::Options,
    /// Options of the change of the pods' range.
    #[command(flatten)]
    pub pod_cidr: pod_cidr::Options,
    /// Options of the change of the Services' range.
    #[command(flatten)]
    pub service_cidr: service_cidr::Options,
    /// Write the result as JSON into this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Kind of migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// From flannel to Calico.
    #[default]
    FlannelToCalico,
    /// New address range for the pods of a cluster with Calico.
    PodCidr,
    /// New address range for Services.
    ServiceCidr,
    /// Calico's datastore from v2 (etcd v2) to v3 (etcd v3), with calico-node.
    CalicoDatastore,
}

impl Kind {
    fn cases(self) -> &'static [Case] {
        match self {
            Self::FlannelToCalico => demo::flannel_to_calico::cases::CASES,
            Self::PodCidr => demo::pod_cidr::cases::CASES,
            Self::ServiceCidr => demo::service_cidr::cases::CASES,
            Self::CalicoDatastore => demo::calico_datastore::cases::CASES,
        }
    }
}

/// Action once every node or every pod has been moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Then {
    /// Roll back the migration; from flannel, every host is compared with its state before.
    Rollback,
}

impl Then {
    /// End of the migration.
    fn end(then: Option<Self>) -> End {
        match then {
            None => End::Migrated,
            Some(Self::Rollback) => End::RolledBack,
        }
    }
}

/// The checked options of a kind, before a cluster exists.
enum Job {
    FlannelToCalico(Box<flannel_to_calico::Job>),
    PodCidr(pod_cidr::Job),
    ServiceCidr(service_cidr::Job),
    CalicoDatastore(calico_datastore::Job),
}

impl Job {
    fn prepare(arguments: &mut Arguments) -> Result<Self> {
        Ok(match arguments.migration {
            Kind::FlannelToCalico => {
                Self::FlannelToCalico(Box::new(flannel_to_calico::Job::prepare(arguments)?))
            }
            Kind::PodCidr => Self::PodCidr(pod_cidr::Job::prepare(arguments)?),
            Kind::ServiceCidr => Self::ServiceCidr(service_cidr::Job::prepare(arguments)?),
            Kind::CalicoDatastore => Self::CalicoDatastore(calico_datastore::Job::prepare(arguments)?),
        })
    }

    async fn perform(&self, cluster: &Cluster, tools: &Tools, report: Option<&Path>) -> Result<ExitCode> {
        match self {
            Self::FlannelToCalico(job) => job.perform(cluster, tools, report).await,
            Self::PodCidr(job) => job.perform(cluster, tools, report).await,
            Self::ServiceCidr(job) => job.perform(cluster, tools, report).await,
            Self::CalicoDatastore(job) => job.perform(cluster, tools, report).await,
        }
    }
}

/// Runs the demo. Exit code 0 if the result is as expected.
pub async fn run(mut arguments: Arguments) -> Result<ExitCode> {
    if arguments.broken.as_deref() == Some(LIST) {
        for case in arguments.migration.cases() {
            println!("{:<22} {:<34} {}", case.name, case.check, case.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    arguments.cluster.replumb = true;
    let job = Job::prepare(&mut arguments)?;
    let tools = arguments.cluster.tools().await?;
    let cluster = arguments.cluster.up().await?;
    let directory = cluster.directory().clone();
    let ended = tokio::select! {
        ended = job.perform(&cluster, &tools, arguments.report.as_deref()) => ended,
        signal = interrupted() => Err(anyhow::anyhow!("ended by {}", signal?)),
    };
    match ended {
        Ok(code) if arguments.cluster.keep => {
            Cluster::keep(&directory)?;
            println!(
                "the lab is kept: `cargo lab kubectl get nmig` shows the nodes, `cargo lab down` removes the lab"
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

/// Prints an expected refusal.
fn refused(case: &Case, text: &str) -> ExitCode {
    println!("{text}");
    println!(
        "refused as expected ({}): the cluster has not changed",
        case.about
    );
    ExitCode::from(2)
}

/// Prints a report and, if requested, writes it to a file. The demo succeeds if the report has no problem.
fn print_report<Own: OwnPart>(report: &Report<Own>, file: Option<&Path>) -> Result<ExitCode> {
    println!("\n{}", report.text());
    if let Some(file) = file {
        std::fs::write(file, serde_json::to_string_pretty(report)?)
            .with_context(|| format!("write the report {}", file.display()))?;
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
    use crate::cluster::PodNetwork;

    fn prepare(options: &str) -> Result<(Job, Arguments)> {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            arguments: Arguments,
        }
        let mut arguments = Line::parse_from(format!("demo {options}").split_whitespace()).arguments;
        let job = Job::prepare(&mut arguments)?;
        Ok((job, arguments))
    }

    fn refusal(options: &str) -> String {
        prepare(options).map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn each_kind_starts_from_its_own_network() {
        let network = |options| prepare(options).unwrap().1.cluster.network;
        assert_eq!(network(""), Some(PodNetwork::Flannel));
        assert_eq!(network("--migration pod-cidr"), Some(PodNetwork::Calico));
        let etcd = "--migration pod-cidr --datastore etcd";
        assert_eq!(network(etcd), Some(PodNetwork::CalicoEtcd));
        assert!(refusal(&format!("{etcd} --break nested")).contains("--datastore etcd"));
        assert!(refusal(&format!("{etcd} --tunnel vxlan")).is_empty());
        assert!(refusal("--migration pod-cidr --tunnel vxlan").contains("--datastore etcd"));
        assert!(refusal("--network calico").contains("--network calico"));
        assert!(refusal("--migration pod-cidr --network flannel").contains("--network flannel"));
    }

    #[test]
    fn an_option_of_another_kind_is_refused_with_its_name() {
        for option in ["--strategy drain", "--restart-pods", "--hold 5", "--break gitops"] {
            let name = option.split(' ').next().unwrap();
            let said = refusal(&format!("--migration pod-cidr {option}"));
            assert!(said.contains(name), "{option}: {said}");
        }
        assert!(refusal("--mode by-node").contains("--mode"));
        assert!(refusal("--datastore etcd").contains("--datastore"));
        assert!(refusal("--migration pod-cidr --mode by-node --then rollback").is_empty());
    }

    #[test]
    fn options_that_exclude_each_other_are_refused_before_a_cluster_is_made() {
        assert!(refusal("--then rollback").is_empty());
        assert!(refusal("--strategy in-place --keep-pods --then rollback").is_empty());
        assert!(refusal("--keep-pods").contains("in-place"));
        assert!(refusal("--strategy in-place --hold 5").contains("--keep-pods"));
        assert!(refusal("--strategy in-place --restart-pods --then rollback").contains("point of no return"));
        assert!(refusal("--strategy in-place --then rollback").is_empty());
        assert!(refusal("--hold 5").contains("in-place"));
        assert!(refusal("--no-calico").contains("--no-calico"));
    }
}
