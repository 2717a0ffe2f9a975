//! Reads the state of a migration from outside: its objects, its Events and its coordinator.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::{Migration, NodeMigration, NodeMigrationSpec};
use engine::traffic::PathClass;
use flannel_to_calico::facts::HostFacts;
use flannel_to_calico::phase::Phase;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::cluster::Cluster;
use crate::cluster::pods::restarts;
use crate::cluster::wait::{Observation, until};
use crate::demo::MIGRATION;

/// Reads one migration.
#[derive(Clone)]
pub struct MigrationReader {
    client: Client,
    logs: PathBuf,
}

impl MigrationReader {
    /// A reader of the demo's Migration.
    pub fn new(cluster: &Cluster) -> Self {
        Self {
            client: cluster.api().client(),
            logs: cluster.directory().logs(),
        }
    }

    /// The Migration.
    pub async fn migration(&self) -> Result<Migration> {
        let api: Api<Migration> = Api::all(self.client.clone());
        api.get(MIGRATION)
            .await
            .with_context(|| format!("read Migration {MIGRATION}"))
    }

    /// The spec of a node's NodeMigration: its goal and its step.
    pub async fn node_migration(&self, node: &str) -> Result<NodeMigrationSpec> {
        Ok(self.object(node).await?.spec)
    }

    async fn object(&self, node: &str) -> Result<NodeMigration> {
        let api: Api<NodeMigration> = Api::all(self.client.clone());
        api.get(node)
            .await
            .with_context(|| format!("read NodeMigration {node}"))
    }

    /// The facts that a node's agent has observed on its host.
    pub async fn facts(&self, node: &str) -> Result<HostFacts> {
        let status = self.object(node).await?.status;
        let facts = status.and_then(|status| status.flannel_to_calico?.facts);
        facts.with_context(|| format!("the agent of node {node} has not reported facts"))
    }

    /// The phase that a node's agent has proved.
    pub async fn proved(&self, node: &str) -> Result<Option<Phase>> {
        let object = self.object(node).await?;
        Ok(object.status.and_then(|status| status.flannel_to_calico?.phase))
    }

    /// The Node.
    pub async fn node(&self, name: &str) -> Result<Node> {
        let api: Api<Node> = Api::all(self.client.clone());
        api.get(name).await.with_context(|| format!("read Node {name}"))
    }

    /// The nodes in the order of the plan.
    pub async fn order(&self) -> Result<Vec<String>> {
        let plan = self.migration().await?.status.and_then(|status| status.plan);
        let plan = plan.context("the Migration has no plan")?;
        let api: Api<NodeMigration> = Api::all(self.client.clone());
        let objects = api
            .list(&ListParams::default())
            .await
            .context("list NodeMigrations")?;
        let document = api::record::document(&plan, &objects.items, []);
        Ok(document.nodes.into_iter().map(|node| node.node).collect())
    }

    /// Waits until the Migration has a plan, and returns its order.
    pub async fn until_planned(&self, limit: Duration) -> Result<Vec<String>> {
        let planned = |migration: &Migration| {
            let status = migration.status.as_ref();
            status.is_some_and(|status| status.plan.is_some())
        };
        self.until_migration("the Migration has a plan", limit, planned)
            .await?;
        self.order().await
    }

    /// Waits for a condition of a node's migration; an error at the deadline contains its state.
    pub async fn until_node(
        &self,
        node: &str,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&NodeMigrationSpec) -> bool,
    ) -> Result<NodeMigrationSpec> {
        until(&format!("node {node}: {what}"), limit, &self.logs, async || {
            let spec = self.node_migration(node).await?;
            if wanted(&spec) {
                return Ok(Observation::Done(spec));
            }
            let step = spec
                .step
                .as_ref()
                .map_or_else(|| "not started".to_owned(), |step| format!("{step:?}"));
            Ok(Observation::NotYet(format!(
                "finished at {:?}, {step}",
                spec.finished_at
            )))
        })
        .await
    }

    /// Waits until a traffic pod on this node sends on a path of this class, and the agent reports it.
    pub async fn until_watched(&self, node: &str, class: PathClass, limit: Duration) -> Result<()> {
        let what = format!("node {node} watches {}", class.words());
        until(&what, limit, &self.logs, async || {
            let object = self.object(node).await?;
            let report = object
                .status
                .and_then(|status| status.traffic)
                .unwrap_or_default();
            let mut flows = object.spec.flows.iter().filter(|flow| flow.class == class);
            Ok(if flows.any(|flow| report.reporting.contains(&flow.source)) {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("pods that report: {}", report.reporting.len()))
            })
        })
        .await
    }

    /// Waits for a condition of the Migration; an error at the deadline contains its status.
    pub async fn until_migration(
        &self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&Migration) -> bool,
    ) -> Result<Migration> {
        until(what, limit, &self.logs, async || {
            let migration = self.migration().await?;
            if wanted(&migration) {
                return Ok(Observation::Done(migration));
            }
            let status = migration.status.unwrap_or_default();
            Ok(Observation::NotYet(format!(
                "{:?} {}: {}",
                status.phase, status.reason, status.message
            )))
        })
        .await
    }

    /// The running pod of the coordinator: its name, its node and its restarts.
    pub async fn coordinator(&self) -> Result<(String, String, i32)> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), api::names::NAMESPACE);
        let labels = format!("{}=coordinator", api::names::COMPONENT_LABEL);
        let pods = api
            .list(&ListParams::default().labels(&labels))
            .await
            .context("list the coordinator's pods")?;
        let Some(pod) = pods
            .items
            .into_iter()
            .find(|pod| pod.metadata.deletion_timestamp.is_none())
        else {
            bail!("the coordinator has no pod")
        };
        let restarts = restarts(&pod);
        let node = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone())
            .context("a pod without a node")?;
        Ok((pod.name_any(), node, restarts))
    }

    /// Reasons and notes of the Events about an object.
    pub async fn events(&self, kind: &str, name: &str) -> Result<Vec<(String, String)>> {
        let api: Api<k8s_openapi::api::events::v1::Event> = Api::all(self.client.clone());
        let fields = format!("regarding.kind={kind},regarding.name={name}");
        let events = api
            .list(&ListParams::default().fields(&fields))
            .await
            .context("list Events")?;
        Ok(events
            .items
            .into_iter()
            .map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
            .collect())
    }
}
