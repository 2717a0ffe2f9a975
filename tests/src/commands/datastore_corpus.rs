//! `cargo lab datastore-corpus`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::assets::{self, Build};
use crate::datastore::case::Case;
use crate::datastore::compare::Verdict;
use crate::datastore::corpus;
use crate::datastore::etcd::{Etcd, Options};
use crate::datastore::intended::Intended;
use crate::progress::Progress;

/// `cargo lab datastore-corpus`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Folder with the cases, one JSON file for each
    pub folder: PathBuf,
    /// Only cases whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
}

/// Runs every case and prints a line for each. Exit code 0 if no case is wrong.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let mut cases = Case::all(&arguments.folder)?;
    if let Some(text) = &arguments.only {
        cases.retain(|case| case.name.contains(text));
        anyhow::ensure!(!cases.is_empty(), "no case name contains {text:?}");
    }
    let progress = Progress::default();
    let etcd = assets::old_etcd(&progress).await?;
    let program = assets::command_line(Build::default(), &progress).await?;
    let folder = tempfile::tempdir().context("create a folder for etcd")?;
    let options = Options {
        program: etcd,
        v2: Some(true),
        tls: None,
    };
    let etcd = Etcd::start(&folder.path().join("etcd"), &options).await?;
    let (mut identical, mut intended, mut wrong) = (0, 0, 0);
    let mut reasons: Vec<Intended> = Vec::new();
    for case in &cases {
        let verdict = corpus::run(&etcd, &program, &folder.path().join("reports"), case)
            .await
            .unwrap_or_else(|error| Verdict::Wrong(vec![format!("{error:#}")]));
        match verdict {
            Verdict::Identical => {
                identical += 1;
                println!("identical  {}", case.name);
            }
            Verdict::Intended(found) => {
                intended += 1;
                let names: Vec<String> = found.iter().map(|intended| intended.name()).collect();
                println!("intended   {}: {}", case.name, names.join(", "));
                reasons.extend(found);
            }
            Verdict::Wrong(why) => {
                wrong += 1;
                println!("WRONG      {}: {}", case.name, why.join("; "));
            }
        }
    }
    reasons.sort_unstable();
    reasons.dedup();
    if !reasons.is_empty() {
        println!("\nIntended differences:");
    }
    for reason in reasons {
        println!("  {}: {}", reason.name(), reason.reason());
    }
    println!(
        "\n{} cases: {identical} identical, {intended} differ as intended, {wrong} wrong",
        cases.len()
    );
    println!("{} passed, {wrong} failed", identical + intended);
    Ok(if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
