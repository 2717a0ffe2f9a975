//! How soon what no watch brings is read again: so that a pass costs the API server little, however large the cluster is.

use std::future::Future;
use std::time::{Duration, Instant};

/// While somebody waits for it.
const SOON: Duration = Duration::from_secs(2);
/// While nobody does.
const SELDOM: Duration = Duration::from_secs(15);
/// What takes long to read is read for one part of the time in this many, while somebody waits for it.
const SHARE_SOON: u32 = 4;
/// The same while nobody does.
const SHARE_SELDOM: u32 = 20;
/// It is read again after so long, however long that takes.
const LONGEST: Duration = Duration::from_mins(1);

/// How soon something is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Somebody waits for it.
    Soon,
    /// It is only counted.
    Seldom,
}

/// What was read last, when, and how long that took.
#[derive(Debug)]
pub struct Look<T> {
    at: Instant,
    took: Duration,
    found: T,
}

impl<T> Look<T> {
    /// Reads it.
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

    /// What was found.
    pub fn found(&self) -> &T {
        &self.found
    }

    /// Whether it has to be read again.
    pub fn is_old(&self, pace: Pace) -> bool {
        self.at.elapsed() >= pace.rest(self.took)
    }
}

impl Pace {
    /// For how long something stays as it was read, if reading it took so long.
    fn rest(self, took: Duration) -> Duration {
        let (time, share) = match self {
            Self::Soon => (SOON, SHARE_SOON),
            Self::Seldom => (SELDOM, SHARE_SELDOM),
        };
        took.saturating_mul(share).min(LONGEST).max(time)
    }
}

/// What was read last, read again if it is old.
pub fn look<T, E>(
    last: &mut Option<Look<T>>,
    pace: Pace,
    reading: impl Future<Output = Result<T, E>>,
) -> impl Future<Output = Result<&T, E>> {
    // Reads are large futures, and this one is part of many.
    let reading = Box::pin(reading);
    async move {
        let look = match last.take().filter(|look| !look.is_old(pace)) {
            Some(look) => look,
            None => Look::of(reading).await?,
        };
        Ok(last.insert(look).found())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_small_cluster(Pace::Soon, 10, 2000)]
    #[case::a_large_one(Pace::Soon, 3000, 12_000)]
    #[case::one_that_hardly_answers(Pace::Soon, 40_000, 60_000)]
    #[case::seldom(Pace::Seldom, 10, 15_000)]
    #[case::seldom_of_a_large_one(Pace::Seldom, 2000, 40_000)]
    fn what_takes_long_to_read_is_read_less_often(#[case] pace: Pace, #[case] took: u64, #[case] rest: u64) {
        assert_eq!(
            pace.rest(Duration::from_millis(took)),
            Duration::from_millis(rest)
        );
    }

    #[tokio::test]
    async fn what_is_not_old_is_not_read_again_and_a_failure_is_not_kept() {
        let mut last = None;
        for (answer, found) in [(Err("away"), Err("away")), (Ok(1), Ok(1)), (Ok(2), Ok(1))] {
            let looked = look(&mut last, Pace::Soon, async { answer }).await.copied();
            assert_eq!(looked, found);
        }
    }
}
