//! A permanent watch: its first list is streamed where the server supports that, otherwise paged.

use std::fmt::Debug;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Event, ExponentialBackoff, InitialListStrategy, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use crate::lenient::Lenient;
use crate::write::describe;

/// Delay after the first failure of a watch. It doubles up to [`SLOWEST`].
const SOONEST: Duration = Duration::from_millis(250);
/// Longest delay. With at most eleven watches and one leader this is no load, and a watch is back soon after an outage.
const SLOWEST: Duration = Duration::from_secs(2);
/// Objects of a list in memory at once, without streaming: each may have 1.5 MiB in etcd, and more as text.
const PAGE: u32 = 50;

/// Delays between restarts of a watch, without end: the builder's default is three, after which the watch would be closed.
fn delays() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(SOONEST)
        .with_max_delay(SLOWEST)
        .without_max_times()
        .into()
}

/// Watches every object of a kind, and passes each event on. An object that is not fully readable is passed on as far as it is.
///
/// A broken watch is restarted, with back-off, without end: loss of the API is a normal state.
pub async fn watch<K>(client: Client, kind: &'static str, keep: impl Fn(Event<Lenient<K>>))
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api = Api::<Lenient<K>>::all(client);
    let mut config = Config::default().page_size(PAGE).streaming_lists();
    loop {
        let events = watcher(api.clone(), config.clone()).backoff(delays());
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    log_unreadable(&event);
                    keep(event);
                }
                Err(error) if is_without_streams(&error) && streams(&config) => {
                    info!(kind, "the API server does not stream lists; reading pages");
                    config.initial_list_strategy = InitialListStrategy::ListWatch;
                    break;
                }
                Err(error) => warn!(kind, error = %runtime::error::chain(&error), "watch failed"),
            }
        }
    }
}

/// Logs an object that is not fully readable.
fn log_unreadable<K: Resource<DynamicType = ()>>(event: &Event<Lenient<K>>) {
    match event {
        Event::Apply(read) | Event::InitApply(read) | Event::Delete(read) => {
            if let Some(words) = read.words() {
                let object = describe(&read.object);
                warn!(
                    object,
                    "object not fully readable; only decisions about it are affected: {words}"
                );
            }
        }
        Event::Init | Event::InitDone => {}
    }
}

fn streams(config: &Config) -> bool {
    config.initial_list_strategy == InitialListStrategy::StreamingList
}

/// Whether the server has no streaming lists: it answers that the parameter is invalid, or, in some versions, a bad request.
fn is_without_streams(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if [400, 422].contains(&status.code))
}

#[cfg(test)]
mod tests {
    use kube::runtime::utils::Backoff as _;

    use super::*;

    #[test]
    fn a_watch_is_restarted_without_end_and_soon_after_a_success() {
        let mut delays = delays();
        let mut next = || delays.next().map(|delay| delay.as_millis());
        assert_eq!(
            [next(), next(), next(), next()],
            [Some(250), Some(500), Some(1000), Some(2000)]
        );
        for _ in 0..10_000 {
            assert_eq!(next(), Some(2000));
        }
        delays.reset();
        assert_eq!(delays.next(), Some(SOONEST));
    }
}
