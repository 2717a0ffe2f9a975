//! Workloads that recreate pods, from three watches, reduced to the fields that decisions read. Watched while a Migration needs
//! them. A cluster keeps ten `ReplicaSet`s for every Deployment, each with a pod template: repeated lists would be most of the
//! coordinator's traffic.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::moves::{Workload, WorkloadFacts};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};

use crate::facts::workloads::{Known, deployment, replica_set, stateful_set};
use crate::lenient::plain;
use crate::watches::{OnDemand, Watches, first_lists};

/// The workloads. Clones share them.
#[derive(Clone, Default)]
pub struct WorkloadStore(Arc<Shared>);

#[derive(Default)]
struct Shared {
    watches: OnDemand,
    deployments: Watched,
    stateful_sets: Watched,
    replica_sets: Watched,
}

/// A workload and its facts; no facts if it is counted with another workload.
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
    /// Workloads of an incomplete list.
    listed: Option<BTreeMap<Workload, WorkloadFacts>>,
}

impl Watched {
    /// Applies an event of the watch. Returns whether decisions may read something new.
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
            // A ReplicaSet owned by a Deployment is counted with that.
            Event::Apply((workload, None)) | Event::Delete((workload, _)) => {
                workloads.known.remove(&workload).is_some()
            }
        }
    }

    fn forget(&self) {
        *lock(&self.workloads) = Workloads::default();
        self.filled.send_replace(false);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before a panic is possible.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same event with the facts of its object.
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
    /// A store with these workloads.
    pub fn of(
        deployments: impl IntoIterator<Item = Deployment>,
        stateful_sets: impl IntoIterator<Item = StatefulSet>,
        replica_sets: impl IntoIterator<Item = ReplicaSet>,
    ) -> Self {
        let store = Self::default();
        for object in deployments {
            store
                .0
                .deployments
                .keep(Event::Apply(all_of(deployment(&object))));
        }
        for object in stateful_sets {
            store
                .0
                .stateful_sets
                .keep(Event::Apply(all_of(stateful_set(&object))));
        }
        for object in replica_sets {
            store.0.replica_sets.keep(Event::Apply(replica_set(&object)));
        }
        for watched in store.each() {
            watched.filled.send_replace(true);
        }
        store
    }

    /// The known workloads; `None` until all lists are complete. The first call starts the watches.
    pub async fn workloads(
        &self,
        client: &Client,
        changed: &Arc<Notify>,
    ) -> Option<BTreeMap<Workload, WorkloadFacts>> {
        let all = self.each();
        let is_filled = all.iter().all(|watched| *watched.filled.borrow());
        self.0
            .watches
            .start("workloads", is_filled, client, changed, |watches| {
                self.watch(
                    watches,
                    "Deployment",
                    |shared| &shared.deployments,
                    |object: &Deployment| all_of(deployment(object)),
                );
                self.watch(
                    watches,
                    "StatefulSet",
                    |shared| &shared.stateful_sets,
                    |object: &StatefulSet| all_of(stateful_set(object)),
                );
                self.watch(watches, "ReplicaSet", |shared| &shared.replica_sets, replica_set);
            });
        first_lists(&all.map(|watched| &watched.filled)).await?;
        let mut workloads = BTreeMap::new();
        for watched in all {
            workloads.extend(lock(&watched.workloads).known.clone());
        }
        Some(workloads)
    }

    fn watch<K>(
        &self,
        watches: &mut Watches<'_>,
        kind: &'static str,
        watched: fn(&Shared) -> &Watched,
        read: fn(&K) -> Read,
    ) where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let store = self.clone();
        watches.start(kind, move |event| {
            watched(&store.0).keep(projected(plain(event), read))
        });
    }

    fn each(&self) -> [&Watched; 3] {
        [&self.0.deployments, &self.0.stateful_sets, &self.0.replica_sets]
    }

    /// Ends the watches and forgets the workloads: no Migration needs them any more, or another process leads.
    pub fn stop(&self) {
        if self.0.watches.stop() {
            for watched in self.each() {
                watched.forget();
            }
        }
    }
}

#[cfg(test)]
mod tests;
