//! Every step of a change of range that the coordinator makes, there and back, in the order in which it first comes to them.

use std::fmt::Write as _;

use api::migration::Mode;
use crash_point::{Edge, Point};
use serde::Serialize;

use crate::crash::matrix::Victim;

/// Both sides of a step's change.
const BOTH: &[Edge] = &[Edge::Announced, Edge::Changed];
/// What goes on in a step that has parts comes between its two sides.
const ANNOUNCED: &[Edge] = &[Edge::Announced];
/// A part of a step, or one that is recorded where it is decided.
const CHANGED: &[Edge] = &[Edge::Changed];

/// One step by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    name: &'static str,
    edges: &'static [Edge],
    /// The mode that alone has it.
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

/// Up to the point of no return; then the rest.
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

/// What the crash comes in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Leg {
    /// On the way there, and at this very moment somebody decides to go back.
    Turn,
    /// On the way back.
    Back,
    /// On the way there.
    There,
}

impl Leg {
    /// Every leg, in the order in which they are run: the last one leaves the range for good.
    pub const ALL: [Self; 3] = [Self::Turn, Self::Back, Self::There];

    /// For a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Turn => "there, and back from this step",
            Self::Back => "back, after every pod had moved",
            Self::There => "there",
        }
    }
}

/// One crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    /// On which way.
    pub leg: Leg,
    /// At which step.
    pub step: &'static str,
    /// How far it had come.
    pub edge: Edge,
    /// Who was struck.
    pub victim: Victim,
}

impl Cell {
    /// Where the coordinator stops.
    pub fn point(&self) -> Point {
        Point {
            step: self.step.to_owned(),
            edge: self.edge,
            node: None,
        }
    }

    /// For people.
    pub fn words(&self) -> String {
        format!(
            "{} is struck when {} is {} ({})",
            self.victim.words(),
            self.step,
            self.edge.as_str(),
            self.leg.words()
        )
    }
}

/// The crashes that are wanted, in order. An error names a step that is none.
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
        let mut words = format!("{unknown:?} is no step of it; there is ");
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
        // To turn around before a step's change is to turn around after that of the step before it.
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
    fn each_step_has_its_crashes_and_nobody_turns_around_past_the_point_of_no_return() {
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
    fn the_last_leg_is_the_one_that_leaves_the_range_for_good() {
        assert_eq!(all(Mode::ByWorkload).last().unwrap().leg, Leg::There);
    }

    #[test]
    fn a_step_that_is_none_is_named_with_those_that_are() {
        let wanted = ["Evict".to_owned()];
        let found = cells(Mode::ByWorkload, Victim::Coordinator, &[Leg::Back], &wanted).unwrap();
        assert_eq!(found.len(), 2);
        let wrong = ["Evacuate".to_owned()];
        let said = cells(Mode::ByWorkload, Victim::Coordinator, &[], &wrong).unwrap_err();
        assert!(said.contains("Evacuate") && said.contains("CreatePool"), "{said}");
    }
}
