//! What is watched: stores of every kind that a decision looks at, and a signal when one of them changes.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use api::{Migration, NodeMigration};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, Store};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::warn;

/// The first look after a broken watch comes after this time, and the time doubles up to [`SLOWEST`].
const SOONEST: Duration = Duration::from_millis(250);
/// There are six watches, and one leader: asking this often is no load, and after an outage nobody waits long.
const SLOWEST: Duration = Duration::from_secs(2);

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
    /// `NodeMigration`s.
    pub node_migrations: Store<NodeMigration>,
    /// Nodes.
    pub nodes: Store<Node>,
    /// Pods of every namespace.
    pub pods: Store<Pod>,
    /// `DaemonSet`s of every namespace.
    pub daemon_sets: Store<DaemonSet>,
    /// `PodDisruptionBudget`s of every namespace.
    pub budgets: Store<PodDisruptionBudget>,
}

impl Deref for Cache {
    type Target = Stores;

    fn deref(&self) -> &Stores {
        &self.stores
    }
}

macro_rules! watched {
    ($kind:ty, $client:expr, $changed:expr, $tasks:expr) => {{
        let (reader, writer) = reflector::store::<$kind>();
        let stream =
            reflector::reflector(writer, watcher(Api::<$kind>::all($client.clone()), watcher::Config::default()));
        let changed = Arc::clone($changed);
        $tasks.spawn(async move {
            // A watch that breaks is started again, with back-off, for ever: losing the API is a normal state.
            let mut stream = std::pin::pin!(stream.backoff(Soon::default()).touched_objects());
            while let Some(event) = stream.next().await {
                match event {
                    Ok(_) => changed.notify_one(),
                    Err(error) => warn!(kind = stringify!($kind), error = %crate::tell::chain(&error), "watch broke"),
                }
            }
        });
        reader
    }};
}

impl Cache {
    /// Starts the watches in `tasks`.
    pub fn start(client: &Client, tasks: &mut JoinSet<()>) -> Self {
        let changed = Arc::new(Notify::new());
        let stores = Stores {
            migrations: watched!(DeserializeGuard<Migration>, client, &changed, tasks),
            node_migrations: watched!(NodeMigration, client, &changed, tasks),
            nodes: watched!(Node, client, &changed, tasks),
            pods: watched!(Pod, client, &changed, tasks),
            daemon_sets: watched!(DaemonSet, client, &changed, tasks),
            budgets: watched!(PodDisruptionBudget, client, &changed, tasks),
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
    pub async fn ready(&self) -> bool {
        let (migrations, node_migrations, nodes, pods, daemon_sets, budgets) = tokio::join!(
            self.migrations.wait_until_ready(),
            self.node_migrations.wait_until_ready(),
            self.nodes.wait_until_ready(),
            self.pods.wait_until_ready(),
            self.daemon_sets.wait_until_ready(),
            self.budgets.wait_until_ready(),
        );
        migrations
            .and(node_migrations)
            .and(nodes)
            .and(pods)
            .and(daemon_sets)
            .and(budgets)
            .is_ok()
    }

    /// Waits until something changed since the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
