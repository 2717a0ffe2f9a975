//! `cargo lab demo --migration service-cidr`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Arguments, Then, refused, tell};
use crate::cluster::{Cluster, PodNetwork, ProxyMode};
use crate::demo::Tools;
use crate::demo::breaking::{self, Case};
use crate::demo::operator::Operator;
use crate::demo::service_cidr::cases::CASES;
use crate::demo::service_cidr::{Run, Wanted, own_path, refuse};

/// What only this kind has.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "service-cidr")]
pub struct Options {
    /// Another range for Services: first delete three of them and make them again, as one does without this tool, and count what that
    /// loses.
    #[arg(long)]
    pub beside_recreation: bool,
}

impl Options {
    /// The options that were given, for a kind that has none of them.
    pub fn given(&self) -> Vec<&'static str> {
        let given = self.beside_recreation.then_some("--beside-recreation");
        given.into_iter().collect()
    }
}

/// What is to be done in the cluster.
pub struct Job {
    case: Option<&'static Case>,
    wanted: Wanted,
}

impl Job {
    /// Refuses what does not fit together.
    pub fn prepare(arguments: &mut Arguments) -> Result<Self> {
        let others = [arguments.flannel_to_calico.given(), arguments.pod_cidr.given()].concat();
        if !others.is_empty() {
            bail!(
                "--migration service-cidr has no {}: leave it out",
                others.join(", ")
            );
        }
        arguments.cluster.start_on(PodNetwork::Flannel)?;
        let case = arguments.broken.as_deref();
        let case = case.map(|name| breaking::find(CASES, name)).transpose()?;
        if case.is_some() && arguments.cluster.proxy_mode != ProxyMode::Iptables {
            bail!(
                "--break of --migration service-cidr is for kube-proxy by iptables: leave --proxy-mode out"
            );
        }
        Ok(Self {
            case,
            wanted: Wanted::new(
                Then::end(arguments.then),
                arguments.service_cidr.beside_recreation,
            )?,
        })
    }

    /// Does it; with `--break` exit code 2, as the refused tool itself.
    pub async fn perform(&self, cluster: &Cluster, tools: &Tools, file: Option<&Path>) -> Result<ExitCode> {
        if let Some(case) = self.case {
            let operator = Operator::new(cluster, &tools.command_line);
            own_path(cluster).await?;
            return Ok(refused(case, &refuse(cluster, &operator, case).await?));
        }
        let run = Run::begin(cluster, tools, self.wanted.clone()).await?;
        let followed = run.migrate().await?;
        let report = run.report(followed).await?;
        tell(&report, &report.text(), &report.problems, file)
    }
}
