//! Wall clock and steady clock. A user or NTP may set the wall clock at any moment.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// NTP adjusts the wall clock by fractions of a second; a larger difference is a jump.
const TOLERANCE: Duration = Duration::from_secs(5);

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
        Self {
            wall: Timestamp::now(),
            steady: Instant::now(),
        }
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
