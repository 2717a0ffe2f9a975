//! How long nobody has done anything for this host: the clock of the dead man's switch. A monotonic clock, so that a host whose
//! time is set does not go back for it.

use std::time::{Duration, Instant};

use api::node_migration::Patience;
use jiff::Timestamp;

/// An agent that was started anew has at least this time, or half of its patience, to hear what is wanted now.
const GRACE: Duration = Duration::from_mins(1);

/// The time since the last step on the host or the last word of the coordinator's, whichever is later.
#[derive(Debug)]
pub struct Quiet {
    told: Option<Patience>,
    since: Instant,
    /// Whether the host was between the two networks at the last look; not known before the first.
    between: Option<bool>,
}

impl Quiet {
    /// Quiet from now on.
    pub fn new() -> Self {
        Self {
            told: None,
            since: Instant::now(),
            between: None,
        }
    }

    /// An agent that was started anew takes over its predecessor's last word, and the time since its last record: never more
    /// than that word allows less [`GRACE`], since the host's clock may have been set meanwhile, and a new word may be waiting
    /// at the API server.
    pub fn resume(&mut self, last: Option<Timestamp>, now: Timestamp, told: Option<&Patience>) {
        let at_most = told.map_or(Duration::ZERO, |told| {
            Duration::from_secs(u64::from(told.seconds))
        });
        let at_most = at_most.saturating_sub(GRACE.min(at_most / 2));
        self.told = told.cloned();
        let gone = last
            .map(|last| now.duration_since(last).as_secs())
            .unwrap_or_default();
        let gone = Duration::from_secs(u64::try_from(gone).unwrap_or_default()).min(at_most);
        self.since = Instant::now().checked_sub(gone).unwrap_or(self.since);
    }

    /// The coordinator has said this: a new word is the end of the quiet.
    pub fn told(&mut self, patience: Option<&Patience>) {
        if self.told.as_ref() != patience {
            self.since = Instant::now();
            self.told = patience.cloned();
        }
    }

    /// The host was looked at: one that has just come between the two networks has all its time.
    pub fn looked(&mut self, between: bool) {
        if between && self.between == Some(false) {
            self.since = Instant::now();
        }
        self.between = Some(between);
    }

    /// A step was made.
    pub fn stepped(&mut self) {
        self.since = Instant::now();
    }

    /// How long it has lasted.
    pub fn lasted(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Default for Quiet {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn patience(from: i64) -> Patience {
        Patience {
            seconds: 600,
            from: at(from),
        }
    }

    fn resumed(last: i64, now: i64) -> Quiet {
        let mut quiet = Quiet::new();
        quiet.resume(Some(at(last)), at(now), Some(&patience(1)));
        quiet
    }

    #[test]
    fn a_restart_takes_over_what_has_gone_by_and_never_more_than_there_is() {
        assert_eq!(resumed(1000, 1100).lasted().as_secs(), 100);
        assert_eq!(
            resumed(1000, 900_000_000).lasted().as_secs(),
            540,
            "the clock was set forward: there is time to hear of something new"
        );
        assert_eq!(resumed(1000, 10).lasted().as_secs(), 0, "the clock was set back");
    }

    #[test]
    fn a_new_word_and_a_step_end_it_and_the_same_word_does_not() {
        let mut quiet = resumed(1000, 1100);
        quiet.told(Some(&patience(1)));
        assert_eq!(quiet.lasted().as_secs(), 100);
        quiet.told(Some(&patience(2)));
        assert_eq!(quiet.lasted().as_secs(), 0);
        let mut quiet = resumed(1000, 1100);
        quiet.stepped();
        assert_eq!(quiet.lasted().as_secs(), 0);
        let mut quiet = resumed(1000, 1100);
        quiet.looked(true);
        quiet.looked(true);
        assert_eq!(quiet.lasted().as_secs(), 100);
        quiet.looked(false);
        quiet.looked(true);
        assert_eq!(
            quiet.lasted().as_secs(),
            0,
            "it was on one of the two networks meanwhile"
        );
    }
}
