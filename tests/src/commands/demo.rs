//! `cargo lab demo`. What only one kind of migration has lies with the kind.

mod calico_datastore;
mod flannel_to_calico;
pub mod pod_cidr;
mod service_cidr;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

use super::interrupted;
use super::up::ClusterArguments;
use crate::cluster::Cluster;
use crate::demo::breaking::Case;
use crate::demo::{self, End, Tools};

/// In place of a case: their names are printed.
const LIST: &str = "list";

/// `cargo lab demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Which migration.
    #[arg(long, value_enum, default_value_t)]
    pub migration: Kind,
    /// How many nodes may be out of work at the same time: a number or a percentage.
    #[arg(long, value_name = "N|N%", default_value = "1")]
    pub max_unavailable: String,
    /// Spoil a prerequisite first, so that the migration has to be refused. `list` names the cases.
    #[arg(long = "break", value_name = "CASE")]
    pub broken: Option<String>,
    /// What follows once every node is on Calico, or every pod has an address of the other range; of Calico's datastore once the first node
    /// has changed.
    #[arg(long, value_enum)]
    pub then: Option<Then>,
    /// Of the migration from flannel to Calico alone.
    #[command(flatten)]
    pub flannel_to_calico: flannel_to_calico::Options,
    /// Of the change of the pods' range alone.
    #[command(flatten)]
    pub pod_cidr: pod_cidr::Options,
    /// Of the change of the Services' range alone.
    #[command(flatten)]
    pub service_cidr: service_cidr::Options,
    /// Write how it went as JSON into this file.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Which migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// From flannel to Calico.
    #[default]
    FlannelToCalico,
    /// Another range for the pods of a cluster with Calico.
    PodCidr,
    /// Another range for the Services.
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

/// What follows once every node, or every pod, is where it was led.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Then {
    /// Everything is taken back; from flannel every host is compared with what it was before.
    Rollback,
}

impl Then {
    /// Where the migration ends.
    fn end(then: Option<Self>) -> End {
        match then {
            None => End::There,
            Some(Self::Rollback) => End::Back,
        }
    }
}

/// What a kind has made of its options before there is a cluster.
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

/// Runs it. Exit code 0 when everything is as it should be.
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

/// Shows a refusal, which is what was wanted.
fn refused(case: &Case, text: &str) -> ExitCode {
    println!("{text}");
    println!(
        "refused, as it should be ({}): the cluster has not changed",
        case.about
    );
    ExitCode::from(2)
}

/// Shows a report and writes it, if it is asked for. Without problems it is well.
fn tell(report: &impl Serialize, text: &str, problems: &[String], file: Option<&Path>) -> Result<ExitCode> {
    println!("\n{text}");
    if let Some(file) = file {
        std::fs::write(file, serde_json::to_string_pretty(report)?)
            .with_context(|| format!("write the report {}", file.display()))?;
    }
    Ok(if problems.is_empty() {
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
    fn each_kind_has_the_network_that_it_starts_from() {
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
    fn an_option_of_another_kind_is_refused_by_name() {
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
    fn what_does_not_fit_together_is_refused_before_there_is_a_cluster() {
        assert!(refusal("--then rollback").contains("point of no return"));
        assert!(refusal("--strategy in-place --then rollback").is_empty());
        assert!(refusal("--hold 5").contains("in-place"));
        assert!(refusal("--no-calico").contains("--no-calico"));
    }
}
