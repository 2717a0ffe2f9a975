//! The time: as others write it, and as it passes. The first may be set at any moment, by a person or by NTP.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// The wall clock is pushed by fractions of a second all the time; more than this is a jump.
const TOLERANCE: Duration = Duration::from_secs(5);

/// One moment by both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// As others write it.
    pub wall: Timestamp,
    /// As it passes.
    pub steady: Instant,
}

impl Moment {
    /// This one.
    pub fn now() -> Self {
        Self {
            wall: Timestamp::now(),
            steady: Instant::now(),
        }
    }
}

/// Notices that the wall clock was set while this process ran.
#[derive(Debug, Default)]
pub struct Clock {
    last: Option<Moment>,
    set_at: Option<Timestamp>,
}

impl Clock {
    /// Looks at the clock. Returns by how much it was set since the last look, if it was.
    pub fn look(&mut self, now: Moment) -> Option<SignedDuration> {
        let last = self.last.replace(now)?;
        let passed = now.steady.saturating_duration_since(last.steady);
        let set = now.wall.duration_since(last.wall) - SignedDuration::try_from(passed).ok()?;
        if set.unsigned_abs() <= TOLERANCE {
            return None;
        }
        self.set_at = Some(now.wall);
        Some(set)
    }

    /// Since when something lasts that was written down as lasting since `since`: nobody knows what a clock that was set says of
    /// the time before.
    pub fn since(&self, since: Timestamp) -> Timestamp {
        self.set_at.map_or(since, |set_at| since.max(set_at))
    }

    /// The time from which deadlines count: a person's "resume", or when the clock was set, if that was later. A "resume" that is
    /// still to come was said before the clock was set back.
    pub fn deadlines_from(&self, resumed_at: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        let said = resumed_at.filter(|at| at.duration_since(now).unsigned_abs() <= TOLERANCE || *at <= now);
        said.max(self.set_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    /// So many seconds after the start, by a wall clock that is so many seconds ahead.
    fn moment(start: Moment, seconds: u64, ahead: i64) -> Moment {
        Moment {
            wall: start.wall + SignedDuration::from_secs(i64::try_from(seconds).unwrap() + ahead),
            steady: start.steady + Duration::from_secs(seconds),
        }
    }

    #[test]
    fn a_clock_that_is_set_is_noticed_once_either_way() {
        for ahead in [HOUR, -HOUR, 6] {
            let start = Moment::now();
            let mut clock = Clock::default();
            assert_eq!(clock.look(start), None);
            assert_eq!(clock.look(moment(start, 60, 0)), None, "time passes");
            assert_eq!(clock.look(moment(start, 61, 4)), None, "it is pushed a little");
            let set = clock.look(moment(start, 62, 4 + ahead));
            assert_eq!(set, Some(SignedDuration::from_secs(ahead)));
            assert_eq!(clock.look(moment(start, 63, 4 + ahead)), None);
        }
    }

    #[test]
    fn deadlines_count_from_the_later_of_resume_and_jump() {
        let start = Moment::now();
        let mut clock = Clock::default();
        let now = start.wall;
        assert_eq!(clock.deadlines_from(None, now), None);
        assert_eq!(clock.deadlines_from(Some(now), now), Some(now));
        assert_eq!(clock.since(now), now);
        clock.look(start);
        clock.look(moment(start, 1, HOUR));
        let jump = moment(start, 1, HOUR).wall;
        assert_eq!(clock.deadlines_from(Some(now), jump), Some(jump));
        assert_eq!(clock.since(now), jump);
        let later = jump + SignedDuration::from_secs(1);
        assert_eq!(clock.deadlines_from(Some(later), later), Some(later));
        let seconds_ahead = Some(later);
        assert_eq!(
            clock.deadlines_from(seconds_ahead, jump),
            seconds_ahead,
            "another's clock"
        );
        let hour_ahead = Some(later + SignedDuration::from_secs(HOUR));
        assert_eq!(clock.deadlines_from(hour_ahead, later), Some(jump));
    }
}
