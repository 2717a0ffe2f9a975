//! The cost of a pass in which nothing has changed since the one before: requests, and processor time.

use std::fmt;
use std::time::Duration;

use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::pass::pass;

/// Passes until nothing is written any more, and those that are measured.
const UNTIL_STILL: usize = 60;
const MEASURED: usize = 11;

/// The cost of one pass.
pub struct Cost {
    /// What the last pass asked the API server for.
    pub requests: Vec<String>,
    /// Processor times, the smallest first.
    times: Vec<Duration>,
}

impl fmt::Display for Cost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let median = self.times[self.times.len() / 2];
        let most = self.times[self.times.len() - 1];
        write!(
            formatter,
            "median {median:.1?}, most {most:.1?} of {} passes, {} requests each",
            self.times.len(),
            self.requests.len()
        )
    }
}

/// Passes until nothing is written any more, `world` moving after each; then as many again on the same stores.
pub async fn of_a_pass_without_change(api: &FakeApi, world: impl Fn(&FakeApi)) -> Cost {
    let context = api.context();
    let mut memory = Memory::default();
    let mut still = false;
    for _ in 0..UNTIL_STILL {
        api.take_changes();
        pass(&context, &api.cache(), &mut memory).await.unwrap();
        world(api);
        still = api.take_changes().is_empty();
        if still {
            break;
        }
    }
    assert!(still, "the world does not come to rest");
    let cache = api.cache();
    let mut times = Vec::new();
    for _ in 0..MEASURED {
        api.take_reads();
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

/// Processor time of this thread, by the kernel's scheduler.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the scheduler's figures");
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number of nanoseconds"))
}
