//! Pauses between failed attempts. Pauses grow, and differ between the agents of a cluster: thousands that lose the API server at
//! the same moment do not reconnect at the same moment.

use std::time::Duration;

/// The longest pause after the first failure.
const FIRST: Duration = Duration::from_secs(1);

/// The longest pause between two attempts to reach the API server while the node is being migrated and should not wait longer.
pub const LONGEST_PAUSE_WHILE_MIGRATING: Duration = Duration::from_secs(5);
/// The same while the rollout waits for the agent's observations. In a large cluster all agents may lose the API server at the
/// same moment: their attempts are spread over half of this time.
pub const LONGEST_PAUSE_ON_WATCH: Duration = Duration::from_secs(15);

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after one more failure: between half of the limit and the limit, by this random number. The limit doubles each
    /// time, up to `longest`.
    pub fn after_failure(&mut self, longest: Duration, random: u64) -> Duration {
        let doubled = FIRST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1).min(31);
        let half = doubled.min(longest) / 2;
        let spread = u64::try_from(half.as_micros())
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        half + Duration::from_micros(random % spread)
    }

    /// Records a success: the next failure counts as the first one.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_mins(1);

    #[test]
    fn pauses_grow_up_to_the_limit() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> = (0..9)
            .map(|_| backoff.after_failure(LONGEST, 0).as_millis())
            .collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        for _ in 0..100 {
            assert!(backoff.after_failure(LONGEST, u64::MAX) <= LONGEST);
        }
        backoff.succeeded();
        assert_eq!(backoff.after_failure(LONGEST, 0).as_millis(), 500);
    }

    #[test]
    fn pauses_of_5000_agents_are_spread() {
        // Fourth pause of 5 000 agents, in tenths of a second.
        let mut tenths = std::collections::BTreeMap::<u128, u32>::new();
        for agent in 0..5000_u64 {
            let mut backoff = Backoff { failures: 3 };
            let random = crate::host::random::number().unwrap() ^ agent;
            let pause = backoff.after_failure(LONGEST, random);
            *tenths.entry(pause.as_millis() / 100).or_default() += 1;
        }
        assert!(tenths.len() >= 40, "{tenths:?}");
        assert!(tenths.values().all(|count| *count < 250), "{tenths:?}");
    }
}
