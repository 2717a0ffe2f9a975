//! `cargo lab datastore-trial`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::json;

use crate::assets::{self, Build};
use crate::datastore::etcd::{Etcd, Options};
use crate::datastore::sample;
use crate::datastore::trial::{Trial, strikes};
use crate::progress::Progress;

/// `cargo lab datastore-trial`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Approximate number of Calico v2 keys
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(50..=200_000))]
    pub keys: u32,
    /// Number of writes at which the tool is killed, once before etcd has the write and once after. 0: all writes.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub strikes: usize,
    /// Keys in one transaction
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(2..=127))]
    pub batch: u16,
    /// Use a release build of the tool
    #[arg(long)]
    pub release: bool,
    /// Write the result as JSON into this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Converts a store without interruption and prints the cost; then kills the tool at writes.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let progress = Progress::default();
    let old = assets::old_etcd(&progress).await?;
    let build = Build {
        release: arguments.release,
        ..Build::default()
    };
    let program = assets::command_line(build, &progress).await?;
    let folder = tempfile::tempdir().context("create a folder for etcd")?;
    let options = Options {
        program: old,
        v2: Some(true),
        tls: None,
    };
    let etcd = Etcd::start(&folder.path().join("etcd"), &options).await?;
    let store = sample::store(usize::try_from(arguments.keys)?);
    progress.say(format_args!("converting {} keys of Calico v2", store.len()));
    let trial = Trial::new(
        &etcd,
        &program,
        folder.path(),
        store,
        usize::from(arguments.batch),
    );
    let undisturbed = trial.undisturbed().await?;
    progress.say(format_args!(
        "{} keys of v3 in {} writes: {:.1} s, {:.0} MiB at most",
        undisturbed.keys_v3, undisturbed.writes, undisturbed.seconds, undisturbed.memory_mib
    ));
    let all = strikes(undisturbed.writes, arguments.strikes);
    for strike in &all {
        let what = || format!("killed at {strike:?} of {} writes", undisturbed.writes);
        trial.killed(*strike, &undisturbed).await.with_context(what)?;
        progress.say(format_args!(
            "{}: continued, same result as without the kill, rolled back",
            what()
        ));
    }
    if let Some(file) = &arguments.report {
        let report = json!({ "undisturbed": undisturbed, "killed": all.len() });
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    println!("{} passed, 0 failed", all.len() + 1);
    Ok(ExitCode::SUCCESS)
}
