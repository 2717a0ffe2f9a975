//! `cargo lab demo --migration calico-datastore`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Arguments, Then, print_report, refused};
use crate::cluster::{Cluster, PodNetwork};
use crate::demo::Tools;
use crate::demo::breaking::{self, Case};
use crate::demo::calico_datastore::cases::CASES;
use crate::demo::calico_datastore::{Request, Run, prepare, refuse};
use crate::demo::operator::Operator;

/// The work to do in the cluster.
pub struct Job {
    case: Option<&'static Case>,
    request: Request,
}

impl Job {
    /// Refuses options that exclude each other.
    pub fn prepare(arguments: &mut Arguments) -> Result<Self> {
        let others = [
            arguments.flannel_to_calico.given(),
            arguments.pod_cidr.given(),
            arguments.service_cidr.given(),
        ]
        .concat();
        if !others.is_empty() {
            bail!(
                "--migration calico-datastore has no {}: omit it",
                others.join(", ")
            );
        }
        arguments.cluster.start_on(PodNetwork::CalicoV2)?;
        let case = arguments.broken.as_deref();
        Ok(Self {
            case: case.map(|name| breaking::find(CASES, name)).transpose()?,
            request: Request::new(Then::end(arguments.then)),
        })
    }

    /// Runs the demo; with `--break`, exit code 2, as the refused tool itself.
    pub async fn perform(&self, cluster: &Cluster, tools: &Tools, file: Option<&Path>) -> Result<ExitCode> {
        if let Some(case) = self.case {
            let operator = Operator::new(cluster, &tools.command_line);
            prepare(cluster, &operator).await?;
            return Ok(refused(case, &refuse(cluster, &operator, case).await?));
        }
        let run = Run::begin(cluster, tools, self.request.clone()).await?;
        let late = run.migrate().await?;
        let report = run.report(late).await?;
        print_report(&report, file)
    }
}
