//! The result of a decision: a stage with its step, wait or halt.

use engine::decision::{Decision, Halt, HaltReason, Wait, WaitReason};

use super::{Stage, Step};

/// The stage of the migration, and the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The current stage.
    pub stage: Stage,
    /// The next step, wait or halt.
    pub decision: Decision<Step>,
}

/// A wait for changes that the user has to make.
pub(super) fn wait_for_user(stage: Stage, message: String) -> Next {
    let found = Wait {
        reason: WaitReason::ConfigurationFollowUp,
        message,
        until: None,
    };
    wait(stage, found)
}

/// The next step is this one.
pub(super) fn run(stage: Stage, step: Step) -> Next {
    Next {
        stage,
        decision: Decision::Run(step),
    }
}

/// No step now.
pub(super) fn wait(stage: Stage, wait: Wait) -> Next {
    Next {
        stage,
        decision: Decision::Wait(wait),
    }
}

/// A wait until objects of the old range are gone.
pub(super) fn leftovers(stage: Stage, message: String) -> Next {
    wait(
        stage,
        Wait {
            reason: WaitReason::Leftovers,
            message,
            until: None,
        },
    )
}

/// A halt because another program has changed an object.
pub(super) fn halt(stage: Stage, message: String) -> Next {
    Next {
        stage,
        decision: Decision::Halt(Halt {
            reason: HaltReason::Drift,
            message,
        }),
    }
}
