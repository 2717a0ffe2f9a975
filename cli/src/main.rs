//! `kubectl-replumb`: the command line tool.

#![expect(
    clippy::format_push_string,
    clippy::format_collect,
    reason = "short texts; a dropped result of write! is less readable"
)]

mod age;
mod args;
mod choose;
mod cluster;
mod commands;
mod confirm;
mod connection;
mod error;
mod exit;
mod file;
#[cfg(test)]
mod fixture;
mod gate_flags;
mod health;
mod help;
mod kinds;
mod output;
mod planned;
mod render;
mod request;
mod retry;
mod rollback_targets;
mod say;
mod table;
mod value;
mod yaml;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::cluster::Cluster;
use crate::exit::Outcome;

// Two threads: the renewal of a lock must not wait for a computation, or for a write to a blocked terminal.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Requested help is an answer. Any other outcome is an error with exit code 1: clap would use 2, which means a
            // refusal here.
            let _ = error.print();
            return if error.use_stderr() {
                Outcome::Failed
            } else {
                Outcome::Done
            }
            .into();
        }
    };
    match Box::pin(run(&args)).await {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            say::note(&format!("error: {error}"));
            if let Some(hint) = error.hint() {
                say::note(&format!("hint: {hint}"));
            }
            error.outcome().into()
        }
    }
}

async fn run(args: &Args) -> Result<Outcome, error::CliError> {
    if let Command::Generate(generate) = &args.command {
        return commands::generate(generate);
    }
    // Variables with a name that is not UTF-8 are not used.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())));
    if let Command::OfKind(command) = &args.command {
        return Box::pin(command.run(variables)).await;
    }
    if let Some(snapshot) = args.command.snapshot() {
        return Box::pin(commands::run_offline(snapshot, &args.command, variables)).await;
    }
    let cluster = Cluster::connect(&args.connection).await;
    if let Command::Version(shown) = &args.command {
        return commands::version(cluster, *shown).await;
    }
    Box::pin(commands::run(&cluster?, &args.command, variables)).await
}
