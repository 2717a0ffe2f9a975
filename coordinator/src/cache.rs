//! What is watched: stores of every kind that a decision looks at, and a signal when one of them changes.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use api::Migration;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::guarded::NodeMigrations;
use crate::lenient::{Lenient, plain};
use crate::pod_index::PodStore;
use crate::service_cidr::index::{Index, ServiceStore};
use crate::store::{Kept, Store};
use crate::watching::watch;

/// Stores of every kind that a decision looks at. Cloning shares them.
#[derive(Clone)]
pub struct Cache {
    stores: Stores,
    changed: Arc<Notify>,
}

/// The stores.
#[derive(Clone)]
pub struct Stores {
    /// Migrations; one that does not parse is kept as its error, so that it can be told.
    pub migrations: Store<DeserializeGuard<Migration>>,
    /// `NodeMigration`s, those without a status whose status is not understood.
    pub node_migrations: NodeMigrations,
    /// Nodes.
    pub nodes: Store<Node>,
    /// Pods of every namespace.
    pub pods: PodStore,
    /// `DaemonSet`s of every namespace.
    pub daemon_sets: Store<DaemonSet>,
    /// `PodDisruptionBudget`s of every namespace.
    pub budgets: Store<PodDisruptionBudget>,
    /// Services of every namespace, watched while a Migration needs them: [`Cache::services`].
    pub services: ServiceStore,
}

impl Deref for Cache {
    type Target = Stores;

    fn deref(&self) -> &Stores {
        &self.stores
    }
}

/// Starts the watches of a cache.
struct Watches<'tasks> {
    client: &'tasks Client,
    changed: &'tasks Arc<Notify>,
    tasks: &'tasks mut JoinSet<()>,
}

impl Watches<'_> {
    fn start<K>(&mut self, kind: &'static str, keep: impl Fn(Event<Lenient<K>>) -> bool + Send + 'static)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let changed = Arc::clone(self.changed);
        self.tasks.spawn(watch(self.client.clone(), kind, move |event| {
            if keep(event) {
                changed.notify_one();
            }
        }));
    }

    fn store<K>(&mut self, kind: &'static str) -> Store<K>
    where
        K: Kept + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let store = Store::default();
        let kept = store.clone();
        self.start(kind, move |event| kept.keep(plain(event)));
        store
    }
}

impl Cache {
    /// Starts the watches in `tasks`. `namespace` is our own.
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
            services: ServiceStore::default(),
        };
        Self { stores, changed }
    }

    /// Stores that somebody else fills.
    pub fn of(stores: Stores) -> Self {
        Self {
            stores,
            changed: Arc::new(Notify::new()),
        }
    }

    /// Waits until every store has been filled once.
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

    /// Every Service, watched from now on until [`ServiceStore::stop`]; `None` where the watches have not told of all there is yet.
    pub async fn services(&self, client: &Client) -> Option<Arc<Index>> {
        self.stores.services.index(client, &self.changed).await
    }

    /// Lets the next pass begin at once.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Waits until something changed since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
