//! Whether Services, their endpoints, their addresses and the ranges are as they were when they were read: watches of their metadata say
//! so. A list of ten thousand Services in each pass would be most of what the API server does.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// What a watch has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Signal {
    /// Whether each change is told now: the first list has come to its end, and the watch has not broken since.
    followed: bool,
    /// Whether something has changed since it was asked last.
    changed: bool,
}

/// What the watch of one kind tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// A list begins, or the watch broke.
    Unknown,
    /// The list has come to its end.
    Listed,
    /// An object is another one now.
    Changed,
}

impl Signal {
    fn hear(&mut self, told: Told) {
        match told {
            Told::Unknown => self.followed = false,
            Told::Listed => {
                *self = Self {
                    followed: true,
                    changed: true,
                }
            }
            Told::Changed => self.changed = true,
        }
    }

    /// Whether what was read before the last question may be another now.
    fn ask(&mut self) -> bool {
        let changed = std::mem::take(&mut self.changed);
        changed || !self.followed
    }
}

/// Watches of every kind that is read. They end with this.
pub struct Watches {
    signals: Vec<Arc<Mutex<Signal>>>,
    tasks: JoinSet<()>,
}

impl Watches {
    /// Starts them.
    pub fn start(client: &Client) -> Self {
        let mut watches = Self {
            signals: Vec::new(),
            tasks: JoinSet::new(),
        };
        watches.follow::<Service>(client);
        watches.follow::<EndpointSlice>(client);
        // An API server that has these as v1beta1 alone is read in each pass: its watch does not begin.
        watches.follow::<IPAddress>(client);
        watches.follow::<ServiceCIDR>(client);
        watches
    }

    /// Whether anything may have changed since the last call. The call comes before the read: what changes during it is told by the next.
    pub fn changed(&self) -> bool {
        let mut changed = false;
        for signal in &self.signals {
            changed |= signal.lock().unwrap_or_else(PoisonError::into_inner).ask();
        }
        changed
    }

    fn follow<K>(&mut self, client: &Client)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let api = Api::<PartialObjectMeta<K>>::all(client.clone());
        let signal = Arc::<Mutex<Signal>>::default();
        self.signals.push(Arc::clone(&signal));
        self.tasks.spawn(async move {
            let events = watcher(api, Config::default()).default_backoff();
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                let told = match event {
                    Ok(Event::Init | Event::InitApply(_)) | Err(_) => Told::Unknown,
                    Ok(Event::InitDone) => Told::Listed,
                    Ok(Event::Apply(_) | Event::Delete(_)) => Told::Changed,
                };
                signal.lock().unwrap_or_else(PoisonError::into_inner).hear(told);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing_is_known(&[], true)]
    #[case::a_list_is_under_way(&[Told::Unknown], true)]
    #[case::listed(&[Told::Unknown, Told::Listed], true)]
    #[case::broken(&[Told::Listed, Told::Unknown], true)]
    #[case::broken_and_changed(&[Told::Listed, Told::Unknown, Told::Changed], true)]
    #[case::changed(&[Told::Listed, Told::Changed], true)]
    fn what_may_have_changed_is_read_again(#[case] told: &[Told], #[case] changed: bool) {
        let mut signal = Signal::default();
        for told in told {
            signal.hear(*told);
        }
        assert_eq!(signal.ask(), changed);
    }

    #[test]
    fn what_was_asked_for_is_as_it_was_until_something_is_told() {
        let mut signal = Signal::default();
        signal.hear(Told::Listed);
        assert!(signal.ask());
        assert!(!signal.ask());
        signal.hear(Told::Changed);
        assert!(signal.ask());
        assert!(!signal.ask());
        signal.hear(Told::Unknown);
        assert!(signal.ask() && signal.ask(), "a watch that broke tells nothing");
    }
}
