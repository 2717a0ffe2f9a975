//! What a conversion finds: reports as files, and the same at a glance.

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
use super::reach::{self, Variables};
use crate::args::Output;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::say;

/// Lines of a report that are shown as well.
const SHOWN: usize = 10;

/// What a conversion finds.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// What stands against it; empty is well.
    pub refusals: Vec<String>,
    /// What `start` would say beside that, as both stores are at this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_now: Option<String>,
    /// Whether Calico is paused by a conversion that `start` goes on with.
    pub is_begun: bool,
    /// Keys that would be written, by what they are.
    pub keys: BTreeMap<String, usize>,
    /// The reports that have lines, and how many.
    pub reports: Vec<Report>,
}

/// One report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What its lines say.
    pub about: &'static str,
    /// The file.
    pub path: PathBuf,
    /// How many lines it has.
    pub lines: usize,
    #[serde(skip)]
    first: Vec<String>,
}

/// Converts everything, says what comes of it, and whether it may be started.
pub async fn dry_run(asked: &DryRun, variables: &Variables) -> Result<Outcome, CliError> {
    let look = &asked.look;
    let stores = reach::stores(&look.stores, variables).await?;
    let found = look_at(&stores, &look.folder.output_dir, asked.ignore_v3_data).await?;
    match look.shown.output {
        Output::Json => say::json(&found)?,
        Output::Table => say::answer(&found.text())?,
    }
    Ok(found.outcome())
}

/// Converts everything and writes the reports.
pub async fn look_at(stores: &Stores, folder: &Path, over_existing: bool) -> Result<Found, CliError> {
    let tree = stores.v2.tree().await?;
    let nothing = Prepared::nothing(tree.value(CLUSTER_GUID).unwrap_or_default());
    let mut found = Found::default();
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
            // Nothing to do with what is converted: it may be otherwise when it is started.
            Refusal::NoFlag
            | Refusal::PausedBySomebody { .. }
            | Refusal::V2Open
            | Refusal::NothingConverted
            | Refusal::NotVerified { .. }
            | Refusal::LeavesCompleted
            | Refusal::Lost { .. }
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

/// The reports, by the names that Calico's own tool gives its files, and one more. Those of before go.
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
        (
            "nameclashes",
            "names that would be the same",
            lines(&conversion.clashes),
        ),
        ("notes", "things to know", lines(&conversion.notes)),
        (
            "convertednames",
            "names that are converted",
            lines(&conversion.renamed),
        ),
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

impl Found {
    /// Whether it may be started, as far as data are concerned.
    pub fn outcome(&self) -> Outcome {
        if self.refusals.is_empty() {
            Outcome::Done
        } else {
            Outcome::Refused
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for report in &self.reports {
            let _ = writeln!(
                text,
                "{} {} ({})",
                report.lines,
                report.about,
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
            let _ = writeln!(text, "{sum} keys would be written to etcd v3: {}", all.join(", "));
        }
        for refusal in &self.refusals {
            let _ = writeln!(text, "refused: {refusal}");
        }
        if let Some(not_now) = &self.not_now {
            let _ = writeln!(text, "not now: {not_now}");
        }
        if self.is_begun {
            text.push_str(
                "Calico is PAUSED by a conversion that has begun: `kubectl replumb datastore status`\n",
            );
        } else if self.refusals.is_empty() {
            text.push_str("everything can be converted; nothing was changed\n");
        } else {
            text.push_str("nothing was changed\n");
        }
        text
    }
}
