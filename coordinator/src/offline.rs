//! The coordinator beside an API server in memory: the same passes, without watches, without a Lease, and without a cluster.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Config, ResourceExt};
use memory_api::Objects;
use serde::de::DeserializeOwned;

use crate::cache::{Cache, Stores};
use crate::context::Context;
use crate::events::EventRecorder;
use crate::failure::{Cause, Failure as _};
use crate::guarded::NodeMigrations;
use crate::kind::Kind as _;
use crate::kind_stores::KindStores;
use crate::kinds::{self, with_kind};
use crate::lenient::Lenient;
use crate::memory::Memory;
use crate::memory_objects::read;
use crate::metrics::Metrics;
use crate::obstacles::Obstacles;
use crate::pass;
use crate::pod_index::PodStore;
use crate::store::{Store, Stored};
use crate::words::MessagePace;
use crate::workload_store::WorkloadStore;

/// Name of the coordinator in Events.
const NAME: &str = "offline";
/// An address that no host has (RFC 5737): nothing outside of the memory is asked.
const NO_SERVER: &str = "http://192.0.2.1";

/// Collections of which every object is in the stores, apart from replumb's own and those of single kinds.
pub const WATCHED: [&str; 7] = [
    "/api/v1/nodes",
    "/api/v1/pods",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
    "/apis/policy/v1/poddisruptionbudgets",
];

/// A coordinator whose API server is in memory.
pub struct Offline {
    context: Context,
    memory: Memory,
    /// The stores at a version of the objects.
    stores: Option<(u64, Cache)>,
}

impl Offline {
    /// A coordinator that reads and writes through `client`, which asks the same objects that the passes get. `namespace` is its
    /// own, `node_name` the node of its pod.
    ///
    /// # Errors
    ///
    /// The metrics cannot be registered.
    pub fn new(client: Client, namespace: &str, node_name: &str) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::new().context("registering metrics")?);
        let server = NO_SERVER.parse().context("parsing the address of no server")?;
        Ok(Self {
            context: Context {
                events: EventRecorder::new(client.clone(), NAME),
                obstacles: Obstacles::default(),
                pace: MessagePace::AT_ONCE,
                watching: client.clone(),
                background: client.clone(),
                client,
                config: Config::new(server),
                asks_other_servers: false,
                namespace: namespace.to_owned(),
                node_name: node_name.to_owned(),
                agent_image: api::names::AGENT.to_owned(),
                metrics,
            },
            memory: Memory::default(),
            stores: None,
        })
    }

    /// Creates the `NodeMigration`s of the Migration with this name, so that agents can report before the first pass.
    ///
    /// # Errors
    ///
    /// The objects cannot be read or written.
    pub async fn adopt(&mut self, objects: &Objects, migration: &str) -> anyhow::Result<()> {
        let cache = self.cache(objects)?;
        for guarded in cache.migrations.state() {
            if guarded.name_any() != migration {
                continue;
            }
            // A Migration that does not parse, or of an unknown kind, is reported by the pass.
            let Ok(found) = &guarded.0 else { continue };
            let Ok(kind) = found.spec.kind() else { continue };
            if !kinds::is_judged_offline(&kind) {
                bail!(
                    "Migration {migration}: its kind asks etcd or each API server itself, which no snapshot has: judge it in the cluster"
                );
            }
            with_kind!(kind, kind => kind.adopt(&self.context, &cache, found).await)
                .with_context(|| format!("creating the NodeMigrations of Migration {migration}"))?;
        }
        Ok(())
    }

    /// One pass over these objects. The cluster is read at every pass.
    ///
    /// # Errors
    ///
    /// An object is not of its kind, or a read or a write fails.
    pub async fn pass(&mut self, objects: &Objects) -> anyhow::Result<()> {
        let cache = self.cache(objects)?;
        self.memory.checked_at = None;
        match pass::pass(&self.context, &cache, &mut self.memory).await {
            // An earlier write of the same pass changed the object: the next pass sees the new state.
            Err(error) if matches!(error.root_cause(), Cause::Changed) => Ok(()),
            ended => ended.context("a pass"),
        }
    }

    fn cache(&mut self, objects: &Objects) -> anyhow::Result<Cache> {
        let version = objects.version();
        if let Some((of_version, known)) = &self.stores
            && *of_version == version
        {
            return Ok(known.clone());
        }
        let cache = cache(objects, &self.context.namespace)?;
        self.stores = Some((version, cache.clone()));
        Ok(cache)
    }
}

/// The stores as watches would have filled them. `namespace` is the coordinator's own.
pub(crate) fn cache(objects: &Objects, namespace: &str) -> anyhow::Result<Cache> {
    let stores = KindStores::default();
    kinds::fill_stores(objects, &stores)?;
    Ok(Cache::of(Stores {
        migrations: store(objects, "/apis/replumb.dev/v1alpha1/migrations/")?,
        node_migrations: NodeMigrations::in_store(store(
            objects,
            "/apis/replumb.dev/v1alpha1/nodemigrations/",
        )?),
        nodes: store(objects, "/api/v1/nodes/")?,
        pods: PodStore::of(
            namespace,
            read::<Lenient<Pod>>(objects, "/api/v1/namespaces/*/pods/")?,
        ),
        daemon_sets: store(objects, "/apis/apps/v1/namespaces/*/daemonsets/")?,
        budgets: store(objects, "/apis/policy/v1/namespaces/*/poddisruptionbudgets/")?,
        workloads: WorkloadStore::of(
            read(objects, "/apis/apps/v1/namespaces/*/deployments/")?,
            read(objects, "/apis/apps/v1/namespaces/*/statefulsets/")?,
            read(objects, "/apis/apps/v1/namespaces/*/replicasets/")?,
        ),
        kinds: stores,
    }))
}

fn store<K: Stored + DeserializeOwned>(objects: &Objects, path: &str) -> anyhow::Result<Store<K>> {
    read(objects, path).map(Store::of)
}
