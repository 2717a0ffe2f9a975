//! The Node's network label, as it has to be by what was done so far.
//!
//! Only this migration writes it. Whoever else does starts a network's daemon on a host that is not its own yet: Calico's on
//! a node of flannel's gives new pods the addresses of living ones.

use std::fmt;

use super::{Direction, NetworkLabel, NodeView, Stage};
use crate::flannel_to_calico::phase::{Goal, Phase};
use crate::flannel_to_calico::settings::Strategy;

/// Where a node stands in the migration.
#[derive(Clone, Copy, Debug)]
pub enum Station<'view> {
    /// On flannel: its turn has not come, or it has returned.
    Waiting,
    /// In work, there or back.
    Working(&'view NodeView<'view>, Strategy),
    /// On Calico.
    Done,
}

/// A label that somebody else wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelDrift {
    /// What it says.
    pub found: NetworkLabel,
    /// The value that it has to have.
    pub needed: &'static str,
}

impl fmt::Display for LabelDrift {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = match &self.found {
            NetworkLabel::Missing => return write!(formatter, "is missing, needed {:?}", self.needed),
            NetworkLabel::Flannel => "flannel",
            NetworkLabel::Neither => "none",
            NetworkLabel::Calico => "calico",
            NetworkLabel::Other(value) => value,
        };
        write!(formatter, "is {found:?}, needed {:?}", self.needed)
    }
}

/// What is wrong with the label of a node that stands there; `None` when it says what this migration has written.
pub fn drift(label: &NetworkLabel, station: Station<'_>) -> Option<LabelDrift> {
    let written = match station {
        Station::Waiting => &["flannel"][..],
        Station::Done => &["calico"],
        Station::Working(view, strategy) => match view.direction {
            Direction::There => there(view, strategy),
            Direction::Back => back(view),
        },
    };
    let is_right = match label {
        NetworkLabel::Flannel => written.contains(&"flannel"),
        NetworkLabel::Neither => written.contains(&"none"),
        NetworkLabel::Calico => written.contains(&"calico"),
        NetworkLabel::Missing | NetworkLabel::Other(_) => false,
    };
    let needed = written.first().copied().filter(|_| !is_right)?;
    Some(LabelDrift {
        found: label.clone(),
        needed,
    })
}

/// What may stand there on the way there; first what is put back.
fn there(view: &NodeView<'_>, strategy: Strategy) -> &'static [&'static str] {
    let without_flannel = match strategy {
        Strategy::Drain => Phase::Detached,
        Strategy::InPlace => Phase::Swapped,
    };
    match view.goal {
        Goal::Hold | Goal::Flannel => &["flannel", "none"],
        Goal::Held | Goal::Swapped | Goal::Detached => {
            // The label is written before the stage is: a host that is there was, or is about to be, labelled. One that was
            // started anew since then is not there for a moment.
            let is_there = view.agent.phase.is_some_and(|at| at.reaches(without_flannel));
            let was_there = view.stage.is_some_and(|(stage, _)| stage >= Stage::StartCalico);
            if is_there || was_there {
                &["none", "calico"]
            } else {
                &["none"]
            }
        }
        Goal::Mixed | Goal::Calico => &["calico"],
    }
}

/// The same on the way back.
fn back(view: &NodeView<'_>) -> &'static [&'static str] {
    match view.goal {
        // It turned around before its agent was told anything.
        Goal::Hold => &["flannel", "none"],
        Goal::Held | Goal::Swapped | Goal::Detached | Goal::Mixed | Goal::Calico => &["none", "calico"],
        Goal::Flannel => {
            let was_back = view.stage.is_some_and(|(stage, _)| match stage {
                Stage::StartFlannel | Stage::Probe | Stage::Uncordon | Stage::Return => true,
                Stage::Cordon
                | Stage::Drain
                | Stage::StopFlannel
                | Stage::HoldNewPods
                | Stage::DrainDaemonSets
                | Stage::Detach
                | Stage::Import
                | Stage::Swap
                | Stage::StartCalico
                | Stage::Attach
                | Stage::StopCalico
                | Stage::PutBack => false,
            });
            if view.agent.is_back() || was_back {
                &["none", "flannel"]
            } else {
                &["none"]
            }
        }
    }
}
