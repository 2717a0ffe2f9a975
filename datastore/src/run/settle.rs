//! Waits after the pause, limited by the monotonic clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A wait is checked again at this interval, because the clock can be set.
const RECHECK: Duration = Duration::from_secs(1);

/// The time after the pause in which v2 is not read, limited by the monotonic clock.
pub(super) struct Settle {
    whole: SignedDuration,
    begun: Option<Instant>,
}

impl Settle {
    pub(super) fn new(whole: SignedDuration) -> Self {
        Self { whole, begun: None }
    }

    /// Begins the wait; true on the first call.
    pub(super) fn begin(&mut self) -> bool {
        let is_first = self.begun.is_none();
        self.begun.get_or_insert_with(Instant::now);
        is_first
    }

    /// The duration for the decision: the whole wait, or zero when it is over.
    pub(super) fn remaining(&self) -> SignedDuration {
        let is_over = self
            .begun
            .is_some_and(|begun| begun.elapsed() >= self.whole.unsigned_abs());
        if is_over { SignedDuration::ZERO } else { self.whole }
    }
}

/// Waits until this time, at most [`RECHECK`].
pub(super) async fn wait(until: Timestamp) {
    let remaining = Timestamp::now().duration_until(until);
    if remaining.is_positive() {
        tokio::time::sleep(remaining.unsigned_abs().min(RECHECK)).await;
    }
}
