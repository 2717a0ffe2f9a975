//! `cargo lab status`.

use std::process::ExitCode;

use anyhow::Result;

use super::Place;
use crate::cluster::{Cluster, MachineStatus};

/// `cargo lab status`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The lab.
    #[command(flatten)]
    pub place: Place,
}

/// Prints the state. The exit code is 1 if there is no lab or if a part of the lab does not run.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let directory = arguments.place.open()?;
    let Some(machines) = Cluster::status(&directory).await? else {
        println!("there is no lab in {}", directory.path().display());
        return Ok(ExitCode::FAILURE);
    };
    let mut well = true;
    for machine in &machines {
        well &= machine.well();
        println!("{}", line(machine));
    }
    match Cluster::open(directory).await {
        Ok(cluster) => match cluster.api().nodes().await {
            Ok(nodes) => {
                for (name, trouble) in nodes {
                    well &= trouble.is_none();
                    println!("node {name}: {}", trouble.as_deref().unwrap_or("Ready"));
                }
            }
            Err(error) => {
                well = false;
                println!("API server: {error:#}");
            }
        },
        Err(error) => {
            well = false;
            println!("{error:#}");
        }
    }
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn line(machine: &MachineStatus) -> String {
    let power = machine
        .pid
        .map_or_else(|| "off".to_owned(), |pid| format!("on, pid {pid}"));
    let services: Vec<String> = machine
        .services
        .iter()
        .map(|service| match service.pid {
            Some(_) if service.restarts == 0 => service.name.clone(),
            Some(_) => format!("{} ({} restarts)", service.name, service.restarts),
            None => format!(
                "{} DOWN ({})",
                service.name,
                service.last_exit.as_deref().unwrap_or("never ran")
            ),
        })
        .collect();
    format!(
        "{:<16} {:<15} {power}: {}",
        machine.name,
        machine.address,
        services.join(", ")
    )
}
