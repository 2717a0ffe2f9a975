//! `cargo lab demo --migration pod-cidr`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Arguments, tell};
use crate::cluster::{Cluster, PodNetwork};
use crate::demo::Tools;
use crate::demo::pod_cidr::{Run, Wanted};

/// What is to be done in the cluster.
pub struct Job {
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
        Ok(Self {
            wanted: Wanted::new(&arguments.max_unavailable)?,
        })
    }

    /// Does it.
    pub async fn perform(&self, cluster: &Cluster, tools: &Tools, file: Option<&Path>) -> Result<ExitCode> {
        let run = Run::begin(cluster, tools, self.wanted.clone()).await?;
        let (watch, followed) = run.migrate().await?;
        let report = run.report(watch, followed).await?;
        tell(&report, &report.text(), &report.problems, file)
    }
}
