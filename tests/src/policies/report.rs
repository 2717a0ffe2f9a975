//! The result: tables by policy and by class, and each difference.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::compare::{Agreement, Counts, Line, Measured, Preview, Table, agreement, line};
use super::rounds::Round;
use super::trial::Trial;

/// Fewer policies, or pairs of pods, prove too little.
const FEWEST_POLICIES: usize = 20;
const FEWEST_PAIRS: usize = 400;
/// Most differences in the text; the JSON report has all.
const SHOWN: usize = 60;

/// The report.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The implementation of Calico.
    pub calico: String,
    /// Its version, as in the tag of calico-node's image.
    pub version: String,
    /// Its data plane.
    pub data_plane: String,
    /// Seconds of all rounds.
    pub seconds: f64,
    /// Number of pods that were measured.
    pub pods: usize,
    /// Number of ordered pairs of different pods of which at least one connection was measured.
    pub pairs: usize,
    /// Number of policies.
    pub policies: usize,
    /// All connections.
    pub all: Counts,
    /// The rounds, in their order.
    pub rounds: Vec<RoundReport>,
    /// The policies, with the connections of the pods that each selects.
    pub by_policy: Vec<Row>,
    /// The classes of connections.
    pub by_class: Vec<Row>,
    /// Connections of which preview and Felix differ.
    pub differences: Vec<Line>,
    /// Connections that were not measured.
    pub failures: Vec<Line>,
    /// Connections that the preview does not decide.
    pub undecided: Vec<Line>,
    /// Number of connections that the preview does not decide, by its reason.
    pub unknown: BTreeMap<String, usize>,
    /// Connections that were answered at a later attempt only: the machine was busy.
    pub answered_later: usize,
    /// Faults that were found. An empty list is a pass.
    pub problems: Vec<String>,
    #[serde(skip)]
    rows: Rows,
}

#[derive(Clone, Debug, Default)]
struct Rows {
    policies: Table<(usize, String)>,
    classes: Table<&'static str>,
    pairs: BTreeSet<(String, String)>,
}

/// A round.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoundReport {
    /// Its name.
    pub name: String,
    /// Seconds from the creation of the last policy until each node held it. Absent without policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_until_held: Option<f64>,
    /// Seconds of the measurement.
    pub seconds: f64,
    /// Its connections.
    #[serde(flatten)]
    pub counts: Counts,
}

/// A row of a table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The name of a policy or a class.
    pub name: String,
    /// Its connections.
    #[serde(flatten)]
    pub counts: Counts,
}

/// The pods that a policy selects.
#[derive(Clone, Debug)]
pub struct Selection {
    /// `namespace/name` of the policy.
    pub policy: String,
    /// The pods whose incoming connections it isolates.
    pub ingress: BTreeSet<String>,
    /// The pods whose outgoing connections it isolates.
    pub egress: BTreeSet<String>,
}

impl Selection {
    /// Whether the policy judges the connection on one of its sides.
    fn judges(&self, trial: &Trial) -> bool {
        self.egress.contains(&trial.client) || trial.pods.iter().any(|pod| self.ingress.contains(pod))
    }
}

impl Report {
    /// A report without rounds.
    pub fn new(calico: String, version: String, data_plane: String) -> Self {
        Self {
            calico,
            version,
            data_plane,
            ..Self::default()
        }
    }

    /// Adds the connections of a round.
    pub fn add(
        &mut self,
        round: Round,
        selections: &[Selection],
        results: &[(Trial, Preview, Measured)],
        seconds: f64,
        seconds_until_held: Option<f64>,
    ) {
        let place = self.rounds.len();
        let mut counts = Counts::default();
        for (trial, preview, measured) in results {
            counts.add(preview, measured);
            self.all.add(preview, measured);
            self.rows
                .classes
                .entry(trial.class.as_str())
                .or_default()
                .add(preview, measured);
            for selection in selections.iter().filter(|selection| selection.judges(trial)) {
                let key = (place, selection.policy.clone());
                self.rows.policies.entry(key).or_default().add(preview, measured);
            }
            match agreement(preview, measured) {
                Agreement::Agree => {}
                Agreement::Differ => self.differences.push(line(round.name, trial, preview, measured)),
                Agreement::Failed => self.failures.push(line(round.name, trial, preview, measured)),
                Agreement::Unknown => {
                    self.undecided.push(line(round.name, trial, preview, measured));
                    if let Preview::Unknown(why) = preview {
                        *self.unknown.entry((*why).to_owned()).or_default() += 1;
                    }
                }
            }
            if trial.is_from_pod && agreement(preview, measured) != Agreement::Failed {
                let others = trial.pods.iter().filter(|pod| **pod != trial.client);
                let pairs = others.map(|pod| (trial.client.clone(), pod.clone()));
                self.rows.pairs.extend(pairs);
            }
        }
        // A policy that selects no pod has a row, too.
        for selection in selections {
            let key = (place, selection.policy.clone());
            self.rows.policies.entry(key).or_default();
        }
        self.policies += selections.len();
        if round.has_policies() && counts.felix_refused == 0 {
            self.problems.push(format!(
                "round {}: Felix refused no connection, so its policies prove nothing",
                round.name
            ));
        }
        self.rounds.push(RoundReport {
            name: round.name.to_owned(),
            seconds_until_held,
            seconds,
            counts,
        });
    }

