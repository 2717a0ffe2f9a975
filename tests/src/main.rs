//! `cargo lab`: a real cluster on one machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lab::commands::{
    crash, datastore_corpus, datastore_trial, demo, down, field_cases, hollow, install, kubectl, policies,
    scale, status, test, up,
};
use lab::machine;

/// A real Kubernetes cluster on one machine, without a container engine and without images to pull.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a cluster
    Up(up::Arguments),
    /// Remove a cluster, in any state
    Down(down::Arguments),
    /// Show the machines of a cluster, their services and the nodes
    Status(status::Arguments),
    /// Build replumb and install it in a cluster, replacing the installed one
    Install(install::Arguments),
    /// Run kubectl against the cluster
    Kubectl(kubectl::Arguments),
    /// Migrate a cluster while traffic flows, from flannel to Calico or to another range for its pods, and report the result
    Demo(demo::Arguments),
    /// Kill the agent, the coordinator, the API server or a node at every step of a migration, forward and back
    Crash(crash::Arguments),
    /// Convert each case of a corpus from etcd v2 to etcd v3, and compare the result with that of Calico's own tool
    DatastoreCorpus(datastore_corpus::Arguments),
    /// Convert a store of Calico v2 of any size, and kill the tool at its writes
    DatastoreTrial(datastore_trial::Arguments),
    /// Judge each case of a folder, and print a line for each: a snapshot, and the checks that are right for it
    FieldCases(field_cases::Arguments),
    /// Compare the policy preview with the real Felix, over thousands of connections between pods
    Policies(policies::Arguments),
    /// Migrate a large cluster with simulated kubelets and agents, and report the cost for the coordinator
    Scale(scale::Arguments),
    /// Play the agents of every node of a cluster without hosts, such as kwok's
    Hollow(hollow::Arguments),
    /// Run every test, the cheapest first
    Test(test::Arguments),
    /// Create a machine's namespaces and wait for its end. Used by the lab.
    #[command(hide = true)]
    MachineHold { file: PathBuf },
    /// Run as process 1 of a machine. Used by the lab.
    #[command(hide = true)]
    MachineInit { file: PathBuf },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        // These two commands must have one thread only: no runtime may start before them.
        Command::MachineHold { file } => machine::hold(&file).map(|()| ExitCode::SUCCESS),
        Command::MachineInit { file } => machine::init(&file).map(|()| ExitCode::SUCCESS),
        Command::Up(arguments) => run(up::run(arguments)),
        Command::Down(arguments) => run(down::run(arguments)),
        Command::Status(arguments) => run(status::run(arguments)),
        Command::Install(arguments) => run(install::run(arguments)),
        Command::Kubectl(arguments) => run(kubectl::run(arguments)),
        Command::Demo(arguments) => run(demo::run(arguments)),
        Command::Crash(arguments) => run(crash::run(arguments)),
        Command::DatastoreCorpus(arguments) => run(datastore_corpus::run(arguments)),
        Command::FieldCases(arguments) => run(field_cases::run(arguments)),
        Command::DatastoreTrial(arguments) => run(datastore_trial::run(arguments)),
        Command::Policies(arguments) => run(policies::run(arguments)),
        Command::Scale(arguments) => run(scale::run(arguments)),
        Command::Hollow(arguments) => run(hollow::run(arguments)),
        Command::Test(arguments) => run(test::run(arguments)),
    };
    result.unwrap_or_else(|error| {
        eprintln!("cargo lab: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(command)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn every_option_has_one_meaning() {
        super::Arguments::command().debug_assert();
    }
}
