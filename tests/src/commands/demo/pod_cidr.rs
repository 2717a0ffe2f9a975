//! `cargo lab demo --migration pod-cidr`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Arguments, Then, print_report, refused};
use crate::cluster::{Cluster, PodNetwork};
use crate::demo::breaking::{self, Case};
use crate::demo::operator::Operator;
use crate::demo::pod_cidr::cases::CASES;
use crate::demo::pod_cidr::{Request, Run, refuse};
use crate::demo::{End, Tools};

/// Options of only this kind.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "pod-cidr")]
pub struct Options {
    /// Change of range: how pods leave the old range. Default: by workload.
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// Change of range: store of Calico's pools. Default: the Kubernetes API. There the pools have VXLAN; in etcd
    /// they have no tunnel unless `--tunnel vxlan` is given.
    #[arg(long, value_enum)]
    pub datastore: Option<Datastore>,
}

/// Store of Calico's pools and its IPAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Datastore {
    /// In the Kubernetes API.
    #[default]
    Kubernetes,
    /// In etcd v3, as Calico v3.8 did in clusters of that time.
    Etcd,
}

impl Datastore {
    fn network(self) -> PodNetwork {
        match self {
            Self::Kubernetes => PodNetwork::Calico,
            Self::Etcd => PodNetwork::CalicoEtcd,
        }
    }
}

/// How pods leave the old range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Workload by workload, on every node.
    #[default]
    ByWorkload,
    /// Node by node: cordoned, drained, checked, uncordoned.
    ByNode,
}

impl From<Mode> for api::migration::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::ByWorkload => Self::ByWorkload,
            Mode::ByNode => Self::ByNode,
        }
    }
}

impl Options {
    /// The options that were given, for a kind that has none of them.
    pub fn given(&self) -> Vec<&'static str> {
        let Self { mode, datastore } = self;
        [mode.map(|_| "--mode"), datastore.map(|_| "--datastore")]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// The work to do in the cluster.
pub struct Job {
    case: Option<&'static Case>,
    end: End,
    request: Request,
}

impl Job {
    /// Refuses options that exclude each other.
    pub fn prepare(arguments: &mut Arguments) -> Result<Self> {
        let others = [
            arguments.flannel_to_calico.given(),
            arguments.service_cidr.given(),
        ]
        .concat();
        if !others.is_empty() {
            bail!(
                "--migration pod-cidr has no {}: omit it, or migrate from flannel",
                others.join(", ")
            );
        }
        let datastore = arguments.pod_cidr.datastore.unwrap_or_default();
        arguments.cluster.start_on(datastore.network())?;
        if datastore == Datastore::Etcd && arguments.broken.is_some() {
            bail!(
                "--break with --datastore etcd: its cases break objects in the Kubernetes API; leave one of them out"
            );
        }
        let case = arguments.broken.as_deref();
        Ok(Self {
            end: Then::end(arguments.then),
            case: case.map(|name| breaking::find(CASES, name)).transpose()?,
            request: Request {
                mode: arguments.pod_cidr.mode.unwrap_or_default().into(),
                ..Request::new(&arguments.max_unavailable)?
            },
        })
    }

    /// Runs the demo; with `--break`, exit code 2, as the refused tool itself.
    pub async fn perform(&self, cluster: &Cluster, tools: &Tools, file: Option<&Path>) -> Result<ExitCode> {
        if let Some(case) = self.case {
            let operator = Operator::new(cluster, &tools.command_line);
            return Ok(refused(case, &refuse(cluster, &operator, case).await?));
        }
        let run = Run::begin(cluster, tools, self.request.clone()).await?;
        let (watch, manual_steps) = match self.end {
            End::Migrated => run.migrate().await?,
            End::RolledBack => run.migrate_and_back().await?,
        };
        let report = run.report(watch, manual_steps, self.end).await?;
        print_report(&report, file)
    }
}
