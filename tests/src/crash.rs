//! The crash matrix: at every named step of a migration in place and of its rollback a program is killed, and the end
//! is the same as without a crash.

mod judge;
mod loss;
pub mod matrix;
pub mod pod_cidr;
mod point;
mod round;
mod state;
mod strike;
mod workload;

pub use loss::Loss;
pub use round::{Bench, Outcome};

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use matrix::{Cell, Leg, Round, Victim};

/// Time limit for the node of a killed kubelet to be Ready.
const NODES_LIMIT: Duration = Duration::from_mins(2);

/// Sets the longest restart delay to one second. The kubelet's default grows to 5 minutes, and a matrix kills the
/// same containers again and again.
pub async fn shorten_restart_delay(cluster: &Cluster) -> Result<()> {
    let nodes = cluster.node_names().await;
    for node in &nodes {
        let file = cluster.disk(node).join("etc/kubernetes/kubelet.json");
        let what = || format!("the kubelet's configuration {}", file.display());
        let text = std::fs::read_to_string(&file).with_context(what)?;
        let mut configuration: Value = serde_json::from_str(&text).with_context(what)?;
        configuration["crashLoopBackOff"] = json!({ "maxContainerRestartPeriod": "1s" });
        std::fs::write(&file, serde_json::to_string_pretty(&configuration)?).with_context(what)?;
        cluster.kill_service(node, "kubelet").await?;
    }
    cluster.api().nodes_ready(&nodes, NODES_LIMIT).await
}

/// Result of the matrix.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Matrix {
    /// The crashes that were made.
    pub cells: Vec<Outcome>,
    /// Number of selected crashes.
    pub selected: usize,
    /// The programs that played Calico.
    pub calico: String,
    /// The reason why the matrix stopped early, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken_off: Option<String>,
}

impl Matrix {
    /// Runs every round. A round that does not end is the last: the next one would have no known state to compare with.
    pub async fn run(bench: &mut Bench<'_>, rounds: &[Round], calico: &str) -> Self {
        let mut matrix = Self {
            selected: rounds.iter().flat_map(Round::cells).count(),
            calico: calico.to_owned(),
            ..Self::default()
        };
        for (place, round) in rounds.iter().enumerate() {
            let (number, crashes) = (place + 1, round.cells().count());
            println!("round {number} of {}: {crashes} crashes", rounds.len());
            let (outcomes, ended) = bench.run(round).await;
            for outcome in &outcomes {
                for problem in &outcome.problems {
                    println!(
                        "PROBLEM: {} of node {}: {problem}",
                        outcome.cell.words(),
                        outcome.node
                    );
                }
            }
            matrix.cells.extend(outcomes);
            if let Err(error) = ended {
                matrix.broken_off = Some(format!("round {number}: {error:#}"));
                break;
            }
        }
        matrix
    }

    /// Whether every selected crash was made and ended well.
    pub fn is_well(&self) -> bool {
        self.broken_off.is_none()
            && self.cells.len() == self.selected
            && self.cells.iter().all(|outcome| outcome.problems.is_empty())
    }

    /// The result as text: a line for each step and edge, a column for each victim.
    pub fn text(&self) -> String {
        let mut rows: BTreeMap<(Leg, usize, &str), BTreeMap<Victim, &Outcome>> = BTreeMap::new();
        let steps = matrix::steps(true, true);
        for outcome in &self.cells {
            let Cell { step, edge, victim } = outcome.cell;
            let place = steps
                .iter()
                .position(|known| *known == step)
                .unwrap_or(steps.len());
            rows.entry((step.leg, place, edge.as_str()))
                .or_default()
                .insert(victim, outcome);
        }
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{words}");
        };
        let struck: BTreeSet<Victim> = self.cells.iter().map(|outcome| outcome.cell.victim).collect();
        let head: Vec<String> = struck
            .iter()
            .map(|victim| format!("{:>16}", victim.words()))
            .collect();
        line(format_args!(
            "probes lost / sent from the crash until its node was finished (Calico: {})",
            self.calico
        ));
        line(format_args!("{:<42}{}", "", head.concat()));
        let mut leg = None;
        for ((of, place, edge), outcomes) in &rows {
            if leg != Some(*of) {
                line(format_args!("{}", of.words()));
                leg = Some(*of);
            }
            let name = steps.get(*place).map_or("?", |step| step.name);
            let cells: Vec<String> = struck
                .iter()
                .map(|victim| {
                    format!(
                        "{:>16}",
                        outcomes.get(victim).map_or("-".to_owned(), |one| verdict(one))
                    )
                })
                .collect();
            line(format_args!(
                "  {:<40}{}",
                format!("{name}, {edge}"),
                cells.concat()
            ));
        }
        let well = self
            .cells
            .iter()
            .filter(|outcome| outcome.problems.is_empty())
            .count();
        line(format_args!(
            "{well} of {} crashes ended in the same state as without one",
            self.selected
        ));
        if let Some(why) = &self.broken_off {
            line(format_args!("BROKEN OFF: {why}"));
        }
        text
    }
}

fn verdict(outcome: &Outcome) -> String {
    if outcome.problems.is_empty() {
        format!("{}/{}", outcome.loss.lost, outcome.loss.sent)
    } else {
        "NOT THE SAME".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(step: usize, victim: Victim, problems: &[&str]) -> Outcome {
        let step = matrix::STEPS[step];
        Outcome {
            cell: Cell {
                step,
                edge: step.edges()[0],
                victim,
            },
            node: "a".to_owned(),
            seconds: 1.0,
            loss: Loss { sent: 1000, lost: 7 },
            problems: problems.iter().map(|&problem| problem.to_owned()).collect(),
        }
    }

    #[test]
    fn the_table_has_the_loss_of_good_cells_and_the_problems_of_others() {
        let matrix = Matrix {
            cells: vec![
                outcome(0, Victim::Agent, &[]),
                outcome(0, Victim::Node, &["a route is gone"]),
                outcome(1, Victim::Coordinator, &[]),
            ],
            selected: 4,
            ..Matrix::default()
        };
        assert!(!matrix.is_well());
        let text = matrix.text();
        let row = text.lines().find(|line| line.contains("LabelNodes")).unwrap();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["LabelNodes,", "recorded", "7/1000", "-", "NOT", "THE", "SAME"]
        );
        assert!(text.contains("2 of 4 crashes"), "{text}");
    }

    #[test]
    fn a_selected_crash_that_was_not_made_is_a_failure() {
        let mut matrix = Matrix {
            cells: vec![outcome(0, Victim::Agent, &[])],
            selected: 1,
            ..Matrix::default()
        };
        assert!(matrix.is_well());
        matrix.selected = 2;
        assert!(!matrix.is_well());
        matrix.selected = 1;
        matrix.broken_off = Some("a node is away".to_owned());
        assert!(!matrix.is_well() && matrix.text().contains("BROKEN OFF: a node is away"));
    }
}
