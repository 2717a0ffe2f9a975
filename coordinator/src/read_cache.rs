//! Intervals for reading objects without a watch, so that a pass costs the API server little in a cluster of any size.

use std::future::Future;
use std::time::{Duration, Instant};

/// Interval while a migration waits for the result.
const SOON: Duration = Duration::from_secs(2);
/// Interval otherwise.
const SELDOM: Duration = Duration::from_secs(15);
/// Share of time spent on slow reads while a migration waits for the result: one part in this number.
const SHARE_SOON: u32 = 4;
/// The same otherwise.
const SHARE_SELDOM: u32 = 20;
/// Longest interval, however long the read takes.
const LONGEST: Duration = Duration::from_mins(1);

/// Pace of repeated reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A migration waits for the result.
    Waited,
    /// The result is only counted.
    Counted,
}

/// The last result, its time, and the duration of the read.
#[derive(Debug)]
pub struct CachedRead<T> {
    at: Instant,
    took: Duration,
    found: T,
}

impl<T> CachedRead<T> {
    /// Performs the read.
    pub async fn of<E>(reading: impl Future<Output = Result<T, E>>) -> Result<Self, E> {
        let began = Instant::now();
        let found = reading.await?;
        let at = Instant::now();
        Ok(Self {
            at,
            took: at.saturating_duration_since(began),
            found,
        })
    }

    /// The result.
    pub fn value(&self) -> &T {
        &self.found
    }

    /// Whether the result is due for another read.
    pub fn is_old(&self, pace: Pace) -> bool {
        self.at.elapsed() >= pace.rest(self.took)
    }
}

impl Pace {
    /// How long a result of this read duration stays valid.
    fn rest(self, took: Duration) -> Duration {
        let (time, share) = match self {
            Self::Waited => (SOON, SHARE_SOON),
            Self::Counted => (SELDOM, SHARE_SELDOM),
        };
        took.saturating_mul(share).min(LONGEST).max(time)
    }
}

/// The last result, read again if it is old.
pub fn refresh<T, E>(
    last: &mut Option<CachedRead<T>>,
    pace: Pace,
    reading: impl Future<Output = Result<T, E>>,
) -> impl Future<Output = Result<&T, E>> {
    // Reads are large futures, and this one is part of many.
    let reading = Box::pin(reading);
    async move {
        let look = match last.take().filter(|look| !look.is_old(pace)) {
            Some(look) => look,
            None => CachedRead::of(reading).await?,
        };
        Ok(last.insert(look).value())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_small_cluster(Pace::Waited, 10, 2000)]
    #[case::a_large_cluster(Pace::Waited, 3000, 12_000)]
    #[case::a_slow_cluster(Pace::Waited, 40_000, 60_000)]
    #[case::seldom(Pace::Counted, 10, 15_000)]
    #[case::seldom_in_a_large_cluster(Pace::Counted, 2000, 40_000)]
    fn slow_reads_are_repeated_less_often(#[case] pace: Pace, #[case] took: u64, #[case] rest: u64) {
        assert_eq!(
            pace.rest(Duration::from_millis(took)),
            Duration::from_millis(rest)
        );
    }

    #[tokio::test]
    async fn a_recent_result_is_not_read_again_and_a_failure_is_not_kept() {
        let mut last = None;
        for (answer, found) in [
            (Err("unreachable"), Err("unreachable")),
            (Ok(1), Ok(1)),
            (Ok(2), Ok(1)),
        ] {
            let result = refresh(&mut last, Pace::Waited, async { answer }).await.copied();
            assert_eq!(result, found);
        }
    }
}
