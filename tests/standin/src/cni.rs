//! The plugins `calico` (a pod's network) and `calico-ipam` (its address), with the CNI protocol: the command in the
//! environment, the configuration on standard input, the answer on standard output.

pub mod answer;
pub mod config;
mod ipam;
pub mod network;
pub mod veth;

use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use self::answer::Answer;
use self::config::Call;
pub use self::config::MTU_FILE;
use crate::version::{Datastore, Generation, Played};
use crate::{banner, datastore, etcd, log};

/// Protocol versions of the plugins.
const VERSIONS: [&str; 6] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"];

/// The running plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `calico`.
    Network,
    /// `calico-ipam`.
    Ipam,
}

/// Runs one call.
pub fn main(arguments: &[String], program: Program) -> ExitCode {
    match arguments.first().map(String::as_str) {
        Some("-v" | "--version" | "-version") => {
            println!("{}", banner::text());
            return ExitCode::SUCCESS;
        }
        // Import of host-local addresses of a network of Calico: a lab never has one.
        Some("-upgrade") if program == Program::Ipam => {
            println!(
                "{}\nno host-local addresses in a network of Calico: nothing to upgrade",
                banner::text()
            );
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let mut input = String::new();
    let read = std::io::stdin()
        .read_to_string(&mut input)
        .context("read the configuration from standard input");
    let environment = |name: &str| std::env::var(name).unwrap_or_default();
    let command = environment("CNI_COMMAND");
    let version = serde_json::from_str::<serde_json::Value>(&input)
        .ok()
        .and_then(|config| Some(config.get("cniVersion")?.as_str()?.to_owned()))
        .unwrap_or_else(|| "0.3.1".to_owned());
    if command == "VERSION" {
        println!(
            "{}",
            serde_json::json!({"cniVersion": "1.0.0", "supportedVersions": VERSIONS})
        );
        return ExitCode::SUCCESS;
    }
    match read.and_then(|_| run(&command, &input, program)) {
        Ok(Some(answer)) => {
            println!("{}", answer.json(&version));
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{command}: {error:#}");
            println!("{}", answer::failure(&version, &error));
            ExitCode::FAILURE
        }
    }
}

fn run(command: &str, input: &str, program: Program) -> Result<Option<Answer>> {
    let call = Call::new(input, |name| std::env::var(name).ok())?;
    log::to_file(&call.config.log_file());
    tracing::info!(
        command,
        ?program,
        container = call.container,
        pod = call.pod,
        namespace = call.namespace,
        "{}",
        banner::text()
    );
    if command == "CHECK" {
        // Calico's answer to every check.
        return Ok(None);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let played = Played::of_program()?.datastore;
        if let Datastore::Etcd(generation) = played {
            return with_etcd(command, &call, program, generation).await;
        }
        if program == Program::Network {
            call.config.require_node_name_file()?;
        }
        let client = datastore::client(call.config.kubeconfig().as_deref()).await?;
        match (program, command) {
            (Program::Network, "ADD") => network::add(&call, &client).await.map(Some),
            (Program::Network, "DEL") => network::delete(&call, &client).await.map(|()| None),
            (Program::Ipam, "ADD") => ipam::add(&call, &client).await.map(Some),
            (Program::Ipam, "DEL") => ipam::delete(&call, &client).await.map(|()| None),
            _ => bail!("unknown CNI_COMMAND {command:?}: the plugin knows ADD, DEL, CHECK and VERSION"),
        }
    })
}

async fn with_etcd(
    command: &str,
    call: &Call,
    program: Program,
    generation: Generation,
) -> Result<Option<Answer>> {
    // v2.6 has no such file.
    if program == Program::Network && generation == Generation::V3 {
        call.config.require_node_name_file()?;
    }
    let store = etcd::of_conflist(&call.config.etcd, generation).await?;
    match (program, command) {
        (Program::Network, "ADD") => {
            let client = datastore::client(call.config.kubeconfig().as_deref()).await?;
            etcd::network::add(call, &store, &client).await.map(Some)
        }
        (Program::Network, "DEL") => etcd::network::delete(call, &store).await.map(|()| None),
        (Program::Ipam, "ADD") => etcd::address::add(call, &store).await.map(Some),
        (Program::Ipam, "DEL") => etcd::address::delete(call, &store).await.map(|()| None),
        _ => bail!("unknown CNI_COMMAND {command:?}: the plugin knows ADD, DEL, CHECK and VERSION"),
    }
}
