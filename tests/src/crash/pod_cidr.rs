//! The crash matrix of a change of range: a program is killed at every step of the coordinator, forward and back, and
//! at every step up to the point of no return the migration is rolled back at the same moment. The end is the same as
//! without a crash.

mod judge;
mod round;
pub mod steps;

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::demo::Tools;
use crate::demo::pod_cidr::Request;
use round::{Bench, Outcome};
use steps::{Cell, Leg};

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
    /// Runs one migration for each crash with a rollback at the same moment, one for all crashes on the way back, and
    /// one for all crashes on the way forward. A migration that does not end is the last: the next one would have no
    /// known state to compare with.
    pub async fn run(cluster: &Cluster, tools: &Tools, request: Request, cells: &[Cell]) -> Result<Self> {
        let mut matrix = Self {
            selected: cells.len(),
            calico: tools.calico.clone(),
            ..Self::default()
        };
        let bench = Bench::new(cluster, tools, request).await?;
        let migrations = migrations(cells);
        for (place, (leg, crashes)) in migrations.iter().enumerate() {
            println!(
                "migration {} of {}: {} crashes, {}",
                place + 1,
                migrations.len(),
                crashes.len(),
                leg.words()
            );
            let (outcomes, ended) = bench.run(*leg, crashes).await;
            for outcome in &outcomes {
                for problem in &outcome.problems {
                    println!("PROBLEM: {}: {problem}", outcome.cell.words());
                }
            }
            matrix.cells.extend(outcomes);
            if let Err(error) = ended {
                matrix.broken_off = Some(format!("migration {}: {error:#}", place + 1));
                break;
            }
        }
        Ok(matrix)
    }

    /// Whether every selected crash was made and ended well.
    pub fn is_well(&self) -> bool {
        self.broken_off.is_none()
            && self.cells.len() == self.selected
            && self.cells.iter().all(|outcome| outcome.problems.is_empty())
    }

    /// The result as text: a line for each crash.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{words}");
        };
        line(format_args!(
            "seconds to the next crash or the end, and probes lost / sent until then (Calico: {})",
            self.calico
        ));
        let mut leg = None;
        for Outcome {
            cell,
            seconds,
            loss,
            problems,
        } in &self.cells
        {
            if leg != Some(cell.leg) {
                line(format_args!("{}", cell.leg.words()));
                leg = Some(cell.leg);
            }
            let verdict = if problems.is_empty() { "" } else { "  NOT THE SAME" };
            let place = format!("{}, {}", cell.step, cell.edge.as_str());
            line(format_args!(
                "  {place:<30}{seconds:>7.1} s{:>6}/{}{verdict}",
                loss.lost, loss.sent
            ));
        }
        let well = self.cells.iter().filter(|outcome| outcome.problems.is_empty());
        line(format_args!(
            "{} of {} crashes ended in the same state as without one",
            well.count(),
            self.selected
        ));
        if let Some(why) = &self.broken_off {
            line(format_args!("BROKEN OFF: {why}"));
        }
        text
    }
}

/// The crashes that share a migration: those in one direction do; each crash with a rollback at the same moment has its own.
fn migrations(cells: &[Cell]) -> Vec<(Leg, Vec<Cell>)> {
    let mut all: Vec<(Leg, Vec<Cell>)> = Vec::new();
    for cell in cells {
        match all.last_mut() {
            Some((leg, crashes)) if *leg == cell.leg && *leg != Leg::Turn => crashes.push(*cell),
            Some(_) | None => all.push((cell.leg, vec![*cell])),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use api::migration::Mode;

    use super::*;
    use crate::crash::loss::Loss;
    use crate::crash::matrix::Victim;

    fn cells() -> Vec<Cell> {
        steps::cells(Mode::ByWorkload, Victim::Coordinator, &[], &[]).unwrap()
    }

    #[test]
    fn a_crash_with_rollback_has_its_own_migration() {
        let all = migrations(&cells());
        let turns = all.iter().filter(|(leg, _)| *leg == Leg::Turn);
        assert!(turns.clone().all(|(_, crashes)| crashes.len() == 1));
        assert_eq!(all.len(), turns.count() + 2);
        assert_eq!(
            all.iter().map(|(_, crashes)| crashes.len()).sum::<usize>(),
            cells().len()
        );
    }

    #[test]
    fn a_missing_crash_and_a_crash_with_problems_are_reported() {
        let outcome = |problems: &[&str]| Outcome {
            cell: cells()[0],
            seconds: 2.5,
            loss: Loss { sent: 1000, lost: 7 },
            problems: problems.iter().map(|&problem| problem.to_owned()).collect(),
        };
        let mut matrix = Matrix {
            cells: vec![outcome(&[])],
            selected: 1,
            ..Matrix::default()
        };
        assert!(matrix.is_well() && matrix.text().contains("7/1000"));
        matrix.selected = 2;
        assert!(!matrix.is_well());
        matrix.cells.push(outcome(&["a route is left"]));
        assert!(!matrix.is_well() && matrix.text().contains("NOT THE SAME"));
        assert!(matrix.text().contains("1 of 2 crashes"));
    }
}
