//! Time without progress on this host: the clock of the dead man's switch. The clock is monotonic, so that setting the host's
//! time does not cause a rollback.

use std::time::{Duration, Instant};

use api::node_migration::TimeLimit;
use flannel_to_calico::host::PodNetworkService;
use jiff::Timestamp;

/// A restarted agent has at least this time, or half of its time limit, to receive the current spec. The next restart before a
/// new record has half of that, and so on: an agent that restarts repeatedly cannot delay the rollback forever.
const GRACE: Duration = Duration::from_mins(1);
/// The shortest grace is about a second.
const MOST_HALVINGS: u32 = 6;

/// The time since the last step on the host or the last change of the coordinator's time limit, whichever is later.
#[derive(Debug)]
pub struct InactivityClock {
    time_limit: Option<TimeLimit>,
    since: Instant,
    /// Whether the host was between the two networks at the last observation; `None` before the first.
    between: Option<bool>,
    /// Since when Calico serves new pods of a host between the two networks.
    served_since: Option<Instant>,
    /// Whether a grace was given since the last change of the time limit and the last step.
    had_grace: bool,
}

impl InactivityClock {
    /// Starts the clock now.
    pub fn new() -> Self {
        Self {
            time_limit: None,
            since: Instant::now(),
            between: None,
            served_since: None,
            had_grace: false,
        }
    }

    /// A restarted agent continues with the last time limit in the journal and the time since the last record: at most the time
    /// limit less [`GRACE`], since the host's clock may have been set meanwhile, and the API server may have a newer time limit.
    /// `starts` is the number of starts since that record, without this one.
    pub fn resume(
        &mut self,
        last: Option<Timestamp>,
        now: Timestamp,
        time_limit: Option<&TimeLimit>,
        starts: u32,
    ) {
        self.time_limit = time_limit.cloned();
        let at_most = self.without_grace(starts);
        let elapsed = last
            .map(|last| now.duration_since(last).as_secs())
            .unwrap_or_default();
        let elapsed = Duration::from_secs(u64::try_from(elapsed).unwrap_or_default()).min(at_most);
        self.since = Instant::now().checked_sub(elapsed).unwrap_or(self.since);
    }

    /// The time limit less the grace, in which the agent may receive a new time limit.
    fn without_grace(&self, halvings: u32) -> Duration {
        let allowed = self.time_limit.as_ref().map_or(Duration::ZERO, |limit| {
            Duration::from_secs(u64::from(limit.seconds))
        });
        allowed.saturating_sub(GRACE.min(allowed / 2) / (1 << halvings.min(MOST_HALVINGS)))
    }

    /// The process was suspended: once per time limit and step, it gets a grace to receive a new time limit.
    pub fn record_suspension(&mut self) {
        let at_most = self.without_grace(0);
        if !self.had_grace && self.elapsed() > at_most {
            self.since = Instant::now().checked_sub(at_most).unwrap_or(self.since);
            self.had_grace = true;
        }
    }

    /// Takes the coordinator's time limit: a changed one restarts the clock.
    pub fn set_time_limit(&mut self, time_limit: Option<&TimeLimit>) {
        if self.time_limit.as_ref() != time_limit {
            self.restart();
            self.time_limit = time_limit.cloned();
        }
    }

    fn restart(&mut self) {
        self.since = Instant::now();
        self.had_grace = false;
    }

    /// Takes an observation of the host: the clock restarts when the host enters the state between the two networks, or after
    /// Calico has served it for as long as the time limit less the grace. A calico-node that restarts repeatedly and serves only
    /// for moments does not restart the clock.
    pub fn observe(&mut self, service: PodNetworkService) {
        let between = service != PodNetworkService::Steady;
        if between && self.between == Some(false) {
            self.restart();
        }
        self.between = Some(between);
        self.served_since = match (service, self.served_since) {
            (PodNetworkService::Calico, since) => since.or_else(|| Some(Instant::now())),
            (PodNetworkService::Neither, Some(since)) => {
                if since.elapsed() >= self.without_grace(0) {
                    self.restart();
                }
                None
            }
            (PodNetworkService::Neither | PodNetworkService::Steady, _) => None,
        };
    }

