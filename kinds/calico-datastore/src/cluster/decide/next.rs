//! Decisions of a stage: a step, a halt, a wait, and work on the stores.

use engine::decision::{Decision, Halt, HaltReason, Wait, WaitReason};

use crate::cluster::step::{Stage, Step, StoreWork};
use crate::cluster::view::{Next, Work};

/// Starts this work on the stores, or waits for it.
pub(super) fn working(work: &Work, stage: Stage, wanted: StoreWork) -> Next {
    // Two kinds of abort count as the same: the next run decides how far it restores.
    let is_wanted = |work: StoreWork| work == wanted || (work.is_rollback() && wanted.is_rollback());
    match work {
        Work::Busy { work, .. } if !is_wanted(*work) => run(stage, Step::StopWork),
        Work::Busy {
            refused: Some(why), ..
        } => halt(Some(stage), HaltReason::DatastoreRefused, why.clone()),
        Work::Busy { progress: said, .. } => wait(stage, WaitReason::Datastore, said.clone()),
        Work::Failed {
            work,
            message,
            needs_user,
        } if is_wanted(*work) => {
            if *needs_user {
                halt(Some(stage), HaltReason::DatastoreRefused, message.clone())
            } else {
                wait(stage, WaitReason::Datastore, message.clone())
            }
        }
        Work::Idle | Work::Failed { .. } => run(stage, Step::Work(wanted)),
    }
}

pub(super) fn run(stage: Stage, step: Step) -> Next {
    Next {
        stage: Some(stage),
        decision: Decision::Run(step),
    }
}

pub(super) fn halt(stage: Option<Stage>, reason: HaltReason, message: String) -> Next {
    Next {
        stage,
        decision: Decision::Halt(Halt { reason, message }),
    }
}

pub(super) fn wait(stage: Stage, reason: WaitReason, message: String) -> Next {
    Next {
        stage: Some(stage),
        decision: Decision::Wait(waits(reason, message)),
    }
}

pub(super) fn waits(reason: WaitReason, message: String) -> Wait {
    Wait {
        reason,
        message,
        until: None,
    }
}
