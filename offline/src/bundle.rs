//! A bundle: the snapshot of a real cluster, with what the checks read and nothing that is secret.
//!
//! [`collect`] makes the coordinator's own passes in memory; what these read of the API, `crate::source` asks of the cluster and
//! records. `keep` removes from each object what no check reads and what may be secret; [`hide_names`] replaces names.

mod container;
mod keep;
mod names;
mod texts;

use std::collections::BTreeMap;

use api::Migration;
use api::node_migration::NodeMigrationStatus;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use thiserror::Error;

use crate::cluster::MemoryCluster;
use crate::judge::{Judgement, judge_existing};
use crate::paths::NODES;
use crate::snapshot::{Coordinator, Document, KIND, Snapshot};
use crate::source::{ReadFailed, Source};
pub use names::hide_names;

/// Why no bundle was collected.
#[derive(Debug, Error)]
pub enum BundleError {
    /// The API server refuses a read, or does not answer.
    #[error("collecting a bundle: {0}")]
    Read(#[from] ReadFailed),
    /// The passes did not end.
    #[error("judging the cluster for the bundle: {0:#}")]
    Judge(#[from] anyhow::Error),
}

/// A cluster, as a command knows it.
pub struct Cluster {
    /// A client of its API server.
    pub client: Client,
    /// Where the coordinator runs.
    pub coordinator: Coordinator,
    /// The Migration that is judged, which has not started.
    pub migration: Migration,
    /// The reports of the agents, by name of the node.
    pub reports: BTreeMap<String, NodeMigrationStatus>,
}

/// Reads what the checks of the Migration read, and returns it as a document without secrets.
///
/// # Errors
///
/// A read fails, or the checks do not end.
pub async fn collect(cluster: Cluster) -> Result<Document, BundleError> {
    let migration = before_start(&cluster.migration);
    let name = cluster.migration.name_any();
    let mut hosts = BTreeMap::new();
    for (node, report) in &cluster.reports {
        hosts.insert(node.clone(), json!(report));
    }
    let source = Source::of(cluster.client);
    source.read_stores().await?;
    hosts.retain(|node, _| source.has(&format!("{NODES}/{node}")));
    let memory = MemoryCluster::reading(&source, cluster.coordinator.clone(), hosts.clone());
    memory.put(migration.clone());
    tokio::select! {
        judged = judge_existing(&memory, &name) => { judged?; }
        error = source.failure() => return Err(error.into()),
    }
    let objects = kept(source.recorded().into_iter().chain([migration]).collect());
    for report in hosts.values_mut() {
        texts::clean(report);
        keep::remove(report, "observedGeneration");
    }
    Ok(Document {
        api_version: format!("{}/{}", api::names::GROUP, api::names::VERSION),
        kind: KIND.to_owned(),
        coordinator: Some(cluster.coordinator),
        objects,
        hosts,
        served: source.served(),
        ..Document::default()
    })
}

/// The objects without what no check reads, and without secrets.
fn kept(objects: Vec<Value>) -> Vec<Value> {
    let references = keep::References::of(&objects);
    let kept = objects
        .into_iter()
        .filter_map(|object| keep::object(object, &references));
    kept.collect()
}

/// Judges the Migration of a document.
///
/// # Errors
///
/// The document is not a snapshot, or the checks do not end.
pub async fn judge(document: &Document, migration: &str) -> anyhow::Result<Judgement> {
    let snapshot = Snapshot::of(document.clone())?;
    judge_existing(&MemoryCluster::of(snapshot)?, migration).await
}

/// The Migration as it was created: the plan is made again from the objects.
pub fn before_start(migration: &Migration) -> Value {
    let mut spec = json!(migration.spec);
    spec["desired"] = json!("Plan");
    json!({
        "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION), "kind": "Migration",
        "metadata": { "name": migration.name_any(), "uid": migration.uid() }, "spec": spec,
    })
}
