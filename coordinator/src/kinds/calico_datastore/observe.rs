//! Reads the cluster and both stores: the facts for the checks and the plan, and what a pass needs. Changes nothing.

mod manifest_objects;

use std::sync::Arc;

use api::migration::{AutomaticRollback, CalicoDatastore, CalicoDatastoreStatus, Direction};
use calico_datastore::cluster::calico::Calico;
use calico_datastore::cluster::checks::{OWN_NAMESPACE_PERMISSIONS, PERMISSIONS};
use calico_datastore::cluster::detect::detect;
use calico_datastore::cluster::facts::{ClusterFacts, Converted, StoreFacts};
use calico_datastore::cluster::manifest::Name;
use calico_datastore::cluster::nodes::{CalicoPod, NodeView};
use calico_datastore::cluster::view::StoresView;
use calico_datastore::controller_objects::ControllerObjects;
use calico_datastore::run::record::{Phase, Record};
use calico_datastore::sources::Source;
use datastore::error::StoreError;
use datastore::stores::Stores;
use engine::cluster;
use engine::drain::Pod;
use engine::evict::PodName;
use serde_json::Value;

use self::manifest_objects::read_manifest_objects;
use super::manifest::manifest;
use super::objects::{get, named};
use super::pass::Pass;
use super::pods::{self, Waiting};
use super::read_cache::{ReadCache, ReadRequest};
use super::saved::Saved;
use super::{controllers_objects, options};
use crate::cache::Cache;
use crate::context::Context;
use crate::failure::Failure as _;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::pod_index::Index;
use crate::read_error::ReadError;
use crate::snapshot::node_order;
use crate::{facts, read};

