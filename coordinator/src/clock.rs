//! Wall clock and steady clock. A user or NTP may set the wall clock at any moment.
//!
//! Each part of a pass takes the time from here, so that a rehearsal can run a migration of hours in seconds: [`Rehearsed`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// NTP adjusts the wall clock by fractions of a second; a larger difference is a jump.
const TOLERANCE: Duration = Duration::from_secs(5);

tokio::task_local! {
    static REHEARSED: Rehearsed;
}

/// The clocks of a rehearsal, which stand still until they are advanced. Clones are the same clocks.
#[derive(Clone, Debug)]
pub struct Rehearsed {
    start: Moment,
    passed: Arc<AtomicU64>,
}

impl Rehearsed {
    /// Clocks that begin now.
    pub fn starting_now() -> Self {
        Self {
            start: Moment::now(),
            passed: Arc::default(),
        }
    }

    /// Advances both clocks. Less than a millisecond is lost.
    pub fn advance(&self, by: Duration) {
        let milliseconds = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.passed.fetch_add(milliseconds, Ordering::Relaxed);
    }

    /// The time since the beginning.
    pub fn passed(&self) -> Duration {
        Duration::from_millis(self.passed.load(Ordering::Relaxed))
    }

    /// The time on the wall clock.
    pub fn now(&self) -> Timestamp {
        self.moment().wall
    }

    /// Runs a part of the rehearsal: [`now`] has its time there, apart from tasks that it spawns.
    pub async fn scope<F: Future>(&self, part: F) -> F::Output {
        REHEARSED.scope(self.clone(), part).await
    }

    fn moment(&self) -> Moment {
        let passed = self.passed();
        Moment {
            wall: self.start.wall + passed,
            steady: self.start.steady + passed,
        }
    }
}

/// The current time on the wall clock.
pub fn now() -> Timestamp {
    Moment::now().wall
}

/// One moment by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Time of the wall clock, as in API objects.
    pub wall: Timestamp,
    /// Time of the steady clock.
    pub steady: Instant,
}

impl Moment {
    /// The current moment.
    pub fn now() -> Self {
        REHEARSED.try_with(Rehearsed::moment).unwrap_or_else(|_| Self {
            wall: Timestamp::now(),
            steady: Instant::now(),
        })
    }
}

/// Detects that the wall clock was set while this process ran.
#[derive(Debug, Default)]
pub struct Clock {
    last: Option<Moment>,
    set_at: Option<Timestamp>,
}

impl Clock {
    /// Compares both clocks. Returns the jump of the wall clock since the last call, if it was set.
    pub fn observe(&mut self, now: Moment) -> Option<SignedDuration> {
        let last = self.last.replace(now)?;
        let passed = now.steady.saturating_duration_since(last.steady);
        let set = now.wall.duration_since(last.wall) - SignedDuration::try_from(passed).ok()?;
        if set.unsigned_abs() <= TOLERANCE {
            return None;
        }
        self.set_at = Some(now.wall);
        Some(set)
    }

    /// Start of a state that was recorded as `since`, but not before the last jump: earlier durations cannot be computed across a
    /// jump.
    pub fn since(&self, since: Timestamp) -> Timestamp {
        self.set_at.map_or(since, |set_at| since.max(set_at))
    }

    /// Start of deadlines: the user's "resume", or the last jump of the clock if that is later. A "resume" in the future was
    /// written before the clock was set back.
    pub fn deadlines_from(&self, resumed_at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        let resumed =
            resumed_at.filter(|at| at.duration_since(now).unsigned_abs() <= TOLERANCE || *at <= now);
        resumed.max(self.set_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    /// The moment after `seconds`, with a wall clock that is `ahead` seconds ahead.
    fn moment(start: Moment, seconds: u64, ahead: i64) -> Moment {
        Moment {
            wall: start.wall + SignedDuration::from_secs(i64::try_from(seconds).unwrap() + ahead),
            steady: start.steady + Duration::from_secs(seconds),
        }
    }

    #[test]
    fn a_jump_of_the_clock_is_reported_once_in_both_directions() {
        for ahead in [HOUR, -HOUR, 6] {
            let start = Moment::now();
            let mut clock = Clock::default();
            assert_eq!(clock.observe(start), None);
            assert_eq!(clock.observe(moment(start, 60, 0)), None, "time passes");
            assert_eq!(clock.observe(moment(start, 61, 4)), None, "a small adjustment");
            let set = clock.observe(moment(start, 62, 4 + ahead));
            assert_eq!(set, Some(SignedDuration::from_secs(ahead)));
            assert_eq!(clock.observe(moment(start, 63, 4 + ahead)), None);
        }
    }

    #[test]
    fn deadlines_start_at_the_later_of_resume_and_jump() {
        let start = Moment::now();
        let mut clock = Clock::default();
        let now = start.wall;
        assert_eq!(clock.deadlines_from(None, now), None);
        assert_eq!(clock.deadlines_from(Some(now), now), Some(now));
        assert_eq!(clock.since(now), now);
        clock.observe(start);
        clock.observe(moment(start, 1, HOUR));
        let jump = moment(start, 1, HOUR).wall;
        assert_eq!(clock.deadlines_from(Some(now), jump), Some(jump));
        assert_eq!(clock.since(now), jump);
        let later = jump + SignedDuration::from_secs(1);
        assert_eq!(clock.deadlines_from(Some(later), later), Some(later));
        let seconds_ahead = Some(later);
        assert_eq!(
            clock.deadlines_from(seconds_ahead, jump),
            seconds_ahead,
            "a clock of another machine"
        );
        let hour_ahead = Some(later + SignedDuration::from_secs(HOUR));
        assert_eq!(clock.deadlines_from(hour_ahead, later), Some(jump));
    }
}
