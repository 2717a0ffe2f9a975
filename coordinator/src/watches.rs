//! Watches that fill stores: those that run as long as the program does, and those that run while a Migration needs them.

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

/// How long a pass waits for the first lists: a later pass looks again.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// Starts watches.
pub struct Watches<'tasks> {
    /// The client of watches.
    pub client: &'tasks Client,
    /// Told when decisions may read something else.
    pub changed: &'tasks Arc<Notify>,
    /// Where the watches run.
    pub tasks: &'tasks mut JoinSet<()>,
}

impl Watches<'_> {
    /// Watches every object of a kind. `keep` takes in what the watch tells, and says whether decisions may read something else now.
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

/// The watches of one store, which run while a Migration needs them.
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
            // A watch that has ended tells nothing any more: all begin again, and what is known stays until their lists have come.
            Some(tasks) => match tasks.try_join_next() {
                None => return,
                Some(ended) => warn!(?ended, "a watch of {what} ended; it is started again"),
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

    /// Ends the watches. Whether they ran.
    pub fn stop(&self) -> bool {
        self.running().take().is_some()
    }

    fn running(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        // Every change of it is whole before something can fail.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the first lists of a store have come to their ends; `None` where that takes long.
pub async fn first_lists(filled: &[&watch::Sender<bool>]) -> Option<()> {
    let all = async {
        for filled in filled {
            // The senders live as long as the store does.
            let _ = filled.subscribe().wait_for(|filled| *filled).await;
        }
    };
    tokio::time::timeout(FIRST_LIST, all).await.ok()
}
