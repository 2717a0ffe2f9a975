//! `cargo lab demo --migration pod-cidr`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Arguments, refused, tell};
use crate::cluster::{Cluster, PodNetwork};
use crate::demo::Tools;
use crate::demo::breaking::{self, Case};
use crate::demo::operator::Operator;
use crate::demo::pod_cidr::cases::CASES;
use crate::demo::pod_cidr::{Run, Wanted, refuse};

/// What is to be done in the cluster.
pub struct Job {
    case: Option<&'static Case>,
    wanted: Wanted,
}

impl Job {
    /// Refuses what does not fit together.
    pub fn prepare(arguments: &mut Arguments) -> Result<Self> {
        let others = arguments.flannel_to_calico.given();
        if !others.is_empty() {
            bail!(
                "--migration pod-cidr has no {}: leave it out, or migrate from flannel",
                others.join(", ")
            );
        }
        arguments.cluster.start_on(PodNetwork::Calico)?;
        let case = arguments.broken.as_deref();
        Ok(Self {
            case: case.map(|name| breaking::find(CASES, name)).transpose()?,
            wanted: Wanted::new(&arguments.max_unavailable)?,
        })
    }

    /// Does it; with `--break` exit code 2, as the refused tool itself.
    pub async fn perform(&self, cluster: &Cluster, tools: &Tools, file: Option<&Path>) -> Result<ExitCode> {
        if let Some(case) = self.case {
            let operator = Operator::new(cluster, &tools.command_line);
            return Ok(refused(case, &refuse(cluster, &operator, case).await?));
        }
        let run = Run::begin(cluster, tools, self.wanted.clone()).await?;
        let (watch, followed) = run.migrate().await?;
        let report = run.report(watch, followed).await?;
        tell(&report, &report.text(), &report.problems, file)
    }
}
