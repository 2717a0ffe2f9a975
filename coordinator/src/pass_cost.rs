//! Cost of a pass without a change since the previous one: requests and processor time.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::pass::pass;

/// Most passes until no write follows.
const UNTIL_STILL: usize = 300;
/// Number of measured passes.
const MEASURED: usize = 11;

/// Cost of the measured passes.
pub struct Cost {
    /// Requests to the API server of all passes.
    pub requests: Vec<String>,
    /// Processor times, in ascending order.
    times: Vec<Duration>,
}

impl fmt::Display for Cost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median = self.times[self.times.len() / 2];
        let most = self.times[self.times.len() - 1];
        write!(
            formatter,
            "median {median:.1?}, maximum {most:.1?} of {} passes, {} requests in total",
            self.times.len(),
            self.requests.len()
        )
    }
}

/// Runs passes until no write follows, with a step of `world` after each; then measures passes on the same stores.
pub async fn of_passes_without_change(api: &FakeApi, world: impl Fn(&FakeApi)) -> Cost {
    let context = api.context();
    let mut memory = Memory::default();
    let mut passes = 0;
    loop {
        pass(&context, &api.cache(), &mut memory).await.unwrap();
        world(api);
        if api.take_changes().is_empty() {
            break;
        }
        passes += 1;
        assert!(passes < UNTIL_STILL, "passes do not stop writing");
    }
    let cache = api.cache();
    api.take_reads();
    let mut times = Vec::new();
    for _ in 0..MEASURED {
        // Reads that are due each second are no cost of a pass, however slow the machine is.
        memory.drift_read_at = memory.drift_read_at.map(|_| Timestamp::now());
        let begun = processor_time();
        pass(&context, &cache, &mut memory).await.unwrap();
        times.push(processor_time().saturating_sub(begun));
    }
    times.sort_unstable();
    let changes = api.take_changes().into_iter().map(|(call, _)| call);
    Cost {
        requests: changes.chain(api.take_reads()).collect(),
        times,
    }
}

/// Processor time of this thread from the kernel's scheduler.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the scheduler's figures");
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number of nanoseconds"))
}