    /// Whether the host was between the two networks at the last observation; `None` before the first.
    pub fn between(&self) -> Option<bool> {
        self.between
    }

    /// A step was performed: the clock restarts.
    pub fn record_step(&mut self) {
        self.restart();
    }

    /// Time without progress.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Default for InactivityClock {
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

    fn time_limit(from: i64) -> TimeLimit {
        TimeLimit {
            seconds: 600,
            from: at(from),
        }
    }

    fn resumed(last: i64, now: i64) -> InactivityClock {
        let mut quiet = InactivityClock::new();
        quiet.resume(Some(at(last)), at(now), Some(&time_limit(1)), 0);
        quiet
    }

    #[test]
    fn repeated_restarts_halve_the_grace() {
        let remaining = |starts| {
            let mut quiet = InactivityClock::new();
            quiet.resume(Some(at(1000)), at(9000), Some(&time_limit(1)), starts);
            let remaining = Duration::from_mins(10).saturating_sub(quiet.elapsed());
            // A part of the last second has passed.
            remaining.as_secs() + 1
        };
        assert_eq!([0, 1, 2, 3, 6, 1_000_000].map(remaining), [60, 30, 15, 8, 1, 1]);
    }

    #[test]
    fn calico_restarts_the_clock_only_after_a_long_service() {
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let mut quiet = resumed(1000, 1100);
        for _ in 0..3 {
            quiet.observe(PodNetworkService::Neither);
            quiet.observe(PodNetworkService::Calico);
        }
        quiet.observe(PodNetworkService::Neither);
        assert_eq!(quiet.elapsed().as_secs(), 100);
        quiet.observe(PodNetworkService::Calico);
        quiet.since = ago(5000);
        quiet.served_since = Some(ago(4000));
        quiet.observe(PodNetworkService::Calico);
        quiet.observe(PodNetworkService::Neither);
        assert_eq!(quiet.elapsed().as_secs(), 0);
    }

    #[test]
    fn a_suspended_process_gets_one_grace() {
        let mut quiet = InactivityClock::new();
        quiet.set_time_limit(Some(&time_limit(1)));
        quiet.since = Instant::now().checked_sub(Duration::from_hours(1)).unwrap();
        quiet.record_suspension();
        assert_eq!(quiet.elapsed().as_secs(), 540);
        quiet.since = Instant::now().checked_sub(Duration::from_hours(1)).unwrap();
        quiet.record_suspension();
        assert_eq!(quiet.elapsed().as_secs(), 3600, "only one grace");
        quiet.set_time_limit(Some(&time_limit(2)));
        quiet.record_suspension();
        assert_eq!(quiet.elapsed().as_secs(), 0, "the clock has just restarted");
    }

    #[test]
    fn a_restart_keeps_the_elapsed_time_and_leaves_a_grace() {
        assert_eq!(resumed(1000, 1100).elapsed().as_secs(), 100);
        assert_eq!(
            resumed(1000, 900_000_000).elapsed().as_secs(),
            540,
            "the host's clock was set forward: the grace remains"
        );
        assert_eq!(
            resumed(1000, 10).elapsed().as_secs(),
            0,
            "the host's clock was set back"
        );
    }

    #[test]
    fn a_new_time_limit_and_a_step_restart_the_clock() {
        let mut quiet = resumed(1000, 1100);
        quiet.set_time_limit(Some(&time_limit(1)));
        assert_eq!(quiet.elapsed().as_secs(), 100);
        quiet.set_time_limit(Some(&time_limit(2)));
        assert_eq!(quiet.elapsed().as_secs(), 0);
        let mut quiet = resumed(1000, 1100);
        quiet.record_step();
        assert_eq!(quiet.elapsed().as_secs(), 0);
        let mut quiet = resumed(1000, 1100);
        quiet.observe(PodNetworkService::Neither);
        quiet.observe(PodNetworkService::Neither);
        assert_eq!(quiet.elapsed().as_secs(), 100);
        quiet.observe(PodNetworkService::Steady);
        quiet.observe(PodNetworkService::Neither);
        assert_eq!(
            quiet.elapsed().as_secs(),
            0,
            "the host was on one of the two networks meanwhile"
        );
    }
}
