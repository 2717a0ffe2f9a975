//! `cargo lab demo --migration service-cidr`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Arguments, Then, tell};
use crate::cluster::{Cluster, PodNetwork};
use crate::demo::Tools;
use crate::demo::service_cidr::{End, Run, Wanted};

/// What is to be done in the cluster.
pub struct Job {
    wanted: Wanted,
}

impl Job {
    /// Refuses what does not fit together.
    pub fn prepare(arguments: &mut Arguments) -> Result<Self> {
        let mut others = [arguments.flannel_to_calico.given(), arguments.pod_cidr.given()].concat();
        others.extend(arguments.broken.as_ref().map(|_| "--break"));
        if !others.is_empty() {
            bail!(
                "--migration service-cidr has no {}: leave it out",
                others.join(", ")
            );
        }
        arguments.cluster.start_on(PodNetwork::Flannel)?;
        Ok(Self {
            wanted: Wanted::new(match arguments.then {
                None => End::There,
                Some(Then::Rollback) => End::Back,
            })?,
        })
    }

    /// Does it.
    pub async fn perform(&self, cluster: &Cluster, tools: &Tools, file: Option<&Path>) -> Result<ExitCode> {
        let run = Run::begin(cluster, tools, self.wanted.clone()).await?;
        let followed = run.migrate().await?;
        let report = run.report(followed).await?;
        tell(&report, &report.text(), &report.problems, file)
    }
}
