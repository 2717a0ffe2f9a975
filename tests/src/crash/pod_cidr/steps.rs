//! Every step of the coordinator in a change of range, forward and back, in the order of their first execution.

use std::fmt::Write as _;

use api::migration::Mode;
use crash_point::{Edge, Point};
use serde::Serialize;

use crate::crash::matrix::Victim;

/// Both sides of a step's change.
const BOTH: &[Edge] = &[Edge::Announced, Edge::Changed];
/// A step with parts: the parts come between its two edges.
const ANNOUNCED: &[Edge] = &[Edge::Announced];
/// A part of a step, or a step that is recorded with its decision.
const CHANGED: &[Edge] = &[Edge::Changed];

/// One step by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    name: &'static str,
    edges: &'static [Edge],
    /// The only mode that has the step.
    only: Option<Mode>,
}

const fn step(name: &'static str) -> Step {
    Step {
        name,
        edges: BOTH,
        only: None,
    }
}

const fn of_nodes(name: &'static str) -> Step {
    Step {
        only: Some(Mode::ByNode),
        ..step(name)
    }
}

const fn begin(name: &'static str) -> Step {
    Step {
        edges: ANNOUNCED,
        ..step(name)
    }
}

const fn part(name: &'static str) -> Step {
    Step {
        edges: CHANGED,
        ..step(name)
    }
}

/// Steps up to the point of no return; then the rest.
const THERE: ([Step; 14], [Step; 2]) = (
    [
        step("CreatePool"),
        step("OpenNewPoolToCanary"),
        step("Scale"),
        step("OpenNewPool"),
        step("NarrowPool"),
        step("TakeNodeOff"),
        step("CloseOldPool"),
        of_nodes("CordonNode"),
        step("Evict"),
        of_nodes("UncordonNode"),
        begin("ReleaseBlocks"),
        part("AffinityPending"),
        part("BlockDeleted"),
        part("ReleaseBlocks"),
    ],
    [step("DeleteOldPool"), part("Complete")],
);

const BACK: [Step; 19] = [
    begin("HoldEnds"),
    part("EndCounted"),
    part("HoldEnds"),
    step("OpenOldPool"),
    step("NarrowPool"),
    step("TakeNodeOff"),
    step("CloseNewPool"),
    of_nodes("CordonNode"),
    step("Evict"),
    of_nodes("UncordonNode"),
    begin("ReleaseEnds"),
    part("EndUncounted"),
    part("ReleaseEnds"),
    begin("ReleaseBlocks"),
    part("AffinityPending"),
    part("BlockDeleted"),
    part("ReleaseBlocks"),
    step("DeleteNewPool"),
    part("Complete"),
];

/// The direction at the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Leg {
    /// On the way forward; a rollback starts at the same moment.
    Turn,
    /// On the way back.
    Back,
    /// On the way forward.
    There,
}

impl Leg {
    /// Every leg, in the order of execution: the last one removes the old range for good.
    pub const ALL: [Self; 3] = [Self::Turn, Self::Back, Self::There];

    /// The words in a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Turn => "forward, and back from this step",
            Self::Back => "back, after every pod had moved",
            Self::There => "forward",
        }
    }
}

/// One crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    /// The direction.
    pub leg: Leg,
    /// The step.
    pub step: &'static str,
    /// The progress of the step.
    pub edge: Edge,
    /// The victim.
    pub victim: Victim,
}

impl Cell {
    /// The point at which the coordinator stops.
    pub fn point(&self) -> Point {
        Point {
            step: self.step.to_owned(),
            edge: self.edge,
            node: None,
        }
    }

    /// Describes the crash.
    pub fn words(&self) -> String {
        format!(
            "{} crashes when {} is {} ({})",
            self.victim.words(),
            self.step,
            self.edge.as_str(),
            self.leg.words()
        )
    }
}

/// The selected crashes, in order. An unknown step is an error that names it.
pub fn cells(mode: Mode, victim: Victim, legs: &[Leg], steps: &[String]) -> Result<Vec<Cell>, String> {
    let all: Vec<Cell> = Leg::ALL
        .into_iter()
        .filter(|leg| legs.is_empty() || legs.contains(leg))
        .flat_map(|leg| of_leg(leg, mode, victim))
        .collect();
    if let Some(unknown) = steps
        .iter()
        .find(|name| !all.iter().any(|cell| cell.step == **name))
    {
        let mut names: Vec<&str> = all.iter().map(|cell| cell.step).collect();
        names.dedup();
        let mut words = format!("unknown step {unknown:?}; the steps are ");
        // Writing to a String cannot fail.
        let _ = write!(words, "{}", names.join(", "));
        return Err(words);
    }
    let is_wanted = |cell: &Cell| steps.is_empty() || steps.iter().any(|name| name == cell.step);
    Ok(all.into_iter().filter(is_wanted).collect())
}

fn of_leg(leg: Leg, mode: Mode, victim: Victim) -> Vec<Cell> {
    let (before_return, after) = THERE;
    let steps: Vec<Step> = match leg {
        Leg::There => before_return.into_iter().chain(after).collect(),
        Leg::Back => BACK.to_vec(),
        Leg::Turn => before_return.to_vec(),
    };
    let mut cells = Vec::new();
    for step in steps {
        if step.only.is_some_and(|only| only != mode) {
            continue;
        }
        // A rollback before a step's change is the same as a rollback after the change of the step before.
        let is_told_apart = |edge: &&Edge| leg != Leg::Turn || **edge == Edge::Changed;
        cells.extend(step.edges.iter().filter(is_told_apart).map(|edge| Cell {
            leg,
            step: step.name,
            edge: *edge,
            victim,
        }));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mode: Mode) -> Vec<Cell> {
        cells(mode, Victim::Coordinator, &[], &[]).unwrap()
    }

    #[test]
    fn each_step_has_its_crashes_and_no_rollback_past_the_point_of_no_return() {
        let cells = all(Mode::ByWorkload);
        assert_eq!(cells.iter().filter(|cell| cell.leg == Leg::Turn).count(), 11);
        assert_eq!(cells.iter().filter(|cell| cell.leg == Leg::There).count(), 23);
        assert_eq!(cells.iter().filter(|cell| cell.leg == Leg::Back).count(), 23);
        assert!(
            !cells
                .iter()
                .any(|cell| cell.leg == Leg::Turn && cell.step == "DeleteOldPool")
        );
        assert!(!cells.iter().any(|cell| cell.step == "CordonNode"));
        assert!(all(Mode::ByNode).iter().any(|cell| cell.step == "CordonNode"));
    }

    #[test]
    fn the_last_leg_removes_the_old_range() {
        assert_eq!(all(Mode::ByWorkload).last().unwrap().leg, Leg::There);
    }

    #[test]
    fn an_unknown_step_is_an_error_with_the_known_steps() {
        let request = ["Evict".to_owned()];
        let found = cells(Mode::ByWorkload, Victim::Coordinator, &[Leg::Back], &request).unwrap();
        assert_eq!(found.len(), 2);
        let wrong = ["Evacuate".to_owned()];
        let said = cells(Mode::ByWorkload, Victim::Coordinator, &[], &wrong).unwrap_err();
        assert!(said.contains("Evacuate") && said.contains("CreatePool"), "{said}");
    }
}
