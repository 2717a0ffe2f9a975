//! Where traffic stops the rollout: before the first node, after a breach, and after the last node.

use api::MigrationStatus;
use api::migration::MigrationPhase;
use plan::decision::{HaltReason, Wait, WaitReason};
use plan::rollout::{Rules, Seat, Standing};

use super::super::traffic::Watched;
use super::super::wait;

/// The rules of the spec with what traffic adds to them.
pub(super) fn held_by_traffic(
    mut rules: Rules,
    status: &MigrationStatus,
    seats: &[Seat<'_>],
    watched: &Watched,
    stopped: bool,
) -> Rules {
    if stopped {
        rules.hold = Some(stopped_by_traffic(status));
    } else if is_before_the_first(seats) || is_to_be_proved(status) {
        // What is lost before anything has changed is not this migration's doing, and would be taken for it. And what was
        // mended has to be seen to be.
        rules.hold.clone_from(&watched.unwatched);
    }
    rules.clean_since = status.breach.as_ref().and_then(|breach| breach.clean_since);
    rules
}

/// The way back ends at `Finishing`: nobody goes there before it is known what the new network loses.
pub(super) fn stay_until_watched(status: &mut MigrationStatus, unwatched: Option<Wait>) {
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
fn is_to_be_proved(status: &MigrationStatus) -> bool {
    status
        .breach
        .as_ref()
        .is_some_and(|breach| breach.clean_since.is_none())
}

fn stopped_by_traffic(status: &MigrationStatus) -> Wait {
    let breach = status.breach.as_ref();
    Wait {
        reason: WaitReason::Paused,
        message: breach.map(|breach| breach.message.clone()).unwrap_or_default(),
        until: None,
    }
}

/// What a person has to decide comes before what the nodes wait for; a node that is halted says more.
pub(super) fn halt(status: &mut MigrationStatus) {
    status.phase = MigrationPhase::Halted;
    status.paused = true;
    HaltReason::GateBreached.as_str().clone_into(&mut status.blocked);
    if let Some(breach) = &status.breach {
        status.message.clone_from(&breach.message);
    }
}
