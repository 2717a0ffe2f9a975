//! `cargo lab down`.

use std::process::ExitCode;

use anyhow::Result;

use super::Place;
use crate::cluster::Cluster;

/// `cargo lab down`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The lab.
    #[command(flatten)]
    pub place: Place,
}

/// Removes the lab.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let directory = arguments.place.open()?;
    let left = Cluster::down(&directory).await?;
    if left.is_empty() {
        println!(
            "the lab in {} is removed; only its logs remain",
            directory.path().display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    for item in &left {
        eprintln!("left: {item}");
    }
    Ok(ExitCode::FAILURE)
}
