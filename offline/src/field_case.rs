//! A case from the field: a snapshot, the migrations that are judged on it, and what is right.

use std::path::Path;

use anyhow::{Context as _, bail};
use engine::check::{Check, Verdict};
use serde::Deserialize;
use serde_json::Value;

use crate::judge::{Judgement, judge};
use crate::snapshot::{Document, Snapshot, check_header};

/// A case from the field.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FieldCase {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    /// The address of the report, or where else the case comes from.
    pub source: String,
    /// What the cluster has that others do not.
    pub about: String,
    /// Specs of the migrations that are judged; each has the same outcome.
    migrations: Vec<Value>,
    /// The cluster.
    snapshot: Document,
    /// The checks that are named here have these results. Every other one lets the migration start.
    #[serde(default)]
    expect: Vec<Expected>,
    /// Changes of the cluster as the fix texts say: afterwards the refusing checks of `expect` let the migration start.
    #[serde(default)]
    fix: Option<Fix>,
    /// Why no fix is tried, although a check refuses.
    #[serde(default)]
    no_fix: Option<String>,
}

/// The result of a check.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// Name of the check.
    check: String,
    /// Its verdict.
    verdict: Verdict,
    /// Parts of its texts.
    #[serde(default)]
    object: String,
    #[serde(default)]
    found: String,
    #[serde(default)]
    needed: String,
    #[serde(default)]
    fix: String,
    /// Words that its texts must not have.
    #[serde(default)]
    without: Vec<String>,
}

/// A fix that is tried.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fix {
    /// Changes of the spec: a merge patch.
    #[serde(default)]
    migration: Value,
    /// Changes of the cluster.
    #[serde(default)]
    snapshot: Document,
    /// Refusals that remain, because they do not depend on the fix.
    #[serde(default)]
    remain: Vec<String>,
}

/// A cluster that is judged wrongly: what was found instead.
pub type Problems = Vec<String>;

impl FieldCase {
    /// Reads a case. `text` is YAML.
    ///
    /// # Errors
    ///
    /// The text is not a case, or it says nothing.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let case: Self = yaml_serde::from_str(text)?;
        check_header(&case.api_version, &case.kind, "FieldCase")?;
        if case.migrations.is_empty() {
            bail!("migrations: found none, needed at least one");
        }
        let refuses = case.expect.iter().any(|expected| !expected.verdict.allows());
        if refuses == (case.fix.is_none() && case.no_fix.is_none()) {
            bail!("fix: needed if and only if a check refuses; or noFix with the reason why none is tried");
        }
        Ok(case)
    }

    /// The cluster of the case, and the specs of the migrations that are judged on it.
    ///
    /// # Errors
    ///
    /// The snapshot names something that does not exist.
    pub fn cluster(&self) -> Result<(Snapshot, &[Value]), crate::snapshot::SnapshotError> {
        Ok((Snapshot::of(self.snapshot.clone())?, &self.migrations))
    }

    /// Judges the case, and again after the fix. Returns what is wrong.
    ///
    /// # Errors
    ///
    /// The case cannot be judged.
    pub async fn run(&self) -> anyhow::Result<Problems> {
        let mut problems = Vec::new();
        for spec in &self.migrations {
            let snapshot = Snapshot::of(self.snapshot.clone())?;
            let judgement = judge(snapshot.clone(), spec).await?;
            problems.extend(
                self.compare(&judgement)
                    .into_iter()
                    .map(|problem| format!("{spec}: {problem}")),
            );
            if let Some(fix) = &self.fix {
                let found = self.after(fix, snapshot, spec).await?;
                problems.extend(
                    found
                        .into_iter()
                        .map(|problem| format!("{spec}, after the fix: {problem}")),
                );
            }
        }
        Ok(problems)
    }

    fn compare(&self, judgement: &Judgement) -> Problems {
        let mut problems = Vec::new();
        for expected in &self.expect {
            let same_name = judgement
                .checks
                .iter()
                .filter(|check| check.name == expected.check);
            let found: Vec<&Check> = same_name.collect();
            if !found.iter().any(|check| expected.is_met(check)) {
                let lines: Vec<String> = found.iter().map(|check| text(check)).collect();
                let lines = if lines.is_empty() {
                    "no such check".to_owned()
                } else {
                    lines.join("; ")
                };
                problems.push(format!("expected {expected:?}, found {lines}"));
            }
        }
        let unexpected = judgement
            .refusals()
            .filter(|check| !self.expect.iter().any(|expected| expected.is_met(check)));
        problems.extend(unexpected.map(|check| format!("not expected: {}", text(check))));
        problems
    }

    async fn after(&self, fix: &Fix, mut snapshot: Snapshot, spec: &Value) -> anyhow::Result<Problems> {
        snapshot.apply(fix.snapshot.clone()).context("fix")?;
        let mut spec = spec.clone();
        api::merge::apply(&mut spec, &fix.migration);
        let judgement = judge(snapshot, &spec).await?;
        let unexpected = judgement
            .refusals()
            .filter(|check| !fix.remain.contains(&check.name));
        let mut problems: Problems = unexpected.map(text).collect();
        let remains = |name: &&String| judgement.refusals().any(|check| check.name == **name);
        let gone = fix.remain.iter().filter(|name| !remains(name));
        problems.extend(gone.map(|name| format!("{name} was to remain, and does not refuse")));
        Ok(problems)
    }
}

impl Expected {
    /// Whether the check is one of those that are expected: several checks of a name differ in their objects.
    fn is_about(&self, check: &Check) -> bool {
        self.check == check.name && self.verdict == check.verdict
    }

    fn is_met(&self, check: &Check) -> bool {
        let texts = [&check.object, &check.found, &check.needed, &check.fix];
        let parts = [&self.object, &self.found, &self.needed, &self.fix];
        self.is_about(check)
            && texts
                .iter()
                .zip(parts)
                .all(|(text, part)| text.contains(part.as_str()))
            && !self
                .without
                .iter()
                .any(|word| texts.iter().any(|text| text.contains(word.as_str())))
    }
}

fn text(check: &Check) -> String {
    let Check {
        name,
        verdict,
        object,
        found,
        needed,
        fix,
        ..
    } = check;
    format!("{verdict:?} {name} {object:?}: found {found:?}, needed {needed:?}, fix {fix:?}")
}

/// Reads and runs every case of a folder, in the order of their names: the name, and what is wrong or why it cannot be judged.
///
/// # Errors
///
/// The folder cannot be read, or has no case.
pub async fn run_all(folder: &Path) -> anyhow::Result<Vec<(String, anyhow::Result<Problems>)>> {
    let attempt = || format!("reading the folder {}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(attempt)? {
        let path = entry.with_context(attempt)?.path();
        if path.extension().is_some_and(|end| end == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        bail!(
            "folder {}: no case, needed files that end in .yaml",
            folder.display()
        );
    }
    let mut ended = Vec::new();
    for file in files {
        let name = file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let outcome = async {
            let text = std::fs::read_to_string(&file)?;
            Box::pin(FieldCase::parse(&text)?.run()).await
        };
        ended.push((name, outcome.await));
    }
    Ok(ended)
}
