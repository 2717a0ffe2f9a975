//! `kubectl-replumb`: the operator's hand.

#![expect(
    clippy::format_push_string,
    clippy::format_collect,
    reason = "short texts for people; a dropped result of write! reads worse"
)]

mod age;
mod args;
mod choose;
mod cluster;
mod commands;
mod error;
mod exit;
mod file;
#[cfg(test)]
mod fixture;
mod gate_flags;
mod health;
mod help;
mod kinds;
mod patience;
mod planned;
mod render;
mod say;
mod value;
mod wanted;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::cluster::Cluster;
use crate::exit::Outcome;

// What renews a lock does not wait for whoever computes, or writes to a terminal that stands still.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help that was asked for is an answer. Everything else is an error, which is 1 here: clap's own
            // code for it is 2, and 2 is a refusal.
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
    // A variable that is not text is none of ours.
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())));
    if let Command::Datastore(datastore) = &args.command {
        return Box::pin(kinds::calico_datastore::run(datastore, variables)).await;
    }
    let cluster = Cluster::connect(&args.connection).await?;
    Box::pin(commands::run(&cluster, &args.command, variables)).await
}
