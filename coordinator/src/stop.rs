//! What stops the rollout as a whole until a person has looked: traffic that is lost, and what somebody else changed. And
//! where traffic holds it: before the first node, after a breach, and after the last node.

use api::MigrationStatus;
use api::migration::MigrationPhase;
use engine::decision::{HaltReason, Wait, WaitReason};
use engine::rollout::{Rules, Seat, Standing};

use crate::lifecycle::wait;
use crate::traffic::Watched;

/// Why no node is started until somebody says resume.
pub struct Stop {
    reason: HaltReason,
    message: String,
}

impl Stop {
    /// Nothing is begun until somebody has looked.
    pub fn hold(&self) -> Wait {
        Wait {
            reason: WaitReason::Paused,
            message: self.message.clone(),
            until: None,
        }
    }
}

/// What stops the rollout: somebody else's change, in words, or traffic that is lost, as the status has it.
pub fn stop(drift: Option<String>, status: &MigrationStatus, lossy: bool) -> Option<Stop> {
    // Who changed something may be why traffic is lost.
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

/// The rules of the spec with what stops the rollout, and what traffic adds to them.
pub fn held(
    mut rules: Rules,
    status: &MigrationStatus,
    seats: &[Seat<'_>],
    watched: &Watched,
    stop: Option<&Stop>,
) -> Rules {
    if let Some(stop) = stop {
        rules.hold = Some(stop.hold());
    } else if is_before_the_first(seats) || is_to_be_proved(status) {
        // What is lost before anything has changed is not this migration's doing, and would be taken for it. And what was
        // mended has to be seen to be.
        rules.hold.clone_from(&watched.unwatched);
    }
    rules.clean_since = status.breach.as_ref().and_then(|breach| breach.clean_since);
    rules
}

/// The way back ends at `Finishing`: nobody goes there before it is known what the new network loses.
pub fn stay_until_watched(status: &mut MigrationStatus, unwatched: Option<Wait>) {
    if status.phase != MigrationPhase::Finishing {
        return;
    }
    if let Some(unwatched) = unwatched {
        status.phase = MigrationPhase::Rolling;
        wait(status, unwatched.reason, unwatched.message);
    }
}

/// Whether no node has been taken into work yet.
fn is_before_the_first(seats: &[Seat<'_>]) -> bool {
    seats.iter().all(|seat| {
        matches!(
            seat.standing,
            Standing::Waiting | Standing::Skipped | Standing::Kept
        )
    })
}

/// Whether somebody said resume, and nobody has seen yet that nothing is lost any more.
pub fn is_to_be_proved(status: &MigrationStatus) -> bool {
    status
        .breach
        .as_ref()
        .is_some_and(|breach| breach.clean_since.is_none())
}

/// What a person has to decide comes before what the nodes wait for; a node that is halted says more.
pub fn halt(status: &mut MigrationStatus, stop: &Stop) {
    status.phase = MigrationPhase::Halted;
    status.paused = true;
    stop.reason.as_str().clone_into(&mut status.blocked);
    status.message.clone_from(&stop.message);
}
