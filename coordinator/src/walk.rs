//! The harness of the walks with crashes: a scenario runs once undisturbed, and then once for each of its writes, after which the
//! API server is unreachable and the coordinator dies. The next process has to come to the same end.

use serde_json::Value;

use crate::fake_api::FakeApi;

/// A run without a crash, and its changes in order: method and path, body.
pub struct Undisturbed {
    pub api: FakeApi,
    pub changes: Vec<(String, Value)>,
}

/// Runs the scenario from `start` to the end without a crash.
pub async fn undisturbed(
    start: impl AsyncFn() -> FakeApi,
    to_the_end: impl AsyncFn(&FakeApi),
) -> Undisturbed {
    let api = start().await;
    to_the_end(&api).await;
    let changes = api.take_changes();
    Undisturbed { api, changes }
}

/// For each of these numbers of writes: runs the scenario from `start`, crashes after them, and lets `then` run the next process
/// to the end and check the end. `then` gets words that name the crash. Returns the number of crashes.
pub async fn crash_after_each(
    writes: impl IntoIterator<Item = usize>,
    start: impl AsyncFn() -> FakeApi,
    crash_after: impl AsyncFn(&FakeApi, usize),
    then: impl AsyncFn(&FakeApi, &str),
) -> usize {
    let mut crashes = 0;
    for last in writes {
        let api = start().await;
        crash_after(&api, last).await;
        then(&api, &format!("after a crash at write {last}")).await;
        crashes += 1;
    }
    crashes
}
