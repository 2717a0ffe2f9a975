//! The program `traffic`.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use traffic::{answer, ask, flood, pause, probe, serve};

/// The lab's traffic generator.
#[derive(Debug, Parser)]
#[command(name = "traffic", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Hold a pod's namespaces: only reap orphans and end on SIGTERM
    Pause,
    /// Answer probes
    Serve(serve::Options),
    /// Send probes to a Service, to each of its pods and to name servers, and count them
    Probe(probe::Options),
    /// Answer with a name on several ports
    Answer(answer::Options),
    /// Try the connections that are read from standard input, and print which of them got an answer
    Ask,
    /// Send datagrams without pause and hold idle connections, as a flood of another owner
    Flood(flood::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Pause => pause::run(),
        Command::Serve(options) => run(serve::run(options)),
        Command::Probe(options) => run(probe::run(options)),
        Command::Answer(options) => run(answer::run(options)),
        Command::Ask => run(ask::run()),
        Command::Flood(options) => run(flood::run(options)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("traffic: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    // One thread: the network is measured, and many of these programs share few processors.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?
        .block_on(work)
}
