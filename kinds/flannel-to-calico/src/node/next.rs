//! Results of decisions about a node.

use engine::decision::{Decision, Wait, WaitReason};

use super::{Next, NodeStep, Stage};

pub(super) fn next(stage: Stage, decision: Decision<NodeStep>) -> Next {
    Next { stage, decision }
}

pub(super) fn wait(stage: Stage, reason: WaitReason, message: String) -> Next {
    next(
        stage,
        Decision::Wait(Wait {
            reason,
            message,
            until: None,
        }),
    )
}
