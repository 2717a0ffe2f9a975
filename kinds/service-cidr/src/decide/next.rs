//! The result of a decision: a stage with its step, wait or halt.

use engine::decision::{Decision, Halt, Wait, WaitReason};

use crate::exchange;
use crate::step::{Stage, Step};

/// The stage of the migration, and the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The current stage.
    pub stage: Stage,
    /// The next step, wait or halt.
    pub decision: Decision<Step>,
    /// Services that cannot continue while the others do; `None` if all can.
    pub halted_services: Option<Halt>,
    /// Steps in addition to the decision, for Services that have their target address: helpers are updated to the spec of their
    /// Service.
    pub helper_updates: Vec<(String, exchange::Step)>,
}

pub(super) fn waits(reason: WaitReason, message: String) -> Wait {
    Wait {
        reason,
        message,
        until: None,
    }
}

pub(super) fn run(stage: Stage, step: Step) -> Next {
    Next::of(stage, Decision::Run(step))
}

pub(super) fn wait(stage: Stage, wait: Wait) -> Next {
    Next::of(stage, Decision::Wait(wait))
}

impl Next {
    pub(super) fn of(stage: Stage, decision: Decision<Step>) -> Self {
        Self {
            stage,
            decision,
            halted_services: None,
            helper_updates: Vec::new(),
        }
    }
}
