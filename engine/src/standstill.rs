//! A wait of the whole migration while no node is being migrated: since when nothing has changed, and when the timeout is
//! exceeded.

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::{Halt, HaltReason, WaitReason};

/// `MigrationWait` is what a migration as a whole waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationWait {
    /// `reason` is the reason of the wait, in `CamelCase`, as in `status.reason`.
    pub reason: WaitReason,
    /// `message` is a human-readable description of what the migration waits for, with the object. At most 4096 bytes.
    pub message: String,
    /// `since` is the time since which `reason` and `message` are unchanged. `rollout.stepTimeoutSeconds` counts from here, or
    /// from `spec.resumedAt` if that is later.
    #[schemars(with = "String")]
    pub since: Timestamp,
}

impl MigrationWait {
    /// The wait as it is now. With the same reason and message, the wait has lasted since it was first seen. After the clock was
    /// set back, the wait starts again.
    pub fn observe(before: Option<&Self>, reason: WaitReason, message: String, now: Timestamp) -> Self {
        let since = before
            .filter(|before| before.reason == reason && before.message == message)
            .map_or(now, |before| before.since.min(now));
        Self {
            reason,
            message,
            since,
        }
    }

    /// The halt that this wait becomes after `limit`, counted from the user's "resume" if that was later; `None` before, and for
    /// a wait without a deadline.
    pub fn overdue(
        &self,
        limit: SignedDuration,
        resumed_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Halt> {
        let until = self.since.max(resumed_at.unwrap_or(self.since)) + limit;
        (!self.reason.has_no_deadline() && now >= until).then(|| Halt {
            reason: HaltReason::DeadlineExceeded,
            message: format!(
                "{}. No progress since {:.0}, and rollout.stepTimeoutSeconds is {}. Correct the cause, then run `kubectl \
                 replumb resume`; in a rollback, run the same abort or rollback command again",
                self.message,
                self.since,
                limit.as_secs()
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: SignedDuration = SignedDuration::from_secs(600);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn look(before: Option<&MigrationWait>, message: &str, now: i64) -> MigrationWait {
        MigrationWait::observe(before, WaitReason::DaemonSetRollout, message.to_owned(), at(now))
    }

    #[test]
    fn progress_restarts_the_timeout() {
        let first = look(None, "1 of 3 pods are new", 0);
        let same = look(Some(&first), "1 of 3 pods are new", 500);
        assert_eq!(same.since, at(0));
        let moved = look(Some(&same), "2 of 3 pods are new", 550);
        assert_eq!(moved.since, at(550));
        assert_eq!(moved.overdue(LIMIT, None, at(1149)), None);
        let halt = moved.overdue(LIMIT, None, at(1150)).unwrap();
        assert_eq!(halt.reason, HaltReason::DeadlineExceeded);
        assert!(halt.message.contains("2 of 3 pods are new"), "{}", halt.message);
    }

    #[test]
    fn resume_restarts_the_timeout() {
        let wait = look(None, "x", 0);
        assert_eq!(wait.overdue(LIMIT, Some(at(700)), at(1299)), None);
        assert!(wait.overdue(LIMIT, Some(at(700)), at(1300)).is_some());
    }

    #[test]
    fn a_clock_that_was_set_back_restarts_the_wait() {
        let wait = look(Some(&look(None, "x", 3600)), "x", 10);
        assert_eq!(wait.since, at(10));
    }

    #[test]
    fn a_wait_that_the_spec_asks_for_is_never_overdue() {
        let wait = MigrationWait::observe(None, WaitReason::CanarySoak, "soaks".to_owned(), at(0));
        assert_eq!(wait.overdue(LIMIT, None, at(1_000_000)), None);
    }
}
