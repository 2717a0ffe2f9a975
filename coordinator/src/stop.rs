//! Reasons that stop the whole rollout until the user decides: lost traffic and changes by another writer. Also the waits for
//! traffic: before the first node, after a breach, and after the last node.

use api::migration::MigrationPhase;
use api::{Migration, MigrationStatus};
use engine::decision::{HaltReason, Wait, WaitReason};
use engine::rollout::{NodeProgress, RolloutNode, Rules};

use crate::traffic::TrafficResult;
use crate::waits::wait;

/// Why no node is started until the user resumes the rollout.
pub struct Stop {
    reason: HaltReason,
    message: String,
}

impl Stop {
    /// A wait that starts no node until the user has decided.
    pub fn hold(&self) -> Wait {
        Wait {
            reason: WaitReason::Paused,
            message: self.message.clone(),
            until: None,
        }
    }
}

/// Why the rollout stops: a change by another writer, as a message, or lost traffic, as recorded in the status.
pub fn stop(drift: Option<String>, status: &MigrationStatus, lossy: bool) -> Option<Stop> {
    // A change by another writer may be the cause of the lost traffic.
    let drift = drift.map(|message| Stop {
        reason: HaltReason::Drift,
        message,
    });
    drift.or_else(|| {
        status.breach.as_ref().filter(|_| lossy).map(|breach| Stop {
            reason: HaltReason::GateBreached,
            message: breach.message.clone(),
        })
    })
}

/// The rules of the spec with the stop, and the waits for traffic.
pub fn held(
    mut rules: Rules,
    migration: &Migration,
    status: &MigrationStatus,
    rollout_nodes: &[RolloutNode<'_>],
    watched: &TrafficResult,
    stop: Option<&Stop>,
) -> Rules {
    if let Some(stop) = stop {
        rules.hold = Some(stop.hold());
    } else if is_before_the_first(rollout_nodes) || is_to_be_proved(status) {
        // Losses before the first change are not caused by this migration, but would count as its own. After a breach, the
        // fix has to be confirmed by traffic.
        rules.hold.clone_from(&watched.wait);
    }
    rules.hold = rules.hold.or_else(|| watched.masquerade(migration));
    rules.clean_since = status.breach.as_ref().and_then(|breach| breach.clean_since);
    rules
}

/// Delays `Finishing` until losses of the new network are known, since a rollback is not possible from there.
pub fn stay_until_watched(status: &mut MigrationStatus, unwatched: Option<Wait>) {
    if status.phase != MigrationPhase::Finishing {
        return;
    }
    if let Some(unwatched) = unwatched {
        status.phase = MigrationPhase::Rolling;
        wait(status, unwatched.reason, unwatched.message);
    }
}

/// Whether no node has been admitted yet.
fn is_before_the_first(rollout_nodes: &[RolloutNode<'_>]) -> bool {
    rollout_nodes.iter().all(|rollout_node| {
        matches!(
            rollout_node.standing,
            NodeProgress::Waiting | NodeProgress::Skipped | NodeProgress::KeptOnOld
        )
    })
}

/// Whether the user resumed the rollout, and traffic has not confirmed yet that losses have ended.
pub fn is_to_be_proved(status: &MigrationStatus) -> bool {
    status
        .breach
        .as_ref()
        .is_some_and(|breach| breach.clean_since.is_none())
}

/// Halts the rollout: a decision of the user comes before waits of nodes. A halted node has a more specific message.
pub fn halt(status: &mut MigrationStatus, stop: &Stop) {
    status.phase = MigrationPhase::Halted;
    status.paused = true;
    status.set_reason(stop.reason, stop.message.clone());
}
