//! Watched objects: a store for every resource that a decision reads, and a signal for each change.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use api::Migration;
use engine::moves::{Workload, WorkloadFacts};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use kube::core::DeserializeGuard;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::facts::workloads::daemon_set;
use crate::guarded::NodeMigrations;
use crate::kind_stores::{KindStore, KindStores};
use crate::lenient::plain;
use crate::pod_index::PodStore;
use crate::store::{Store, Stored};
use crate::watches::Watches;
use crate::workload_store::WorkloadStore;

/// Watches that only some kinds of Migration need. A watch starts when its objects are first read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionalWatches {
    /// The store that only this kind has, by its type.
    pub of_kind: Option<TypeId>,
    /// Deployments, `ReplicaSets` and `StatefulSets`.
    pub workloads: bool,
}

/// A store for every resource that a decision reads. Clones share the stores.
#[derive(Clone)]
pub struct Cache {
    stores: Stores,
    changed: Arc<Notify>,
}

/// The stores.
#[derive(Clone)]
pub struct Stores {
    /// Migrations; one that does not parse is kept as its error, so that the error can be reported.
    pub migrations: Store<DeserializeGuard<Migration>>,
    /// `NodeMigration`s; one with an unreadable status is kept without it.
    pub node_migrations: NodeMigrations,
    /// Nodes.
    pub nodes: Store<Node>,
    /// Pods of every namespace.
    pub pods: PodStore,
    /// `DaemonSet`s of every namespace.
    pub daemon_sets: Store<DaemonSet>,
    /// `PodDisruptionBudget`s of every namespace.
    pub budgets: Store<PodDisruptionBudget>,
    /// Workloads that recreate pods, watched while a Migration needs them: see [`Cache::workloads`].
    pub workloads: WorkloadStore,
    /// Stores that one kind has: see `Cache::of_kind`.
    pub kinds: KindStores,
}

impl Deref for Cache {
    type Target = Stores;

    fn deref(&self) -> &Stores {
        &self.stores
    }
}

impl Watches<'_> {
    fn store<K>(&mut self, kind: &'static str) -> Store<K>
    where
        K: Stored + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let store = Store::default();
        let kept = store.clone();
        self.start(kind, move |event| kept.apply(plain(event)));
        store
    }
}

impl Cache {
    /// Starts the watches in `tasks`. `namespace` is the coordinator's own.
    pub fn start(client: &Client, namespace: &str, tasks: &mut JoinSet<()>) -> Self {
        let changed = Arc::new(Notify::new());
        let mut watches = Watches {
            client,
            changed: &changed,
            tasks,
        };
        let pods = PodStore::new(namespace);
        let kept = pods.clone();
        watches.start("Pod", move |event| kept.keep(event));
        let stores = Stores {
            migrations: watches.store("Migration"),
            node_migrations: NodeMigrations::in_store(watches.store("NodeMigration")),
            nodes: watches.store("Node"),
            pods,
            daemon_sets: watches.store("DaemonSet"),
            budgets: watches.store("PodDisruptionBudget"),
            workloads: WorkloadStore::default(),
            kinds: KindStores::default(),
        };
        Self { stores, changed }
    }

    /// A cache of stores that the caller fills.
    pub fn of(stores: Stores) -> Self {
        Self {
            stores,
            changed: Arc::new(Notify::new()),
        }
    }

    /// Waits until every store has received its first list.
    pub async fn ready(&self) {
        tokio::join!(
            self.migrations.filled(),
            self.node_migrations.filled(),
            self.nodes.filled(),
            self.pods.filled(),
            self.daemon_sets.filled(),
            self.budgets.filled(),
        );
    }

    /// The store of this type, which only one kind has.
    pub(crate) fn of_kind<S: KindStore + Clone + Default>(&self) -> S {
        self.kinds.of()
    }

    /// The signal that starts the next pass.
    pub(crate) fn signal(&self) -> &Arc<Notify> {
        &self.changed
    }

    /// Every workload that recreates pods, watched from now on until `WorkloadStore::stop`; `None` until the first lists are
    /// complete.
    pub async fn workloads(&self, client: &Client) -> Option<BTreeMap<Workload, WorkloadFacts>> {
        let mut workloads = self.stores.workloads.workloads(client, &self.changed).await?;
        workloads.extend(self.of_daemon_sets());
        Some(workloads)
    }

    /// The same for `DaemonSet`s, which are always watched.
    pub fn of_daemon_sets(&self) -> Vec<(Workload, WorkloadFacts)> {
        let sets = self.daemon_sets.state();
        sets.iter().map(|object| daemon_set(object)).collect()
    }

    /// Ends watches that only some kinds of Migration need, except these.
    pub fn keep_watches(&self, needed: OptionalWatches) {
        self.kinds.stop_except(needed.of_kind);
        if !needed.workloads {
            self.stores.workloads.stop();
        }
    }

    /// Starts the next pass at once.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Waits for a change since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
