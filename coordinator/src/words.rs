//! Parts of a status that are for users only, and their write interval.

use api::MigrationStatus;
use jiff::{SignedDuration, Timestamp};

/// Intervals of messages for users. Each write costs the API server and every watcher.
#[derive(Clone, Copy, Debug)]
pub struct MessagePace {
    /// Shortest interval of status writes that change messages and counts only.
    pub words: SignedDuration,
    /// Age of a stage at which its wait is reported, if it passes without help: most waits are over by then.
    pub report_after: SignedDuration,
}

impl MessagePace {
    /// The pace for users.
    pub const FOR_USERS: Self = Self {
        words: SignedDuration::from_secs(1),
        report_after: SignedDuration::from_secs(3),
    };
    /// No delays: passes over an API server in memory take no time.
    pub const AT_ONCE: Self = Self {
        words: SignedDuration::ZERO,
        report_after: SignedDuration::ZERO,
    };
}

/// Time of the last status write. Lost at a restart: the next write is then immediate.
#[derive(Debug, Default)]
pub struct MessageWrites {
    at: Option<Timestamp>,
}

impl MessageWrites {
    /// Whether messages alone may be written now. Allowed after the clock was set back.
    pub fn may_be_written(&self, pace: MessagePace, now: Timestamp) -> bool {
        self.at.is_none_or(|at| now < at || now >= at + pace.words)
    }

    /// Records a write of the status.
    pub fn written(&mut self, now: Timestamp) {
        self.at = Some(now);
    }
}

/// Whether only messages and counts differ, on which no decision depends. `clear_counts` clears those of the kinds.
pub fn differ_in_words(
    old: &MigrationStatus,
    new: &MigrationStatus,
    clear_counts: impl Fn(&mut MigrationStatus),
) -> bool {
    old != new && without_words(old, &clear_counts) == without_words(new, &clear_counts)
}

fn without_words(status: &MigrationStatus, clear_counts: impl Fn(&mut MigrationStatus)) -> MigrationStatus {
    let mut status = status.clone();
    status.message.clear();
    status.progress = api::migration::Progress::default();
    status.traffic.clear();
    status.warnings = None;
    if let Some(standstill) = &mut status.wait {
        standstill.message.clear();
        standstill.since = Timestamp::UNIX_EPOCH;
    }
    clear_counts(&mut status);
    for condition in &mut status.conditions {
        condition.message.clear();
    }
    status
}

#[cfg(test)]
mod tests {
    use api::migration::MigrationPhase;

    use super::*;

    #[test]
    fn another_reason_or_phase_is_not_a_difference_in_words() {
        let old = MigrationStatus {
            message: "12 of 40 pods are new".to_owned(),
            reason: "DaemonSetRollout".to_owned(),
            ..MigrationStatus::default()
        };
        let mut new = old.clone();
        assert!(!differ_in_words(&old, &new, |_| {}), "equal");
        new.message = "13 of 40 pods are new".to_owned();
        new.progress.done = 7;
        assert!(differ_in_words(&old, &new, |_| {}));
        let of_another_phase = MigrationStatus {
            phase: MigrationPhase::Halted,
            ..new.clone()
        };
        assert!(!differ_in_words(&old, &of_another_phase, |_| {}));
        new.reason = "AgentSilent".to_owned();
        assert!(!differ_in_words(&old, &new, |_| {}));
    }

    #[test]
    fn messages_are_written_at_intervals() {
        let pace = MessagePace::FOR_USERS;
        let mut words = MessageWrites::default();
        let at = |milliseconds| Timestamp::UNIX_EPOCH + SignedDuration::from_millis(milliseconds);
        assert!(words.may_be_written(pace, at(0)));
        words.written(at(0));
        assert!(!words.may_be_written(pace, at(999)));
        assert!(words.may_be_written(pace, at(1000)));
        words.written(at(5000));
        assert!(words.may_be_written(pace, at(0)), "the clock was set back");
    }
}
