//! `cargo lab demo`: from flannel to Calico.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use api::migration::LegacyPods;
use serde_json::json;

use super::{Arguments, Then, print_report, refused};
use crate::cluster::{Cluster, PodNetwork};
use crate::demo::Tools;
use crate::demo::breaking::{self, Case};
use crate::demo::flannel_to_calico::cases::CASES;
use crate::demo::flannel_to_calico::{Request, Run, refuse};
use crate::demo::operator::Operator;

/// Milliseconds between two probes when no probe may be lost: a finer interval than draining needs.
const IN_PLACE_PROBE_INTERVAL: u64 = 5;
/// `soakSeconds` of a migration that is rolled back: longer than the demo.
const SOAK_SECONDS: u32 = 3600;

/// Options of only this kind.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(id = "flannel-to-calico")]
pub struct Options {
    /// From flannel: how a node changes its network. Default: drain.
    #[arg(long, value_enum)]
    pub strategy: Option<Strategy>,
    /// From flannel, in place: once every node is on Calico, restart the pods that existed before, within their budgets
    #[arg(long)]
    pub restart_pods: bool,
    /// From flannel, in place: keep the pods that existed before on flannel's bridge; without it they become pods of Calico
    #[arg(long, conflicts_with = "restart_pods")]
    pub keep_pods: bool,
    /// From flannel, in place with --keep-pods: keep the mixed state for this time, with pods created, deleted and scaled on
    /// every node
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub hold: Option<u64>,
}

/// How a node changes its network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Strategy {
    /// Pods leave the node by eviction before its network changes.
    #[default]
    Drain,
    /// The node changes its network under its pods: they keep running, with their addresses.
    InPlace,
}

impl Options {
    /// The options that were given, for a kind that has none of them.
    pub fn given(&self) -> Vec<&'static str> {
        let all = [
            (self.strategy.is_some(), "--strategy"),
            (self.restart_pods, "--restart-pods"),
            (self.keep_pods, "--keep-pods"),
            (self.hold.is_some(), "--hold"),
        ];
        all.into_iter()
            .filter(|(given, _)| *given)
            .map(|(_, name)| name)
            .collect()
    }
}

/// The work to do in the cluster.
pub struct Job {
    case: Option<&'static Case>,
    request: Request,
    hold: Option<Duration>,
    until_soak: bool,
    adopts_pods: bool,
    then: Option<Then>,
}

impl Job {
    /// Refuses options that exclude each other.
    pub fn prepare(arguments: &mut Arguments) -> Result<Self> {
        let others = [arguments.pod_cidr.given(), arguments.service_cidr.given()].concat();
        if !others.is_empty() {
            bail!(
                "--migration flannel-to-calico has no {}: omit it, or change the range with --migration pod-cidr",
                others.join(", ")
            );
        }
        let options = arguments.flannel_to_calico.clone();
        let case = arguments
            .broken
            .as_deref()
            .map(|name| breaking::find(CASES, name))
            .transpose()?;
        let strategy = options.strategy.unwrap_or_default();
        if strategy == Strategy::InPlace {
            let interval = &mut arguments.cluster.probe_interval;
            interval.get_or_insert(IN_PLACE_PROBE_INTERVAL);
        }
        if arguments.then.is_some() && options.restart_pods {
            bail!(
                "--then rollback after --restart-pods: the migration continues past its point of no return; leave one \
                 out"
            );
        }
        if options.keep_pods && strategy == Strategy::Drain {
            bail!("--keep-pods: pods keep running with --strategy in-place only");
        }
        let adopts_pods = strategy == Strategy::InPlace && !options.keep_pods && !options.restart_pods;
        arguments.cluster.holds_service = adopts_pods;
        let leaves_flannel = strategy == Strategy::Drain || adopts_pods;
        if options.hold.is_some() && !options.keep_pods {
            bail!(
                "--hold: pods of both networks live side by side with --strategy in-place --keep-pods only"
            );
        }
        arguments.cluster.start_on(PodNetwork::Flannel)?;
        let strategy = match strategy {
            Strategy::Drain => api::migration::Strategy::Drain,
            Strategy::InPlace => api::migration::Strategy::InPlace,
        };
        let legacy_pods = match (options.restart_pods, options.keep_pods) {
            (true, _) => LegacyPods::Restart,
            (false, true) => LegacyPods::Keep,
            (false, false) => LegacyPods::default(),
        };
        // Once no pod uses flannel, only the soak time keeps its DaemonSet, which a rollback needs.
        let until_soak = leaves_flannel && arguments.then.is_some();
        let soak = if until_soak { SOAK_SECONDS } else { 0 };
        Ok(Self {
            case,
            until_soak,
            adopts_pods,
            request: Request {
                strategy,
                max_unavailable: arguments.max_unavailable.clone(),
                spec: json!({ "flannelToCalico": { "legacyPods": legacy_pods, "soakSeconds": soak } }),
            },
            hold: options.hold.map(Duration::from_secs),
            then: arguments.then,
        })
    }

    /// Runs the demo; with `--break`, exit code 2, as the refused tool itself.
    pub async fn perform(&self, cluster: &Cluster, tools: &Tools, file: Option<&Path>) -> Result<ExitCode> {
        if let Some(case) = self.case {
            let operator = Operator::new(cluster, &tools.command_line);
            return Ok(refused(case, &refuse(cluster, &operator, case).await?));
        }
        let mut run = Run::begin(cluster, tools).await?;
        if !self.until_soak && self.hold.is_none() {
            run.rehearse(&self.request).await?;
        }
        let watch = if self.until_soak {
            run.migrate_until_soak(&self.request).await?
        } else {
            run.migrate(&self.request).await?
        };
        if let Some(time) = self.hold {
            run.hold(time).await?;
        }
        match self.then {
            Some(Then::Rollback) => run.scene.roll_back().await?,
            None if self.adopts_pods => run.try_policy(tools).await?,
            None => {}
        }
        let compared = run.compare().await?;
        let mut report = run.report(watch).await?;
        if let Some(comparison) = compared {
            report.add_rehearsal(comparison);
        }
        print_report(&report, file)
    }
}
