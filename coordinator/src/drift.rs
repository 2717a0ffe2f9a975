//! Somebody else changed what a migration wrote: it is announced, it stops the rollout, and writing it again is paced.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use api::migration::{Desired, Drift};
use api::{Migration, MigrationStatus};
use engine::decision::HaltReason;
use jiff::Timestamp;

use crate::context::Context;
use crate::tell::Tone;

/// More are not named in a status.
const MOST_NAMED: usize = 20;
/// So many within [`WINDOW`] are written as soon as they are found, of each object. Somebody who writes back each time is not
/// raced: every change of a selector is a roll of its `DaemonSet`.
const AT_ONCE: usize = 3;
const WINDOW: Duration = Duration::from_mins(1);
/// From then on.
const PACE: Duration = Duration::from_secs(10);

/// Whether somebody has said since that the rollout goes on. Any other time is a new word: whose clock it was does not matter.
pub fn is_resumed(migration: &Migration, status: &MigrationStatus) -> bool {
    let resumed_at = migration.spec.resumed_at;
    status
        .drift
        .as_ref()
        .is_some_and(|drift| drift.resumed_at != resumed_at)
}

/// Writes down and tells what was not known yet. Says whether there was something: it is written again in the next pass, once the
/// status has it.
pub async fn announce(
    context: &Context,
    migration: &Migration,
    found: &[String],
    status: &mut MigrationStatus,
) -> bool {
    let resumed_at = migration.spec.resumed_at;
    let drift = status.drift.take().filter(|drift| drift.resumed_at == resumed_at);
    let mut drift = drift.unwrap_or_else(|| Drift {
        at: Timestamp::now(),
        what: Vec::new(),
        resumed_at,
    });
    let mut is_new = false;
    for what in found {
        if drift.what.len() < MOST_NAMED && !drift.what.contains(what) {
            let note = format!("somebody else changed what this migration wrote: {what}");
            let reason = HaltReason::Drift.as_str();
            context
                .teller
                .migration(migration, Tone::Warning, reason, &note)
                .await;
            drift.what.push(what.clone());
            is_new = true;
        }
    }
    status.drift = Some(drift).filter(|drift| !drift.what.is_empty());
    is_new
}

/// Why a drift stops the rollout: until somebody says resume. What goes back is not stopped.
pub fn stop(migration: &Migration, status: &MigrationStatus) -> Option<String> {
    let spec = &migration.spec;
    let goes_forward = match spec.desired {
        Desired::Run => true,
        Desired::Plan | Desired::Pause => spec.rollback_nodes.is_empty(),
        Desired::Abort | Desired::Rollback => false,
    };
    let drift = status.drift.as_ref()?;
    if !goes_forward || drift.resumed_at != spec.resumed_at {
        return None;
    }
    let (first, others) = drift.what.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        others => format!(
            " (and {others} more: `kubectl get migration {} -o jsonpath='{{.status.drift.what}}'`)",
            migration.metadata.name.as_deref().unwrap_or_default()
        ),
    };
    Some(format!(
        "somebody else changed what this migration wrote: {first}{others}. It is written again where nothing else is said; no node is \
         started, and those in work are finished. Find out who it was, then `kubectl replumb resume`, or go back with `kubectl \
         replumb abort`"
    ))
}

/// When each object was written again, lately.
#[derive(Debug, Default)]
pub struct Restores {
    times: BTreeMap<String, VecDeque<Instant>>,
}

impl Restores {
    /// Whether this object may be written once more now; counts it.
    pub fn may(&mut self, object: &str, now: Instant) -> bool {
        let is_old = |time: &Instant| now.saturating_duration_since(*time) > WINDOW;
        self.times.retain(|_, times| {
            times.retain(|time| !is_old(time));
            !times.is_empty()
        });
        let times = self.times.entry(object.to_owned()).or_default();
        let paced = times.len() >= AT_ONCE
            && times
                .back()
                .is_some_and(|last| now.saturating_duration_since(*last) < PACE);
        if !paced {
            times.push_back(now);
        }
        !paced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_back_each_time_is_answered_every_ten_seconds() {
        let start = Instant::now();
        let mut restores = Restores::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..AT_ONCE {
            assert!(restores.may("Node a", at(0)));
        }
        assert!(!restores.may("Node a", at(0)));
        assert!(restores.may("Node b", at(0)), "it is another's");
        assert!(!restores.may("Node a", at(9)));
        assert!(restores.may("Node a", at(10)));
        assert!(!restores.may("Node a", at(11)));
        assert!(restores.may("Node a", at(80)), "it was quiet for a minute");
        assert!(restores.may("Node a", at(81)));
    }
}
