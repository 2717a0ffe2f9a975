//! Workloads that make pods again, as three watches tell of them: of each only what decisions read. Watched while a Migration needs them. A
//! cluster keeps ten `ReplicaSet`s of every Deployment, each with a whole pod template: lists of them, every few seconds, would be most of
//! what the coordinator receives.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use plan::moves::{Workload, WorkloadFacts};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::warn;

use crate::facts::workloads::{Known, deployment, replica_set, stateful_set};
use crate::lenient::plain;
use crate::watching;

/// How long a pass waits for the first lists: a later pass looks again.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// The workloads. Cloning shares them.
#[derive(Clone, Default)]
pub struct WorkloadStore(Arc<Shared>);

#[derive(Default)]
struct Shared {
    watches: Mutex<Option<JoinSet<()>>>,
    deployments: Watched,
    stateful_sets: Watched,
    replica_sets: Watched,
}

/// A workload, and what is known of it; no facts where it is counted with another one.
type Read = (Workload, Option<WorkloadFacts>);

/// Workloads of one kind.
#[derive(Default)]
struct Watched {
    workloads: Mutex<Workloads>,
    filled: watch::Sender<bool>,
}

#[derive(Default)]
struct Workloads {
    known: BTreeMap<Workload, WorkloadFacts>,
    /// Those of a list that has not come to its end.
    listed: Option<BTreeMap<Workload, WorkloadFacts>>,
}

impl Watched {
    /// Takes in what the watch tells. Whether decisions may read something else now.
    fn keep(&self, event: Event<Read>) -> bool {
        let mut workloads = lock(&self.workloads);
        match event {
            Event::Init => {
                workloads.listed = Some(BTreeMap::new());
                false
            }
            Event::InitApply((workload, facts)) => {
                let listed = workloads.listed.get_or_insert_default();
                listed.extend(facts.map(|facts| (workload, facts)));
                false
            }
            Event::InitDone => {
                let Some(listed) = workloads.listed.take() else {
                    return false;
                };
                let is_first = !self.filled.send_replace(true);
                let is_same = workloads.known == listed;
                workloads.known = listed;
                is_first || !is_same
            }
            Event::Apply((workload, Some(facts))) => {
                let before = workloads.known.insert(workload, facts.clone());
                before != Some(facts)
            }
            // A ReplicaSet that a Deployment has taken over is counted with that.
            Event::Apply((workload, None)) | Event::Delete((workload, _)) => {
                workloads.known.remove(&workload).is_some()
            }
        }
    }

    async fn is_filled(&self) {
        // The sender lives as long as the store does.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    fn forget(&self) {
        *lock(&self.workloads) = Workloads::default();
        self.filled.send_replace(false);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change of it is whole before something can fail.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same event, of what is read of its object.
fn projected<K>(event: Event<K>, read: impl Fn(&K) -> Read) -> Event<Read> {
    match event {
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(read(&object)),
        Event::InitDone => Event::InitDone,
        Event::Apply(object) => Event::Apply(read(&object)),
        Event::Delete(object) => Event::Delete(read(&object)),
    }
}

fn all_of((workload, facts): Known) -> Read {
    (workload, Some(facts))
}

impl WorkloadStore {
    /// Workloads that are there already.
    pub fn of(
        deployments: impl IntoIterator<Item = Deployment>,
        stateful_sets: impl IntoIterator<Item = StatefulSet>,
        replica_sets: impl IntoIterator<Item = ReplicaSet>,
    ) -> Self {
        let store = Self::default();
        let Shared {
            watches: _,
            deployments: of_deployments,
            stateful_sets: of_stateful_sets,
            replica_sets: of_replica_sets,
        } = store.0.as_ref();
        for object in deployments {
            of_deployments.keep(Event::Apply(all_of(deployment(&object))));
        }
        for object in stateful_sets {
            of_stateful_sets.keep(Event::Apply(all_of(stateful_set(&object))));
        }
        for object in replica_sets {
            of_replica_sets.keep(Event::Apply(replica_set(&object)));
        }
        for watched in [of_deployments, of_stateful_sets, of_replica_sets] {
            watched.filled.send_replace(true);
        }
        store
    }

    /// The workloads as they are known now; `None` where the watches have not told of all there is. The first call starts them.
    pub async fn workloads(
        &self,
        client: &Client,
        changed: &Arc<Notify>,
    ) -> Option<BTreeMap<Workload, WorkloadFacts>> {
        self.start(client, changed);
        let all = [&self.0.deployments, &self.0.stateful_sets, &self.0.replica_sets];
        let filled = futures::future::join_all(all.map(Watched::is_filled));
        tokio::time::timeout(FIRST_LIST, filled).await.ok()?;
        let mut workloads = BTreeMap::new();
        for watched in all {
            workloads.extend(lock(&watched.workloads).known.clone());
        }
        Some(workloads)
    }

    fn start(&self, client: &Client, changed: &Arc<Notify>) {
        let mut watches = lock(&self.0.watches);
        match watches.as_mut() {
            // A watch that has ended tells nothing any more: all begin again, and what is known stays until their lists have come.
            Some(tasks) => match tasks.try_join_next() {
                None => return,
                Some(ended) => warn!(?ended, "a watch of workloads ended; it is started again"),
            },
            None if *self.0.deployments.filled.borrow() => return,
            None => {}
        }
        let mut starting = Starting {
            store: self,
            client,
            changed,
            tasks: JoinSet::new(),
        };
        starting.watch(
            "Deployment",
            |shared| &shared.deployments,
            |object: &Deployment| all_of(deployment(object)),
        );
        starting.watch(
            "StatefulSet",
            |shared| &shared.stateful_sets,
            |object: &StatefulSet| all_of(stateful_set(object)),
        );
        starting.watch("ReplicaSet", |shared| &shared.replica_sets, replica_set);
        *watches = Some(starting.tasks);
    }

    /// Ends the watches and lets go what they told: no Migration needs it any more, or another process leads.
    pub fn stop(&self) {
        if lock(&self.0.watches).take().is_some() {
            for watched in [&self.0.deployments, &self.0.stateful_sets, &self.0.replica_sets] {
                watched.forget();
            }
        }
    }
}

/// Watches that are being started.
struct Starting<'a> {
    store: &'a WorkloadStore,
    client: &'a Client,
    changed: &'a Arc<Notify>,
    tasks: JoinSet<()>,
}

impl Starting<'_> {
    fn watch<K>(&mut self, kind: &'static str, watched: fn(&Shared) -> &Watched, read: fn(&K) -> Read)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let (store, changed) = (self.store.clone(), Arc::clone(self.changed));
        self.tasks
            .spawn(watching::watch(self.client.clone(), kind, move |event| {
                if watched(&store.0).keep(projected(plain(event), read)) {
                    changed.notify_one();
                }
            }));
    }
}

#[cfg(test)]
#[path = "workload_store_tests.rs"]
mod tests;
