//! `calico-node`, with the options of the real one, and `start_runit`, which runs its parts together.

pub mod autodetect;
pub mod condition;
pub mod environment;
mod pools;
mod probe;
pub mod startup;
mod supervise;
pub mod tunnel_address;

use std::future::pending;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use tracing::info;

use self::environment::Environment;
use crate::version::{Datastore, Played};
use crate::{banner, etcd, felix, install, log};

/// Time between two checks of the node's address, as in Calico.
const ADDRESS_INTERVAL: Duration = Duration::from_mins(1);

/// With `-allocate-tunnel-addrs`: end when the addresses are correct.
const RUN_ONCE: &str = "allocate-tunnel-addrs-run-once";

/// Runs the parts that the options select.
pub fn main(arguments: &[String]) -> ExitCode {
    let mut options: Vec<&str> = Vec::new();
    for argument in arguments {
        let option = argument.trim_start_matches('-');
        // "-felix-ready=false" switches an option off, "-threshold-time=30s" has no meaning here.
        match option.split_once('=') {
            Some((_, "false")) => {}
            Some((name, _)) => options.push(name),
            None => options.push(option),
        }
    }
    let environment = Environment::of_process();
    finish(in_runtime(run(&options, &environment)))
}

/// Runs the parts of a node until one of the first ones fails.
pub fn start_runit() -> ExitCode {
    log::to_standard_output("start_runit");
    finish(in_runtime(supervise::run(&Environment::of_process())))
}

fn in_runtime(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(work)
}

fn finish(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("calico-node (stand-in): {error:#}");
        ExitCode::FAILURE
    })
}

async fn run(options: &[&str], environment: &Environment) -> Result<ExitCode> {
    let has = |name: &str| options.contains(&name);
    if has("v") || has("version") {
        println!("{}", banner::text());
        return Ok(ExitCode::SUCCESS);
    }
    let checks: Vec<&str> = options
        .iter()
        .copied()
        .filter(|option| option.ends_with("-ready") || option.ends_with("-live"))
        .collect();
    if !checks.is_empty() {
        probe::run(&checks, environment).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let part = [
        "felix",
        "bird",
        "startup",
        "allocate-tunnel-addrs",
        "monitor-addresses",
        "monitor-token",
        "complete-startup",
        "shutdown",
        "init",
        "status-reporter",
        "hostpath-init",
    ]
    .into_iter()
    .find(|part| has(part));
    let Some(part) = part else {
        bail!("no part chosen by {options:?}; {}", banner::text());
    };
    log::to_standard_output(part);
    let played = Played::of_program()?;
    if let Datastore::Etcd(generation) = played.datastore {
        return etcd::node::run(part, has(RUN_ONCE), environment, &played, generation).await;
    }
    match part {
        "felix" => return felix::run(environment).await,
        "bird" => bail!("BIRD is played only with etcd"),
        "startup" => {
            startup::run(environment).await?;
            if has("complete-startup") {
                condition::set(environment, true).await?;
            }
        }
        "allocate-tunnel-addrs" => {
            tunnel_address::kubernetes::run(environment, has(RUN_ONCE)).await?;
        }
        "monitor-addresses" => monitor_addresses(environment).await?,
        "monitor-token" => install::keep_kubeconfig(environment).await?,
        "complete-startup" => {
            probe::wait_until_ready(environment).await;
            condition::set(environment, true).await?;
            pending::<()>().await;
        }
        "shutdown" => condition::set(environment, false).await?,
        // Calico mounts file systems for its BPF dataplane there, which is not played.
        _ => info!("nothing to do for {part}"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn monitor_addresses(environment: &Environment) -> Result<()> {
    loop {
        tokio::time::sleep(ADDRESS_INTERVAL).await;
        startup::note_addresses(environment).await?;
    }
}
