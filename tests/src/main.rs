//! `cargo lab`: a real cluster on one machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lab::commands::{
    crash, datastore_corpus, datastore_trial, demo, down, hollow, install, kubectl, scale, status, test, up,
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
    /// Make a cluster.
    Up(up::Arguments),
    /// Take a cluster away, whatever state it is in.
    Down(down::Arguments),
    /// Show the machines of a cluster, their services and the nodes.
    Status(status::Arguments),
    /// Build replumb and put it into a cluster, in place of the one that is there.
    Install(install::Arguments),
    /// Run kubectl against the cluster.
    Kubectl(kubectl::Arguments),
    /// Migrate a cluster while traffic flows, from flannel to Calico or to another range for its pods, and say how it went.
    Demo(demo::Arguments),
    /// Kill the agent, the coordinator, the API server or a node at every step of a migration, there and back.
    Crash(crash::Arguments),
    /// Convert each case of a corpus from etcd v2 to etcd v3, and compare with what Calico's own tool made of it.
    DatastoreCorpus(datastore_corpus::Arguments),
    /// Convert a store of Calico v2 of any size, and kill the tool at its writes.
    DatastoreTrial(datastore_trial::Arguments),
    /// Migrate a large cluster whose kubelets and agents are played, and say what that costs the coordinator.
    Scale(scale::Arguments),
    /// Play the agents of every node of a cluster without hosts, such as kwok's.
    Hollow(hollow::Arguments),
    /// Run every test, the cheapest first.
    Test(test::Arguments),
    /// Make a machine's namespaces and wait for its end. The lab calls it.
    #[command(hide = true)]
    MachineHold { file: PathBuf },
    /// Be process 1 of a machine. The lab calls it.
    #[command(hide = true)]
    MachineInit { file: PathBuf },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        // These two must not have a second thread: no runtime before them.
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
        Command::DatastoreTrial(arguments) => run(datastore_trial::run(arguments)),
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
