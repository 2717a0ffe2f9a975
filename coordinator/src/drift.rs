//! Drift: another writer changed a value of a migration. Drift is announced and stops the rollout; restoring the value is paced.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use api::migration::{Desired, Drift};
use api::{Migration, MigrationStatus};
use engine::decision::HaltReason;

use crate::clock;
use crate::context::Context;
use crate::events::EventLevel;

/// Most changes named in a status.
const MOST_NAMED: usize = 20;
/// Restores of one object within [`WINDOW`] without a pause. Further restores are paced, because every change of a selector rolls
/// the `DaemonSet`, and another writer may write each time.
const AT_ONCE: usize = 3;
const WINDOW: Duration = Duration::from_mins(1);
/// Interval of further restores.
const PACE: Duration = Duration::from_secs(10);

/// Whether the user resumed the rollout since. Any different time counts as a new request, from any clock.
pub fn is_resumed(migration: &Migration, status: &MigrationStatus) -> bool {
    let resumed_at = migration.spec.resumed_at;
    status
        .drift
        .as_ref()
        .is_some_and(|drift| drift.resumed_at != resumed_at)
}

/// Records and announces changes that are not known yet. Returns whether there were any: the value is restored in the next pass,
/// once the status has the change.
pub async fn announce(
    context: &Context,
    migration: &Migration,
    found: &[String],
    status: &mut MigrationStatus,
) -> bool {
    let resumed_at = migration.spec.resumed_at;
    let drift = status.drift.take().filter(|drift| drift.resumed_at == resumed_at);
    let mut drift = drift.unwrap_or_else(|| Drift {
        at: clock::now(),
        differences: Vec::new(),
        resumed_at,
    });
    let mut is_new = false;
    for what in found {
        if drift.differences.len() < MOST_NAMED && !drift.differences.contains(what) {
            let note = format!("another writer changed a value of this migration: {what}");
            context
                .events
                .migration(migration, EventLevel::Warning, HaltReason::Drift, &note)
                .await;
            drift.differences.push(what.clone());
            is_new = true;
        }
    }
    status.drift = Some(drift).filter(|drift| !drift.differences.is_empty());
    is_new
}

/// Why drift stops the rollout, until the user resumes it. A rollback is not stopped, also not that of single nodes
/// (`rolls_nodes_back`).
pub fn stop(migration: &Migration, status: &MigrationStatus, rolls_nodes_back: bool) -> Option<String> {
    let spec = &migration.spec;
    let goes_forward = match spec.desired {
        Desired::Run => true,
        Desired::Plan | Desired::Pause => !rolls_nodes_back,
        Desired::Abort | Desired::Rollback => false,
    };
    let drift = status.drift.as_ref()?;
    if !goes_forward || drift.resumed_at != spec.resumed_at {
        return None;
    }
    let (first, others) = drift.differences.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        others => format!(
            " (and {others} more: `kubectl get migration {} -o jsonpath='{{.status.drift.what}}'`)",
            migration.metadata.name.as_deref().unwrap_or_default()
        ),
    };
    Some(format!(
        "another writer changed a value of this migration: {first}{others}. The value is restored unless stated otherwise; no \
         further node is started, and started nodes are finished. Find the writer, then run `kubectl replumb resume`, or go \
         back with `kubectl replumb abort`"
    ))
}

/// Recent restores of each object.
#[derive(Debug, Default)]
pub struct Restores {
    times: BTreeMap<String, VecDeque<Instant>>,
}

impl Restores {
    /// Whether this object may be restored now; counts the restore.
    pub fn allows(&mut self, object: &str, now: Instant) -> bool {
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
    fn repeated_foreign_writes_are_restored_every_ten_seconds() {
        let start = Instant::now();
        let mut restores = Restores::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..AT_ONCE {
            assert!(restores.allows("Node a", at(0)));
        }
        assert!(!restores.allows("Node a", at(0)));
        assert!(restores.allows("Node b", at(0)), "another object");
        assert!(!restores.allows("Node a", at(9)));
        assert!(restores.allows("Node a", at(10)));
        assert!(!restores.allows("Node a", at(11)));
        assert!(restores.allows("Node a", at(80)), "no write for a minute");
        assert!(restores.allows("Node a", at(81)));
    }
}
