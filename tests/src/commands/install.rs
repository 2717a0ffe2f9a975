//! `cargo lab install`.

use std::process::ExitCode;

use anyhow::Result;

use super::Place;
use crate::assets::{self, Assets, Program};
use crate::cluster::{Cluster, Images};
use crate::progress::Progress;

/// `cargo lab install`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The lab.
    #[command(flatten)]
    pub place: Place,
}

/// Builds replumb and installs it in a running cluster, replacing the installed one.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let cluster = Cluster::open(arguments.place.open()?).await?;
    let progress = Progress::default();
    let programs = vec![
        Program::Agent,
        Program::Coordinator,
        Program::CommandLine,
        Program::Traffic,
    ];
    let assets: Assets = assets::ensure(
        &assets::Options {
            programs,
            ..assets::Options::default()
        },
        &progress,
    )
    .await?;
    cluster
        .import_images(&assets.archives(&Images::default(), &progress).await?)
        .await?;
    cluster.install_replumb().await?;
    Ok(ExitCode::SUCCESS)
}
