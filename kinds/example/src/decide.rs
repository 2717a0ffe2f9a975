//! The next step, from one view of the cluster.

use engine::decision::{Decision, Direction, Wait, WaitReason};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// `Stage` is a stage of the migration. Possible values: `Label`: the ConfigMap gets or loses its label. `Hold`: the label stays,
/// and the migration can be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
pub enum Stage {
    /// The ConfigMap gets its label, or loses it in a rollback.
    Label,
    /// The label stays for the time of the spec.
    Hold,
}

impl Stage {
    /// The stage as written in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A step. The done-check of each is the field of [`View`] that it changes, and the undo of one is the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum Step {
    /// Set the label. Done if [`View::is_labelled`]. Undo: [`Step::RemoveLabel`].
    SetLabel,
    /// Remove the label. Done if not [`View::is_labelled`]. Undo: [`Step::SetLabel`].
    RemoveLabel,
    /// Nothing is left to do.
    Complete,
}

impl Step {
    /// The name of the step.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Everything that the decision depends on.
#[derive(Clone, Debug)]
pub struct View {
    /// Where the migration goes.
    pub direction: Direction,
    /// Whether the ConfigMap has the label.
    pub is_labelled: bool,
    /// When the migration may complete, if the ConfigMap has the label; `None` if that is now.
    pub held_until: Option<Timestamp>,
    /// Nodes whose agents have not reported.
    pub silent: Vec<String>,
    /// Why no step may run now: a pause, or lost probes.
    pub hold: Option<Wait>,
}

/// The stage of a migration.
pub fn stage(direction: Direction, is_labelled: bool) -> Stage {
    match direction {
        Direction::Forward if is_labelled => Stage::Hold,
        Direction::Forward | Direction::Rollback => Stage::Label,
    }
}

/// The next step, or why there is none.
pub fn decide(view: &View) -> Decision<Step> {
    match (view.direction, view.is_labelled, view.held_until) {
        (Direction::Forward, true, Some(until)) => {
            return Decision::Wait(Wait {
                reason: WaitReason::CanarySoak,
                message: format!("the label stays until {until:.0}, and can be rolled back until then"),
                until: Some(until),
            });
        }
        (Direction::Forward, true, None) | (Direction::Rollback, false, _) => {
            return Decision::Run(Step::Complete);
        }
        (Direction::Forward, false, _) | (Direction::Rollback, true, _) => {}
    }
    if let Some(hold) = &view.hold {
        return Decision::Wait(hold.clone());
    }
    match (view.direction, view.silent.first()) {
        (Direction::Forward, Some(node)) => Decision::Wait(Wait {
            reason: WaitReason::AgentSilent,
            message: format!("the agent of node {node} has not reported its kernel"),
            until: None,
        }),
        (Direction::Forward, None) => Decision::Run(Step::SetLabel),
        (Direction::Rollback, _) => Decision::Run(Step::RemoveLabel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every state of the view: the walk from each reaches the end of its direction, and the other direction leads back.
    #[test]
    fn every_state_reaches_the_end_of_its_direction() {
        for direction in [Direction::Forward, Direction::Rollback] {
            for is_labelled in [false, true] {
                let mut view = View {
                    direction,
                    is_labelled,
                    held_until: None,
                    silent: Vec::new(),
                    hold: None,
                };
                for _ in 0..2 {
                    match decide(&view) {
                        Decision::Run(Step::SetLabel) => view.is_labelled = true,
                        Decision::Run(Step::RemoveLabel) => view.is_labelled = false,
                        _ => {}
                    }
                }
                assert_eq!(decide(&view), Decision::Run(Step::Complete));
                assert_eq!(view.is_labelled, direction == Direction::Forward);
            }
        }
    }

    #[test]
    fn a_label_that_is_held_delays_the_end_and_not_the_rollback() {
        let view = |direction| View {
            direction,
            is_labelled: true,
            held_until: Some(Timestamp::UNIX_EPOCH),
            silent: Vec::new(),
            hold: None,
        };
        assert!(matches!(decide(&view(Direction::Forward)), Decision::Wait(_)));
        assert_eq!(
            decide(&view(Direction::Rollback)),
            Decision::Run(Step::RemoveLabel)
        );
    }

    #[test]
    fn a_silent_agent_stops_the_migration_and_not_its_rollback() {
        let view = |direction, is_labelled| View {
            direction,
            is_labelled,
            held_until: None,
            silent: vec!["a".to_owned()],
            hold: None,
        };
        let Decision::Wait(wait) = decide(&view(Direction::Forward, false)) else {
            panic!("no wait")
        };
        assert_eq!(wait.reason, WaitReason::AgentSilent);
        assert!(wait.message.contains("node a"), "{}", wait.message);
        assert_eq!(
            decide(&view(Direction::Rollback, true)),
            Decision::Run(Step::RemoveLabel)
        );
    }
}
