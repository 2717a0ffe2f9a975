//! A watch that goes on for ever: its first list comes as a stream where the server has that, in pages elsewhere.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Config, Event, InitialListStrategy, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use crate::lenient::Lenient;
use crate::write::describe;

/// The first look after a broken watch comes after this time, and the time doubles up to [`SLOWEST`].
const SOONEST: Duration = Duration::from_millis(250);
/// There are eleven watches at most, and one leader: asking this often is no load, and a watch is back soon after an outage.
const SLOWEST: Duration = Duration::from_secs(2);
/// So many whole objects of a list are in memory at once, where the server streams none: each may have 1.5 MiB, and more as text.
const PAGE: u32 = 50;

/// When a broken watch is started again.
#[derive(Clone, Debug)]
struct Soon {
    next: Duration,
}

impl Default for Soon {
    fn default() -> Self {
        Self { next: SOONEST }
    }
}

impl Iterator for Soon {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = self.next;
        self.next = (now * 2).min(SLOWEST);
        Some(now)
    }
}

impl Backoff for Soon {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Watches every object of a kind, and hands each event on. An object that cannot be read in full is handed on as far as it can.
///
/// A watch that breaks is started again, with back-off, for ever: losing the API is a normal state.
pub async fn watch<K>(client: Client, kind: &'static str, keep: impl Fn(Event<Lenient<K>>))
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api = Api::<Lenient<K>>::all(client);
    let mut config = Config::default().page_size(PAGE).streaming_lists();
    loop {
        let events = watcher(api.clone(), config.clone()).backoff(Soon::default());
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    tell(&event);
                    keep(event);
                }
                Err(error) if is_without_streams(&error) && streams(&config) => {
                    info!(kind, "the API server streams no lists: they are read in pages");
                    config.initial_list_strategy = InitialListStrategy::ListWatch;
                    break;
                }
                Err(error) => warn!(kind, error = %runtime::error::chain(&error), "watch broke"),
            }
        }
    }
}

/// Names an object that cannot be read in full.
fn tell<K: Resource<DynamicType = ()>>(event: &Event<Lenient<K>>) {
    match event {
        Event::Apply(read) | Event::InitApply(read) | Event::Delete(read) => {
            if let Some(words) = read.words() {
                let object = describe(&read.object);
                warn!(
                    object,
                    "it cannot be read in full, which costs decisions about it alone: {words}"
                );
            }
        }
        Event::Init | Event::InitDone => {}
    }
}

fn streams(config: &Config) -> bool {
    config.initial_list_strategy == InitialListStrategy::StreamingList
}

/// A server without streaming lists refuses the parameter as invalid; one that knows the parameter from another time, as a bad request.
fn is_without_streams(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if [400, 422].contains(&status.code))
}
