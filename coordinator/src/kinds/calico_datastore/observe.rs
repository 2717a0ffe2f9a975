//! The inputs of one pass's decision.

use std::sync::Arc;

use api::migration::{AutomaticRollback, CalicoDatastoreStatus, Direction};
use calico_datastore::cluster::calico::{Calico, Content, PerVersion};
use calico_datastore::cluster::manifest::{self, Name};
use calico_datastore::cluster::nodes::{CalicoPod, NodeView};
use calico_datastore::cluster::view::{
    ControllersView, ControllersWork, DaemonSetView, StoresView, View, Work,
};
use calico_datastore::run::record::{Phase, Record};
use datastore::error::StoreError;
use datastore::stores::Stores;
use engine::check::names;
use engine::drain::Pod;
use engine::evict::PodName;
use jiff::SignedDuration;
use serde_json::Value;

use super::ReadCache;
use super::objects::{get, named};
use super::pass::Pass;
use super::pods::{self, Waiting};
use super::saved::{Saved, on_delete, parts};
use crate::facts;
use crate::memory::Memory;
use crate::pod_index::Index;
use crate::snapshot::node_order;
use crate::write::WriteError;

/// For this time after v3 opened, a pod without an address counts as waiting for the network.
const PATIENCE: SignedDuration = SignedDuration::from_mins(10);

/// The observed objects of the cluster.
pub(super) struct Observed {
    /// The `DaemonSet`.
    pub daemon_set: Value,
    /// The Deployment of the controllers.
    pub controllers: Option<Value>,
    /// The `ConfigMap`.
    pub configuration: Option<Value>,
    pods: Arc<Index>,
    /// Pods that wait for a network.
    pub waiting: Vec<Waiting>,
    /// The state of calico-node on every node.
    pub nodes: Vec<NodeView>,
}

impl Pass<'_> {
    /// Reads the objects. `None` when the `DaemonSet` does not exist.
    pub(super) async fn observe(
        &self,
        known: &CalicoDatastoreStatus,
    ) -> Result<Option<Observed>, WriteError> {
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
        let (record, mut view) = self.ask(memory, known, read).await?;
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

    /// The whole view.
    pub(super) fn view<'pass>(
        &self,
        known: &CalicoDatastoreStatus,
        observed: &'pass Observed,
        stores: Result<StoresView, String>,
        controllers: Option<ControllersView>,
        controllers_work: ControllersWork,
        work: &'pass Work,
    ) -> View<'pass> {
        let saved = self.saved;
        View {
            direction: self.direction(known),
            is_backed_up: known.backup.is_some(),
            stores,
            configuration: configuration(saved, observed.configuration.as_ref()),
            daemon_set: daemon_set(saved, &observed.daemon_set),
            nodes: &observed.nodes,
            controllers,
            controllers_work,
            work,
            without_network: self.pods_without_network_since_open(known, observed),
            now: self.now,
        }
    }

    /// The state of the controllers.
    pub(super) fn controllers(
        &self,
        known: &CalicoDatastoreStatus,
        observed: &Observed,
    ) -> Option<ControllersView> {
        controllers(self.saved, observed.controllers.as_ref(), || {
            pods::controller_pods(&observed.pods, &known.settings.controllers.value)
        })
    }

    /// Pods that have waited since before v3 opened, except those that waited before the migration. After [`PATIENCE`] the
    /// network is not the reason for their wait.
    fn pods_without_network_since_open(
        &self,
        known: &CalicoDatastoreStatus,
        observed: &Observed,
    ) -> Option<String> {
        let opened_at = known
            .opened_at
            .filter(|opened| self.now.duration_since(*opened) < PATIENCE)?;
        let waits = |waiting: &&Waiting| {
            waiting.made.is_none_or(|made| made <= opened_at)
                && !self.saved.without_network.contains(&waiting.uid)
        };
        let left: Vec<&str> = observed
            .waiting
            .iter()
            .filter(waits)
            .map(|waiting| waiting.key.as_str())
            .collect();
        (!left.is_empty()).then(|| {
            format!(
                "pods that still wait for a network: {} ({})",
                left.len(),
                names(&left)
            )
        })
    }
}

async fn read(stores: &Stores) -> Result<(Option<Record>, StoresView), StoreError> {
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

fn configuration(saved: &Saved, there: Option<&Value>) -> Option<Content> {
    let known = saved.configuration.as_ref()?;
    Some(there.map_or(Content::Missing, |there| {
        Content::of(&manifest::texts(there), known)
    }))
}

fn daemon_set(saved: &Saved, there: &Value) -> DaemonSetView {
    let now = parts(there);
    let known = &saved.daemon_set;
    let template = PerVersion {
        v2: known.v2.template.clone(),
        v3: known.v3.template.clone(),
    };
    let strategy = PerVersion {
        v2: known.v2.strategy.clone(),
        v3: known.v3.strategy.clone(),
    };
    let number = |field: &str| there["status"][field].as_u64().unwrap_or_default();
    let missing = number("desiredNumberScheduled").saturating_sub(number("currentNumberScheduled"));
    DaemonSetView {
        template: Content::of(&now.template, &template),
        strategy: Content::of(&now.strategy, &strategy),
        is_held: now.strategy["type"] == on_delete()["type"],
        missing: usize::try_from(missing).unwrap_or(usize::MAX),
    }
}

fn controllers(
    saved: &Saved,
    there: Option<&Value>,
    pods: impl FnOnce() -> usize,
) -> Option<ControllersView> {
    let known = saved.controllers.as_ref()?;
    let Some(there) = there else {
        // Deleted by another user: nothing writes, and the object is not as it has to be.
        return Some(ControllersView {
            template: Content::Missing,
            is_stopped: true,
            is_scaled: false,
            pods: 0,
            is_available: false,
        });
    };
    let template = PerVersion {
        v2: known.v2.template.clone(),
        v3: known.v3.template.clone(),
    };
    let says = Content::of(&there["spec"]["template"], &template);
    let replicas = there["spec"]["replicas"].as_i64().unwrap_or(1);
    let wanted = if says.is(Calico::V3) {
        known.v3.replicas
    } else {
        known.v2.replicas
    };
    let status = &there["status"];
    let number = |field: &str| status[field].as_i64().unwrap_or_default();
    let is_seen =
        number("observedGeneration") >= there["metadata"]["generation"].as_i64().unwrap_or_default();
    Some(ControllersView {
        template: says,
        is_stopped: replicas == 0,
        is_scaled: replicas == wanted,
        pods: pods(),
        is_available: is_seen
            && number("updatedReplicas") >= replicas
            && number("availableReplicas") >= replicas,
    })
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
