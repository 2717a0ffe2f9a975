//! How long nobody has done anything for this host: the clock of the dead man's switch. A monotonic clock, so that a host whose
//! time is set does not go back for it.

use std::time::{Duration, Instant};

use api::node_migration::Patience;
use flannel_to_calico::host::Service;
use jiff::Timestamp;

/// An agent that was started anew has at least this time, or half of its patience, to hear what is wanted now. The next one that is started
/// before anything was recorded has half of that, and so on: lives that are too short for it do not put the switch off for ever.
const GRACE: Duration = Duration::from_mins(1);
/// The shortest such time is about a second.
const MOST_HALVINGS: u32 = 6;

/// The time since the last step on the host or the last word of the coordinator's, whichever is later.
#[derive(Debug)]
pub struct Quiet {
    told: Option<Patience>,
    since: Instant,
    /// Whether the host was between the two networks at the last look; not known before the first.
    between: Option<bool>,
    /// Since when Calico serves a host that is between the two.
    served_since: Option<Instant>,
    /// Whether it has had a grace since the last word and the last step.
    had_grace: bool,
}

impl Quiet {
    /// Quiet from now on.
    pub fn new() -> Self {
        Self {
            told: None,
            since: Instant::now(),
            between: None,
            served_since: None,
            had_grace: false,
        }
    }

    /// An agent that was started anew takes over its predecessor's last word, and the time since its last record: never more
    /// than that word allows less [`GRACE`], since the host's clock may have been set meanwhile, and a new word may be waiting
    /// at the API server. `starts` were there before this one and since that record.
    pub fn resume(&mut self, last: Option<Timestamp>, now: Timestamp, told: Option<&Patience>, starts: u32) {
        self.told = told.cloned();
        let at_most = self.without_grace(starts);
        let gone = last
            .map(|last| now.duration_since(last).as_secs())
            .unwrap_or_default();
        let gone = Duration::from_secs(u64::try_from(gone).unwrap_or_default()).min(at_most);
        self.since = Instant::now().checked_sub(gone).unwrap_or(self.since);
    }

    /// What the last word allows, less the time to hear of a new one.
    fn without_grace(&self, halvings: u32) -> Duration {
        let allowed = self.told.as_ref().map_or(Duration::ZERO, |told| {
            Duration::from_secs(u64::from(told.seconds))
        });
        allowed.saturating_sub(GRACE.min(allowed / 2) / (1 << halvings.min(MOST_HALVINGS)))
    }

    /// The process stood still: once since the last word, there is time to hear of a new one.
    pub fn stood_still(&mut self) {
        let at_most = self.without_grace(0);
        if !self.had_grace && self.lasted() > at_most {
            self.since = Instant::now().checked_sub(at_most).unwrap_or(self.since);
            self.had_grace = true;
        }
    }

    /// The coordinator has said this: a new word is the end of the quiet.
    pub fn told(&mut self, patience: Option<&Patience>) {
        if self.told.as_ref() != patience {
            self.begin();
            self.told = patience.cloned();
        }
    }

    fn begin(&mut self) {
        self.since = Instant::now();
        self.had_grace = false;
    }

    /// The host was looked at: one that has just come between the two networks has all its time, and so has one that Calico served for as long
    /// as that. A calico-node that starts again and again, and serves for moments, is no end of the quiet.
    pub fn looked(&mut self, service: Service) {
        let between = service != Service::Steady;
        if between && self.between == Some(false) {
            self.begin();
        }
        self.between = Some(between);
        self.served_since = match (service, self.served_since) {
            (Service::Calico, since) => since.or_else(|| Some(Instant::now())),
            (Service::Neither, Some(since)) => {
                if since.elapsed() >= self.without_grace(0) {
                    self.begin();
                }
                None
            }
            (Service::Neither | Service::Steady, _) => None,
        };
    }

    /// Whether the host was between the two networks at the last look; `None` before the first.
    pub fn between(&self) -> Option<bool> {
        self.between
    }

    /// A step was made.
    pub fn stepped(&mut self) {
        self.begin();
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
        quiet.resume(Some(at(last)), at(now), Some(&patience(1)), 0);
        quiet
    }

    #[test]
    fn lives_that_are_too_short_for_the_grace_do_not_put_it_off_for_ever() {
        let left = |starts| {
            let mut quiet = Quiet::new();
            quiet.resume(Some(at(1000)), at(9000), Some(&patience(1)), starts);
            let left = Duration::from_mins(10).saturating_sub(quiet.lasted());
            // Some of the last second has gone by.
            left.as_secs() + 1
        };
        assert_eq!([0, 1, 2, 3, 6, 1_000_000].map(left), [60, 30, 15, 8, 1, 1]);
    }

    #[test]
    fn what_serves_for_moments_is_no_end_of_it_and_what_served_for_long_is() {
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let mut quiet = resumed(1000, 1100);
        for _ in 0..3 {
            quiet.looked(Service::Neither);
            quiet.looked(Service::Calico);
        }
        quiet.looked(Service::Neither);
        assert_eq!(quiet.lasted().as_secs(), 100);
        quiet.looked(Service::Calico);
        quiet.since = ago(5000);
        quiet.served_since = Some(ago(4000));
        quiet.looked(Service::Calico);
        quiet.looked(Service::Neither);
        assert_eq!(quiet.lasted().as_secs(), 0);
    }

    #[test]
    fn a_process_that_stood_still_hears_first_and_once() {
        let mut quiet = Quiet::new();
        quiet.told(Some(&patience(1)));
        quiet.since = Instant::now().checked_sub(Duration::from_hours(1)).unwrap();
        quiet.stood_still();
        assert_eq!(quiet.lasted().as_secs(), 540);
        quiet.since = Instant::now().checked_sub(Duration::from_hours(1)).unwrap();
        quiet.stood_still();
        assert_eq!(quiet.lasted().as_secs(), 3600, "it has had its grace");
        quiet.told(Some(&patience(2)));
        quiet.stood_still();
        assert_eq!(quiet.lasted().as_secs(), 0, "there is time anyhow");
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
        quiet.looked(Service::Neither);
        quiet.looked(Service::Neither);
        assert_eq!(quiet.lasted().as_secs(), 100);
        quiet.looked(Service::Steady);
        quiet.looked(Service::Neither);
        assert_eq!(
            quiet.lasted().as_secs(),
            0,
            "it was on one of the two networks meanwhile"
        );
    }
}
