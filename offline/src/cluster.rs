//! A cluster in memory, with a coordinator and the reports of agents.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use coordinator::offline::Offline;
use http::{Method, StatusCode};
use jiff::Timestamp;
use kube::Client;
use memory_api::{Answer, Call, Objects};
use serde_json::{Value, json};

use crate::agents;
use crate::lock::lock;
use crate::paths::MIGRATIONS;
use crate::snapshot::{Coordinator, Snapshot, SnapshotError};
use crate::source::Source;

/// Pause between two turns of the coordinator: work beside its passes, such as reading policies, continues meanwhile.
const PAUSE: Duration = Duration::from_millis(10);

/// A cluster in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryCluster {
    objects: Arc<Mutex<Objects>>,
    hosts: Arc<BTreeMap<String, Value>>,
    coordinator: Coordinator,
    client: Client,
}

impl MemoryCluster {
    /// The cluster of a snapshot. It does nothing until [`MemoryCluster::run`].
    ///
    /// # Errors
    ///
    /// The snapshot cannot be completed.
    pub fn of(snapshot: Snapshot) -> Result<Self, SnapshotError> {
        let coordinator = snapshot.coordinator().clone();
        let (objects, hosts) = snapshot.complete()?;
        let objects = Arc::new(Mutex::new(objects));
        let answering = Arc::clone(&objects);
        let client = memory_api::client(move |call| {
            let answer = answer(&mut lock(&answering), &call);
            std::future::ready(Ok(answer))
        })
        .build();
        Ok(Self {
            objects,
            hosts: Arc::new(hosts),
            coordinator,
            client,
        })
    }

    /// A cluster that asks another one for what it does not have. `hosts` are the reports by name of the node.
    pub(crate) fn reading(source: &Source, coordinator: Coordinator, hosts: BTreeMap<String, Value>) -> Self {
        let answering = source.clone();
        let client = memory_api::client(move |call| {
            let source = answering.clone();
            async move { Ok(source.answer(call).await) }
        })
        .build();
        Self {
            objects: source.objects(),
            hosts: Arc::new(hosts),
            coordinator,
            client,
        }
    }

    /// Where the coordinator runs.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Creates a Migration.
    pub fn put_migration(&self, name: &str, spec: &Value) {
        self.put(json!({
            "apiVersion": format!("{}/{}", api::names::GROUP, api::names::VERSION), "kind": "Migration",
            "metadata": { "name": name }, "spec": spec,
        }));
    }

    /// Puts a Migration.
    pub(crate) fn put(&self, migration: Value) {
        let name = migration["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{MIGRATIONS}/{name}");
        lock(&self.objects).put(&path, migration);
    }

    /// The status of a Migration; null without one.
    pub fn status(&self, name: &str) -> Value {
        let objects = lock(&self.objects);
        let migration = objects.get(&format!("{MIGRATIONS}/{name}"));
        migration
            .map(|migration| migration["status"].clone())
            .unwrap_or_default()
    }

    /// A client of the API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Lets coordinator and agents work on every Migration, for ever.
    ///
    /// # Errors
    ///
    /// An object or a report is not readable, or a pass fails.
    pub async fn run(&self) -> anyhow::Result<std::convert::Infallible> {
        let Coordinator { namespace, node } = &self.coordinator;
        let mut coordinator = Offline::new(self.client(), namespace, node)?;
        loop {
            self.turn(&mut coordinator).await?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One turn: the coordinator creates the objects of nodes, the agents report, and the coordinator makes a pass.
    async fn turn(&self, coordinator: &mut Offline) -> anyhow::Result<()> {
        let namespace = &self.coordinator.namespace;
        lock(&self.objects).put(&lease_path(namespace), lease(namespace));
        let migrations = self.migrations();
        for migration in &migrations {
            coordinator.adopt(&self.snapshot(), migration).await?;
            agents::report(&mut lock(&self.objects), &self.hosts).context("the report of an agent")?;
        }
        if migrations.is_empty() {
            return Ok(());
        }
        coordinator.pass(&self.snapshot()).await
    }

    fn migrations(&self) -> Vec<String> {
        let objects = lock(&self.objects);
        let found = objects.below(MIGRATIONS);
        let names = found.filter_map(|object| object["metadata"]["name"].as_str());
        names.map(str::to_owned).collect()
    }

    fn snapshot(&self) -> Objects {
        lock(&self.objects).clone()
    }
}

/// The answer of the API server. Events have no reader.
pub(crate) fn answer(objects: &mut Objects, call: &Call) -> Answer {
    if call.path.contains("/events") && call.method != Method::GET {
        return (StatusCode::CREATED, call.body.clone());
    }
    objects.answer(call)
}

fn lease_path(namespace: &str) -> String {
    format!(
        "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{}",
        api::names::COORDINATOR
    )
}

/// The Lease of the coordinator, held at this moment.
fn lease(namespace: &str) -> Value {
    let now = Timestamp::now();
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "namespace": namespace, "name": api::names::COORDINATOR },
        "spec": { "holderIdentity": "offline", "leaseDurationSeconds": 15, "renewTime": format!("{now:.6}") },
    })
}
