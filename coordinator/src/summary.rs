//! Summary of the rollout in one status: nodes by phase, and the most important wait.

use std::collections::BTreeMap;

use api::MigrationStatus;
use api::migration::MigrationPhase;
use engine::decision::{Decision, Halt, Wait, WaitReason};
use engine::reason::Reason;
use engine::rollout::{NodeProgress, RolloutNode};
use engine::words;

/// Most nodes of one kind named in a status, so that names of any length fit.
const NAMED: usize = 100;

/// Why a node in the rollout does not progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReport {
    /// The reason.
    pub reason: Reason,
    /// The message for the user.
    pub message: String,
    /// Whether it may last until the user acts.
    pub needs_user: bool,
}

impl WaitReport {
    /// From a wait.
    pub fn waiting(wait: &Wait) -> Self {
        Self {
            reason: wait.reason.into(),
            message: wait.message.clone(),
            needs_user: wait.reason.needs_user(),
        }
    }

    /// From a decision; `None` if the node progresses.
    pub fn of<S>(decision: &Decision<S>) -> Option<Self> {
        match decision {
            Decision::Wait(wait) => Some(Self::waiting(wait)),
            Decision::Halt(halt) => Some(Self::halted(halt)),
            Decision::Run(_) | Decision::Settled => None,
        }
    }

    /// From a halt.
    pub fn halted(halt: &Halt) -> Self {
        Self {
            reason: halt.reason.into(),
            message: halt.message.clone(),
            needs_user: true,
        }
    }
}

/// Records the progress of the rollout, and its wait.
pub fn summarize(
    status: &mut MigrationStatus,
    rollout_nodes: &[RolloutNode<'_>],
    waits: &BTreeMap<String, WaitReport>,
    held: Option<&Wait>,
    unprepared: &BTreeMap<String, String>,
) {
    let named = |wanted: fn(&NodeProgress) -> bool| -> Vec<String> {
        rollout_nodes
            .iter()
            .filter(|rollout_node| wanted(&rollout_node.standing))
            .map(|rollout_node| rollout_node.name.to_owned())
            .collect()
    };
    let done = named(|standing| matches!(standing, NodeProgress::Done(_))).len();
    let halted = named(|standing| matches!(standing, NodeProgress::Halted | NodeProgress::FellBack));
    let working = named(|standing| {
        matches!(
            standing,
            NodeProgress::Working | NodeProgress::Halted | NodeProgress::Returning
        )
    });
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let deferred = rollout_nodes.iter().filter(|rollout_node| {
        rollout_node.is_backing_off
            || rollout_node.standing == NodeProgress::Skipped
            || (rollout_node.standing == NodeProgress::Waiting && !rollout_node.ready)
    });
    status.progress = api::migration::Progress {
        text: format!("{done}/{}", rollout_nodes.len()),
        nodes: count(rollout_nodes.len()),
        done: count(done),
        working: working.iter().take(NAMED).cloned().collect(),
        deferred: deferred
            .take(NAMED)
            .map(|rollout_node| rollout_node.name.to_owned())
            .collect(),
    };
    status.phase = if halted.is_empty() {
        MigrationPhase::Rolling
    } else {
        MigrationPhase::Halted
    };
    let held_up = || halted.iter().chain(&working).filter_map(|node| waits.get(node));
    let first = held_up()
        .find(|held| held.needs_user)
        .or_else(|| held_up().next())
        .map(|held| (Some(held.reason), held.message.clone()));
    let held = held.map(|wait| (Some(wait.reason.into()), wait.message.clone()));
    let unprepared = unprepared
        .values()
        .next()
        .map(|message| (Some(WaitReason::CalicoObjects.into()), message.clone()));
    // The wait of a started node is more specific than the reason why the next one does not start.
    let (reason, message) = match (first, held) {
        (Some(first), _) => first,
        (None, held) if working.is_empty() && unprepared.is_some() => unprepared.or(held).unwrap_or_default(),
        (None, Some(held)) if working.is_empty() => held,
        (None, _) if working.is_empty() => (None, String::new()),
        (None, _) => (None, format!("in progress: {}", words::names(&working))),
    };
    match reason {
        Some(reason) => status.set_reason(reason, message),
        None => status.clear_reason(message),
    }
}