    /// Fills the tables, and lists the faults.
    pub fn finish(&mut self, is_whole: bool) {
        let row = |name: String, counts: &Counts| Row {
            name,
            counts: counts.clone(),
        };
        self.by_policy = self
            .rows
            .policies
            .iter()
            .map(|((_, name), counts)| row(name.clone(), counts))
            .collect();
        self.by_class = self
            .rows
            .classes
            .iter()
            .map(|(name, counts)| row((*name).to_owned(), counts))
            .collect();
        self.pairs = self.rows.pairs.len();
        if self.all.differ > 0 {
            self.problems.push(format!(
                "preview and Felix differ in {} connections",
                self.all.differ
            ));
        }
        if self.all.failed > 0 {
            self.problems
                .push(format!("connections that were not measured: {}", self.all.failed));
        }
        let needs = [
            ("policies", self.policies, FEWEST_POLICIES),
            ("pairs of pods", self.pairs, FEWEST_PAIRS),
        ];
        for (what, found, needed) in needs {
            if is_whole && found < needed {
                self.problems
                    .push(format!("{what}: found {found}, needed {needed} or more"));
            }
        }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut lines = vec![
            format!(
                "Calico {} ({}, data plane {}): {} pods, {} ordered pairs, {} policies in {} rounds, {:.0} s",
                self.version,
                self.calico,
                self.data_plane,
                self.pods,
                self.pairs,
                self.policies,
                self.rounds.len(),
                self.seconds
            ),
            header("round"),
        ];
        for round in &self.rounds {
            let held = round
                .seconds_until_held
                .map_or_else(String::new, |seconds| format!("  held after {seconds:.1} s"));
            let row = self::row(&round.name, &round.counts);
            lines.push(format!("{row}  measured in {:.1} s{held}", round.seconds));
        }
        lines.push(header("connections of pods that the policy selects"));
        lines.extend(self.by_policy.iter().map(|one| row(&one.name, &one.counts)));
        lines.push(header("class of connections"));
        lines.extend(self.by_class.iter().map(|one| row(&one.name, &one.counts)));
        for (what, found) in [("differs", &self.differences), ("not measured", &self.failures)] {
            lines.extend(found.iter().take(SHOWN).map(|line| difference(what, line)));
            if found.len() > SHOWN {
                lines.push(format!(
                    "  … and {} more lines in the JSON report",
                    found.len() - SHOWN
                ));
            }
        }
        for (why, count) in &self.unknown {
            lines.push(format!("not decided by the preview: {count} ({why})"));
        }
        let later = self.answered_later;
        if later > 0 {
            lines.push(format!("answered at a later attempt only: {later}"));
        }
        lines.push(format!(
            "agree: {} of {}; not decided: {}",
            self.all.agree,
            self.all.connections - self.all.unknown - self.all.failed,
            self.all.unknown
        ));
        lines.extend(self.problems.iter().map(|problem| format!("PROBLEM: {problem}")));
        lines.join("\n")
    }
}

fn header(first: &str) -> String {
    format!(
        "\n{first:<46} {:>7} {:>15} {:>15} {:>7} {:>6} {:>7}",
        "tried", "preview: yes/no", "Felix: yes/no", "agree", "differ", "unknown"
    )
}

fn row(name: &str, counts: &Counts) -> String {
    format!(
        "{name:<46} {:>7} {:>15} {:>15} {:>7} {:>6} {:>7}",
        counts.connections,
        format!("{}/{}", counts.preview_allowed, counts.preview_refused),
        format!("{}/{}", counts.felix_allowed, counts.felix_refused),
        counts.agree,
        counts.differ,
        counts.unknown
    )
}

fn difference(what: &str, line: &Line) -> String {
    let Line {
        round,
        client,
        server,
        asked,
        class,
        preview,
        felix,
    } = line;
    format!(
        "{what}: {round}: {client} → {server} ({asked}, {}): preview {preview}, Felix {felix}",
        class.as_str()
    )
}

#[cfg(test)]
mod tests;
