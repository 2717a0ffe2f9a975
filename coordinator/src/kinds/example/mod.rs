//! The kind of docs/adding-a-kind.md: reads and writes of the cluster. The crate `example` decides the steps.

mod drive;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration};
use engine::check::Check;
use engine::document::Document;
use example::api::{NodeSpec, Settings, Spec, Status};
use example::checks::{self, ClusterFacts};
use example::document::document;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _};

use crate::cache::Cache;
use crate::context::Context;
use crate::kind::Kind;
use crate::memory::Memory;
use crate::node_migrations;
use crate::staged::settings_gone;
use crate::unused_fields::SpecField;
use crate::write::WriteError;

impl Kind for Spec {
    type Facts = ClusterFacts;
    type Settings = Settings;

    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), WriteError> {
        adopt(context, cache, migration).await
    }

    async fn read(
        &self,
        context: &Context,
        _cache: &Cache,
        _memory: &mut Memory,
        _migration: &Migration,
        node_migrations: &[Arc<NodeMigration>],
    ) -> Result<ClusterFacts, WriteError> {
        let object = read(context, &self.config_map).await?;
        Ok(ClusterFacts {
            labelled: object.map(|object| object.labels().contains_key(example::LABEL)),
            kernels: kernels(node_migrations.iter().map(AsRef::as_ref)),
        })
    }

    fn silent(&self, facts: &ClusterFacts) -> Vec<String> {
        let silent = facts.kernels.iter().filter(|(_, kernel)| kernel.is_none());
        silent.map(|(node, _)| node.clone()).collect()
    }

    fn judge(&self, _migration: &Migration, facts: &ClusterFacts) -> (Option<Settings>, Vec<Check>) {
        checks::judge(self, facts)
    }

    fn uses(&self, _field: SpecField) -> bool {
        false
    }

    fn document(&self, settings: &Settings, _facts: &ClusterFacts, _coordinator_node: &str) -> Document {
        document(settings)
    }

    fn save(&self, settings: Settings, status: &mut MigrationStatus) {
        status.example = Some(Status {
            settings,
            stage: None,
            history: Vec::new(),
        });
    }

    async fn before(
        &self,
        _context: &Context,
        _cache: &Cache,
        _migration: &Migration,
        _facts: &ClusterFacts,
    ) -> Result<BTreeMap<String, String>, WriteError> {
        Ok(BTreeMap::new())
    }

    async fn advance(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<&'static str>, WriteError> {
        match status.example.clone() {
            Some(known) => drive::advance(context, cache, memory, migration, self, known, status).await?,
            None => settings_gone(status, "status.example", ""),
        }
        Ok(Vec::new())
    }
}

/// Creates and deletes `NodeMigration`s so that each Node has one.
async fn adopt(context: &Context, cache: &Cache, migration: &Migration) -> Result<(), WriteError> {
    let ask = |spec: &mut NodeMigrationSpec| spec.example = Some(NodeSpec {});
    node_migrations::adopt(context, cache, migration, ask).await
}

/// The ConfigMap, if it exists.
async fn read(context: &Context, name: &str) -> Result<Option<ConfigMap>, WriteError> {
    let objects: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let read = objects.get_opt(name).await;
    read.map_err(|error| {
        WriteError::of(
            "reading",
            format!("ConfigMap {}/{name}", context.namespace),
            error,
        )
    })
}

/// The kernel of each node, as its agent has reported it.
fn kernels<'object>(
    objects: impl Iterator<Item = &'object NodeMigration>,
) -> BTreeMap<String, Option<String>> {
    objects
        .map(|object| {
            let report = object.status.as_ref().and_then(|status| status.example.as_ref());
            (
                object.spec.node_name.clone(),
                report.map(|report| report.kernel.clone()),
            )
        })
        .collect()
}
