//! Watches that fill stores: permanent ones, and those that run while a Migration needs them.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::warn;

use crate::lenient::Lenient;
use crate::watching;

/// Time that a pass waits for the first lists; a later pass checks again.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// Starts watches.
pub struct Watches<'tasks> {
    /// The client for watches.
    pub client: &'tasks Client,
    /// Notified when decisions may read something new.
    pub changed: &'tasks Arc<Notify>,
    /// The tasks of the watches.
    pub tasks: &'tasks mut JoinSet<()>,
}

impl Watches<'_> {
    /// Watches every object of a kind. `keep` applies each event, and returns whether decisions may read something new.
    pub fn start<K>(&mut self, kind: &'static str, keep: impl Fn(Event<Lenient<K>>) -> bool + Send + 'static)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let changed = Arc::clone(self.changed);
        self.tasks
            .spawn(watching::watch(self.client.clone(), kind, move |event| {
                if keep(event) {
                    changed.notify_one();
                }
            }));
    }
}

/// The watches of one store, running while a Migration needs them.
#[derive(Default)]
pub struct OnDemand(Mutex<Option<JoinSet<()>>>);

impl OnDemand {
    /// Starts the watches of `what`, unless they run, or the store `is_filled` without them.
    pub fn start(
        &self,
        what: &str,
        is_filled: bool,
        client: &Client,
        changed: &Arc<Notify>,
        begin: impl FnOnce(&mut Watches<'_>),
    ) {
        let mut running = self.running();
        match running.as_mut() {
            // A watch that has ended delivers no events: all are restarted, and known objects stay until the new lists are
            // complete.
            Some(tasks) => match tasks.try_join_next() {
                None => return,
                Some(ended) => warn!(?ended, "a watch of {what} ended; all are restarted"),
            },
            None if is_filled => return,
            None => {}
        }
        let mut tasks = JoinSet::new();
        begin(&mut Watches {
            client,
            changed,
            tasks: &mut tasks,
        });
        *running = Some(tasks);
    }

    /// Ends the watches; returns whether they ran.
    pub fn stop(&self) -> bool {
        self.running().take().is_some()
    }

    fn running(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        // Every change is complete before a panic is possible.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the first lists of a store are complete; `None` if that takes too long.
pub async fn first_lists(filled: &[&watch::Sender<bool>]) -> Option<()> {
    let all = async {
        for filled in filled {
            // The senders live as long as the store.
            let _ = filled.subscribe().wait_for(|filled| *filled).await;
        }
    };
    tokio::time::timeout(FIRST_LIST, all).await.ok()
}
