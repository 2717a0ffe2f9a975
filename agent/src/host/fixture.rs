//! Limits of durations in tests, on a machine that may be busy.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt as _;

/// An operation that waits by design waits in each attempt; a busy machine does not delay each attempt.
const TRIES: usize = 5;

/// Repeats an operation until it takes less than the limit once, and panics if it never does.
pub async fn assert_takes_less(limit: Duration, mut attempt: impl AsyncFnMut()) {
    let mut took = Vec::new();
    for _ in 0..TRIES {
        let began = Instant::now();
        attempt().await;
        took.push(began.elapsed());
        if began.elapsed() < limit {
            return;
        }
    }
    panic!("no attempt took less than {limit:?}: {took:?}");
}

#[tokio::test]
async fn one_slow_attempt_passes_and_only_slow_attempts_panic() {
    let limit = Duration::from_millis(200);
    let tries = |slow: usize| async move {
        let mut tries = 0;
        assert_takes_less(limit, async || {
            tries += 1;
            if tries <= slow {
                tokio::time::sleep(limit).await;
            }
        })
        .await;
        tries
    };
    assert_eq!(tries(1).await, 2);
    assert!(AssertUnwindSafe(tries(TRIES)).catch_unwind().await.is_err());
}
