//! `cargo lab demo --migration service-cidr`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Arguments, Then, print_report, refused};
use crate::cluster::{Cluster, PodNetwork, ProxyMode};
use crate::demo::Tools;
use crate::demo::breaking::{self, Case};
use crate::demo::operator::Operator;
use crate::demo::service_cidr::cases::CASES;
use crate::demo::service_cidr::{Request, Run, bypass_services, refuse};

/// Options of only this kind.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "service-cidr")]
pub struct Options {
    /// Change of the Services' range: first delete and recreate three of the Services, as a user does without this
    /// tool, and count the loss.
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

/// The work to do in the cluster.
pub struct Job {
    case: Option<&'static Case>,
    request: Request,
}

impl Job {
    /// Refuses options that exclude each other.
    pub fn prepare(arguments: &mut Arguments) -> Result<Self> {
        let others = [arguments.flannel_to_calico.given(), arguments.pod_cidr.given()].concat();
        if !others.is_empty() {
            bail!("--migration service-cidr has no {}: omit it", others.join(", "));
        }
        arguments.cluster.start_on(PodNetwork::Flannel)?;
        let case = arguments.broken.as_deref();
        let case = case.map(|name| breaking::find(CASES, name)).transpose()?;
        if case.is_some() && arguments.cluster.proxy_mode != ProxyMode::Iptables {
            bail!("--break of --migration service-cidr needs kube-proxy with iptables: omit --proxy-mode");
        }
        Ok(Self {
            case,
            request: Request::new(
                Then::end(arguments.then),
                arguments.service_cidr.beside_recreation,
            )?,
        })
    }

    /// Runs the demo; with `--break`, exit code 2, as the refused tool itself.
    pub async fn perform(&self, cluster: &Cluster, tools: &Tools, file: Option<&Path>) -> Result<ExitCode> {
        if let Some(case) = self.case {
            let operator = Operator::new(cluster, &tools.command_line);
            bypass_services(cluster).await?;
            return Ok(refused(case, &refuse(cluster, &operator, case).await?));
        }
        let run = Run::begin(cluster, tools, self.request.clone()).await?;
        let manual_steps = run.migrate().await?;
        let report = run.report(manual_steps).await?;
        print_report(&report, file)
    }
}
