//! `cargo lab scale`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Ended, interrupted};
use crate::assets::{self, Build, Program};
use crate::progress::Progress;
use crate::scale::{self, Kind, PodShape, Size, Strategy};

/// The memory limit in `deploy/base/coordinator.yaml`.
const MEMORY_LIMIT: u64 = 512;
/// The default maximum of pods on a kubelet.
const KUBELET_LIMIT: u32 = 110;

/// `cargo lab scale`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Number of nodes; kwok plays their kubelets, and hollow agents play their agents
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(10..=16_000))]
    pub nodes: u32,
    /// Number of ordinary pods
    #[arg(long, value_name = "N", default_value_t = 150_000, value_parser = clap::value_parser!(u32).range(15..))]
    pub pods: u32,
    /// Content of a pod. Default: two containers with variables and probes.
    #[arg(long, value_enum, value_name = "SHAPE", default_value_t = PodShape::default())]
    pub pod_shape: PodShape,
    /// Number of Services
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    pub services: u32,
    /// The migration to measure
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Kind::FlannelToCalico)]
    pub migration: Kind,
    /// How nodes change their network, from flannel to Calico. Default: pods leave a node first.
    #[arg(long, value_enum, value_name = "HOW")]
    pub strategy: Option<Strategy>,
    /// Number of pods that are created, and of pods that are deleted, each second while nodes are migrated
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub churn: u32,
    /// Seconds without any change before the start
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub idle: u64,
    /// Maximum minutes for the migration
    #[arg(long, value_name = "MINUTES", default_value_t = 180)]
    pub limit: u64,
    /// MiB of memory for the coordinator. Default: the limit in deploy/.
    #[arg(long, value_name = "MIB", default_value_t = MEMORY_LIMIT)]
    pub memory_limit: u64,
    /// Measure a development build
    #[arg(long)]
    pub debug: bool,
    /// Folder with ready programs, or an empty one to build them into
    #[arg(long, value_name = "DIR", env = "KUBEBUILDER_ASSETS")]
    pub assets: Option<PathBuf>,
    /// Write the measurements as JSON into this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

impl Arguments {
    /// A small size of each kind for the tests. The migration from flannel to Calico runs in place, so that no pod must move.
    pub fn small(assets: Option<&Path>, migration: Kind) -> Self {
        let (nodes, pods, services, strategy) = match migration {
            Kind::FlannelToCalico => (20, 200, 20, Some(Strategy::InPlace)),
            Kind::PodCidr | Kind::ServiceCidr => (10, 40, 10, None),
        };
        Self {
            nodes,
            pods,
            pod_shape: PodShape::default(),
            services,
            migration,
            strategy,
            churn: 5,
            idle: 5,
            limit: 10,
            memory_limit: MEMORY_LIMIT,
            // A release build takes minutes, and no compared value depends on it.
            debug: true,
            assets: assets.map(Path::to_owned),
            report: None,
        }
    }

    /// Builds the programs.
    pub async fn size(&self, progress: &Progress) -> Result<Size> {
        let on_a_node = self.pods.div_ceil(self.nodes);
        if on_a_node > KUBELET_LIMIT {
            bail!(
                "--pods {} on --nodes {} are {on_a_node} a node, and a kubelet takes {KUBELET_LIMIT}: ask for fewer pods or more nodes",
                self.pods,
                self.nodes
            );
        }
        let options = assets::Options {
            folder: self.assets.clone(),
            calico: None,
            programs: vec![Program::Coordinator],
            build: Build {
                release: !self.debug,
                ..Build::default()
            },
        };
        let assets = assets::ensure(&options, progress).await?;
        Ok(Size {
            nodes: self.nodes,
            pods: self.pods,
            pod_shape: self.pod_shape,
            services: self.services,
            migration: self.migration,
            strategy: self.migration.strategy(self.strategy)?,
            churn: self.churn,
            idle: Duration::from_secs(self.idle),
            limit: Duration::from_mins(self.limit),
            memory_limit: self.memory_limit << 20,
            programs: assets.binaries.clone(),
            coordinator: assets.rust.need(Program::Coordinator)?,
        })
    }
}

/// Migrates a large cluster and reports the cost.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let progress = Progress::default();
    let work = async {
        let size = arguments.size(&progress).await?;
        Box::pin(scale::run(&size, &progress)).await
    };
    let report = tokio::select! {
        report = work => report?,
        signal = interrupted() => return Err(Ended(signal?).into()),
    };
    print!("{report}");
    if let Some(file) = &arguments.report {
        let text = serde_json::to_string_pretty(&report).context("write the report")?;
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(match report.unfinished {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}
