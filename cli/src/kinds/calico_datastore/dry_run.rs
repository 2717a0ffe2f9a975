//! The result of a conversion in memory: reports as files, and a summary.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use calico_datastore::convert::Conversion;
use calico_datastore::run::decide::Goal;
use calico_datastore::run::record::Phase;
use calico_datastore::run::refusal::Refusal;
use datastore::run;
use datastore::run::prepared::{NotConvertible, Prepared};
use datastore::stores::{CLUSTER_GUID, Stores};
use serde::Serialize;

use super::flags::DryRun;
use super::stores::{self, Variables};
use crate::error::CliError;
use crate::exit::Outcome;
use crate::output::Output;
use crate::say;

/// The number of lines of a report in the summary.
const SHOWN: usize = 10;

/// The result of a conversion in memory.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DryRunResult {
    /// Reasons to refuse the conversion; empty if there are none.
    pub refusals: Vec<String>,
    /// The refusal of `start` in the current state of both stores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_now: Option<String>,
    /// Whether Calico is paused by a conversion that `start` would continue.
    pub is_begun: bool,
    /// Number of keys that would be written, by kind.
    pub keys: BTreeMap<String, usize>,
    /// The reports that are not empty.
    pub reports: Vec<Report>,
}

/// One report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The subject of its lines.
    pub about: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The number of lines.
    pub lines: usize,
    #[serde(skip)]
    first: Vec<String>,
}

/// Converts all data in memory, and prints the result and whether the conversion may start.
pub async fn dry_run(asked: &DryRun, variables: &Variables) -> Result<Outcome, CliError> {
    let look = &asked.look;
    let stores = stores::stores(&look.stores, variables).await?;
    let found = convert(&stores, &look.folder.output_dir, asked.ignore_v3_data).await?;
    match look.shown.output {
        Output::Json => say::json(&found)?,
        Output::Table => say::answer(&found.text())?,
    }
    Ok(found.outcome())
}

/// Converts all data in memory and writes the reports.
pub async fn convert(stores: &Stores, folder: &Path, over_existing: bool) -> Result<DryRunResult, CliError> {
    let tree = stores.v2.tree().await?;
    let nothing = Prepared::without_data(tree.value(CLUSTER_GUID).unwrap_or_default());
    let mut found = DryRunResult::default();
    let (prepared, conversion) = match Prepared::of(&tree) {
        Ok(prepared) => (prepared.clone(), prepared.conversion),
        Err(error) => {
            found.refusals.push(format!("{error}: {}", error.hint()));
            match error {
                NotConvertible::Values(conversion) => (nothing, Some(conversion)),
                NotConvertible::Empty | NotConvertible::Version(_) => (nothing, None),
            }
        }
    };
    let recorded = stores.record().await?;
    found.is_begun = recorded.is_some_and(|recorded| {
        let phase = recorded.record.phase;
        phase < Phase::Completing || phase == Phase::Aborting
    });
    let goal = Goal::Start { over_existing };
    if let Some(refusal) = run::refusal(stores, &prepared, goal).await? {
        let text = format!("{refusal}: {}", refusal.hint());
        match refusal {
            Refusal::NotEmpty { .. } | Refusal::V3Open { .. } | Refusal::Completed => {
                found.refusals.push(text);
            }
            // Independent of the data: the state may be different at the start.
            Refusal::NoFlag
            | Refusal::PausedByOthers { .. }
            | Refusal::V2Open
            | Refusal::NothingConverted
            | Refusal::NotVerified { .. }
            | Refusal::AlreadyCompleted
            | Refusal::KeysMissing { .. }
            | Refusal::BeingCompleted
            | Refusal::Changed
            | Refusal::Missing { .. }
            | Refusal::OtherCluster { .. } => found.not_now = Some(text),
        }
    }
    if let Some(conversion) = conversion {
        for object in &conversion.objects {
            *found.keys.entry(object.kind.name().to_owned()).or_default() += 1;
        }
        found.reports = write(&conversion, folder)?;
    }
    Ok(found)
}

/// Writes the reports, with the file names of Calico's own tool and one more. Earlier reports are removed.
fn write(conversion: &Conversion, folder: &Path) -> Result<Vec<Report>, CliError> {
    fn lines<T: ToString>(all: &[T]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }
    let failed = |path: &Path, error: &std::io::Error| CliError::File {
        file: path.display().to_string(),
        why: error.to_string(),
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let mut reports = Vec::new();
    for (name, about, lines) in [
        (
            "conversionerrors",
            "values that cannot be converted",
            lines(&conversion.conversion_errors),
        ),
        (
            "validationerrors",
            "values that Calico v3 would refuse",
            lines(&conversion.validation_errors),
        ),
        ("nameclashes", "name clashes", lines(&conversion.clashes)),
        ("notes", "notes", lines(&conversion.notes)),
        ("convertednames", "converted names", lines(&conversion.renamed)),
    ] {
        let path = folder.join(name);
        if lines.is_empty() {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(failed(&path, &error));
                }
                Ok(()) | Err(_) => continue,
            }
        }
        std::fs::write(&path, lines.join("\n") + "\n").map_err(|error| failed(&path, &error))?;
        reports.push(Report {
            about,
            path,
            lines: lines.len(),
            first: lines.into_iter().take(SHOWN).collect(),
        });
    }
    Ok(reports)
}

impl DryRunResult {
    /// Whether the data allows to start the conversion.
    pub fn outcome(&self) -> Outcome {
        if self.refusals.is_empty() {
            Outcome::Done
        } else {
            Outcome::Refused
        }
    }

    /// The result as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for report in &self.reports {
            let _ = writeln!(
                text,
                "{}: {} ({})",
                report.about,
                report.lines,
                report.path.display()
            );
            for line in &report.first {
                let _ = writeln!(text, "  {line}");
            }
            if report.lines > report.first.len() {
                let _ = writeln!(text, "  and {} more", report.lines - report.first.len());
            }
            text.push('\n');
        }
        if !self.keys.is_empty() {
            let all: Vec<String> = self
                .keys
                .iter()
                .map(|(kind, count)| format!("{count} {kind}"))
                .collect();
            let sum: usize = self.keys.values().sum();
            let _ = writeln!(text, "keys to write to etcd v3: {sum} ({})", all.join(", "));
        }
        for refusal in &self.refusals {
            let _ = writeln!(text, "refused: {refusal}");
        }
        if let Some(not_now) = &self.not_now {
            let _ = writeln!(text, "start refused now: {not_now}");
        }
        if self.is_begun {
            text.push_str(
                "Calico is PAUSED by a conversion in progress: `kubectl replumb datastore status`\n",
            );
        } else if self.refusals.is_empty() {
            text.push_str("all data can be converted; nothing was changed\n");
        } else {
            text.push_str("nothing was changed\n");
        }
        text
    }
}