/// The facts that the checks and the plan need.
pub async fn cluster(
    context: &Context,
    cache: &Cache,
    reads: &mut ReadCache,
    kind: &CalicoDatastore,
    by: ReadRequest,
) -> Result<ClusterFacts, PassError> {
    let nodes = cache.nodes.state();
    let nodes: Vec<_> = nodes.iter().map(|found| facts::nodes::node(found)).collect();
    let manifest = manifest(&kind.manifest);
    let mut cluster = ClusterFacts {
        nodes: nodes
            .into_iter()
            .filter(|node| !node.is_windows())
            .map(|node| (node.name.clone(), node))
            .collect(),
        without_network: pods::without_network(cache)
            .into_iter()
            .map(|pod| pod.key)
            .collect(),
        kubernetes_version: version(context).await?,
        ..ClusterFacts::default()
    };
    cluster.permissions = read::permissions(context, &PERMISSIONS).await?;
    let at_home = read::permissions_in(context, &OWN_NAMESPACE_PERMISSIONS, &context.namespace).await?;
    cluster.permissions.extend(at_home);
    cluster.policies = read::policies(context).await?;
    cluster.webhooks = webhooks(context, cache).await?;
    if let Ok(manifest) = &manifest {
        read_manifest_objects(context, cache, manifest, &mut cluster).await?;
    }
    cluster.manifest = Some(manifest);
    if let Ok(settings) = detect(&options(kind), &cluster) {
        let mut read = reads
            .facts(context, &settings.etcd_v2.value, &settings.etcd_v3.value, by)
            .await;
        if let Ok(StoreFacts {
            conversion: Ok(converted),
            ..
        }) = &mut read
        {
            match left_to_controllers(context, converted).await {
                Ok(()) => {}
                // A missing permission is a finding of its own.
                Err(error) if error.refusal().is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
        cluster.stores = Some(read);
    }
    Ok(cluster)
}

/// Finds what the controllers of v3 write for the objects of this cluster, and the objects for which they cannot write anything.
async fn left_to_controllers(context: &Context, converted: &mut Converted) -> Result<(), ReadError> {
    if converted.remaining.is_empty() {
        return Ok(());
    }
    let sources = controllers_objects::sources(context, &converted.remaining).await?;
    converted.remaining = ControllerObjects::of_sources(&sources);
    let flawed = |source: Source| Some((source.origin, source.flaw?));
    converted.flawed = sources.into_iter().filter_map(flawed).collect();
    Ok(())
}

/// Fail-closed webhooks, with the pods that serve them.
async fn webhooks(context: &Context, cache: &Cache) -> Result<Vec<cluster::Webhook>, ReadError> {
    let webhooks = read::webhooks(context).await?;
    Ok(webhooks.behind(&cache.pods.index().pods()))
}

async fn version(context: &Context) -> Result<String, ReadError> {
    let found = context
        .client
        .apiserver_version()
        .await
        .map_err(|source| ReadError::of("asking for", "the version of the API server", source))?;
    Ok(found.git_version)
}

/// The observed objects of the cluster.
pub(super) struct Observed {
    /// The `DaemonSet`.
    pub daemon_set: Value,
    /// The Deployment of the controllers.
    pub controllers: Option<Value>,
    /// The `ConfigMap`.
    pub configuration: Option<Value>,
    /// Every pod.
    pub pods: Arc<Index>,
    /// Pods that wait for a network.
    pub waiting: Vec<Waiting>,
    /// The state of calico-node on every node.
    pub nodes: Vec<NodeView>,
}

impl Pass<'_> {
    /// Reads the objects. `None` when the `DaemonSet` does not exist.
    pub(super) async fn observe(&self, known: &CalicoDatastoreStatus) -> Result<Option<Observed>, ReadError> {
        let read = async |name: Option<Name>| match name {
            Some(name) => get(self.context, &name).await,
            None => Ok(None),
        };
        let settings = &known.settings;
        let (daemon_set, controllers, configuration) = tokio::try_join!(
            read(named("DaemonSet", &settings.daemon_set.value)),
            read(named("Deployment", &settings.controllers.value)),
            read(named("ConfigMap", &settings.configuration.value)),
        )?;
        let Some(daemon_set) = daemon_set else {
            return Ok(None);
        };
        let pods = self.cache.pods.index();
        let nodes = self.nodes(&pods, &settings.daemon_set.value);
        Ok(Some(Observed {
            daemon_set,
            controllers,
            configuration,
            waiting: pods::without_network(self.cache),
            nodes,
            pods,
        }))
    }

    fn nodes(&self, pods: &Index, key: &str) -> Vec<NodeView> {
        let order = node_order(self.snapshot, &self.context.node_name);
        let views = order.into_iter().map(|name| NodeView {
            ready: self
                .snapshot
                .nodes
                .get(&name)
                .is_some_and(|node| facts::nodes::is_ready(node)),
            pods: pods
                .on(&name)
                .iter()
                .filter(|pod| pods::is_of_daemon_set(pod, key))
                .map(|pod| calico_pod(pods, pod, self.saved))
                .collect(),
            name,
        });
        // A node without a pod of calico-node counts only when it had one before: that pod is missing.
        views
            .filter(|view| !view.pods.is_empty() || self.saved.nodes.contains(&view.name))
            .collect()
    }

    /// Reads both stores; an error says why they could not be read, with a hint.
    pub(super) async fn ask<T>(
        &self,
        memory: &mut Memory,
        known: &CalicoDatastoreStatus,
        question: impl AsyncFnOnce(&Stores) -> Result<T, StoreError>,
    ) -> Result<T, String> {
        let (v2, v3) = (&known.settings.etcd_v2.value, &known.settings.etcd_v3.value);
        let asked = memory
            .kinds
            .of::<ReadCache>()
            .read(self.context, v2, v3, question);
        asked.await.map_err(|problem| problem.to_string())
    }

    /// The state of both stores, or why it is unknown. The fields of the record are copied to the status.
    pub(super) async fn stores(
        &self,
        memory: &mut Memory,
        known: &mut CalicoDatastoreStatus,
    ) -> Result<StoresView, String> {
        let (record, mut view) = self.ask(memory, known, read_stores).await?;
        self.copy_record(known, record.as_ref(), &view);
        view.is_ours = record.is_some_and(|record| known.record == Some(record.id));
        Ok(view)
    }

    fn copy_record(&self, known: &mut CalicoDatastoreStatus, record: Option<&Record>, view: &StoresView) {
        let is_paused = view.is_paused();
        known.record_phase = record.map(|record| record.phase.to_string());
        known.paused_since = record
            .filter(|_| is_paused)
            .map(|record| record.paused_at.unwrap_or(record.started_at));
        known.paused_until = record.filter(|_| is_paused).map(|record| record.abort_at);
        if view.phase == Some(Phase::Completed) && view.is_past_the_point_of_no_return() {
            known.opened_at = known.opened_at.or(Some(self.now));
        }
        // Before the backup this migration has started nothing.
        let Some(record) = record.filter(|_| known.backup.is_some()) else {
            return;
        };
        let is_ours = known.record.as_ref() == Some(&record.id);
        match record.phase {
            // An aborted record from before this migration does not concern it.
            Phase::Aborted if is_ours && self.direction(known) == Direction::Forward => {
                let why = record
                    .why
                    .clone()
                    .unwrap_or_else(|| "another program has rolled back the conversion".to_owned());
                known.automatic_rollback = Some(AutomaticRollback {
                    at: self.now,
                    reason: why,
                });
            }
            Phase::Aborted => {}
            Phase::Pausing
            | Phase::Paused
            | Phase::Writing
            | Phase::Written
            | Phase::Verified
            | Phase::Completing
            | Phase::Completed
            | Phase::Aborting => known.record = Some(record.id.clone()),
        }
    }
}

async fn read_stores(stores: &Stores) -> Result<(Option<Record>, StoresView), StoreError> {
    // v2 first, so that the record is not older than the flag.
    let v2 = stores.ready_v2().await?;
    let (recorded, information) = tokio::try_join!(stores.record(), stores.cluster_information())?;
    let record = recorded.map(|recorded| recorded.record);
    let view = StoresView {
        phase: record.as_ref().map(|record| record.phase),
        v2,
        v3: datastore::stores::ready_v3(information.as_ref().map(|(_, value)| value))?,
        abort_at: record.as_ref().map(|record| record.abort_at),
        nodes_of_v3: record.as_ref().is_some_and(|record| record.nodes_of_v3),
        is_ours: false,
    };
    Ok((record, view))
}

/// A pod of calico-node as the decision needs it.
fn calico_pod(pods: &Index, pod: &Pod, saved: &Saved) -> CalicoPod {
    let image = pods::image(pods, pod);
    let runs = [Calico::V3, Calico::V2]
        .into_iter()
        .find(|calico| saved.image(*calico) == image);
    CalicoPod {
        name: PodName {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        runs,
        ready: pod.ready,
        terminating: pod.deleted_at.is_some(),
    }
}
