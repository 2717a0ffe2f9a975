//! The kind of docs/adding-a-kind.md: reads and writes of the cluster. The crate `example` decides the steps.
//!
//! `advance` makes a pass: `observe` reads, `view` has what the decision depends on, `apply` runs one step, and the shared
//! `staged` reports.

mod advance;
mod apply;
mod observe;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration};
use engine::check::Check;
use engine::document::Document;
use engine::reason::Reason;
use example::api::{NodeSpec, Settings, Spec, Status};
use example::checks::{self, ClusterFacts};
use example::document::document;

use crate::cache::Cache;
use crate::context::Context;
use crate::kind::Kind;
use crate::memory::Memory;
use crate::node_migrations;
use crate::pass_error::PassError;
use crate::staged::settings_gone;
use crate::unused_fields::SpecField;
use crate::write::WriteError;

impl Kind for Spec {
    type Facts = ClusterFacts;
    type Settings = Settings;

    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), PassError> {
        Ok(adopt(context, cache, migration).await?)
    }

    async fn observe(
        &self,
        context: &Context,
        _cache: &Cache,
        _memory: &mut Memory,
        _migration: &Migration,
        node_migrations: &[Arc<NodeMigration>],
    ) -> Result<ClusterFacts, PassError> {
        Ok(observe::cluster(context, self, node_migrations).await?)
    }

    fn silent(&self, facts: &ClusterFacts) -> Vec<String> {
        let silent = facts.kernels.iter().filter(|(_, kernel)| kernel.is_none());
        silent.map(|(node, _)| node.clone()).collect()
    }

    fn check(&self, _migration: &Migration, facts: &ClusterFacts) -> (Option<Settings>, Vec<Check>) {
        checks::check(self, facts)
    }

    fn uses(&self, _field: SpecField) -> bool {
        false
    }

    fn document(&self, settings: &Settings, _facts: &ClusterFacts, _coordinator_node: &str) -> Document {
        document(settings)
    }

    fn save_settings(&self, settings: Settings, _facts: &Self::Facts, status: &mut MigrationStatus) {
        status.example = Some(Status {
            settings,
            stage: None,
            history: Vec::new(),
        });
    }

    async fn saved_state(
        &self,
        _context: &Context,
        _cache: &Cache,
        _migration: &Migration,
        _facts: &ClusterFacts,
    ) -> Result<BTreeMap<String, String>, PassError> {
        Ok(BTreeMap::new())
    }

    async fn advance(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<Reason>, PassError> {
        match status.example.clone() {
            Some(known) => advance::advance(context, cache, memory, migration, self, known, status).await?,
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
