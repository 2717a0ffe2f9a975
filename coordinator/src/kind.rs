//! One kind of migration, as the engine drives it: planning, then a pass at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration};
use engine::check::Check;
use engine::document::Document;
use engine::reason::Reason;
use memory_api::Objects;

use crate::cache::{Cache, OptionalWatches};
use crate::context::Context;
use crate::kind_stores::KindStores;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::unused_fields::SpecField;

/// One kind of migration, as the engine drives it.
pub(crate) trait Kind {
    /// Input of the checks and the plan.
    type Facts;
    /// Settings found by the checks and saved before the first change.
    type Settings;

    /// Creates and deletes `NodeMigration`s to match the Nodes.
    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), PassError>;

    /// Reads the cluster. Changes nothing.
    async fn observe(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        node_migrations: &[Arc<NodeMigration>],
    ) -> Result<Self::Facts, PassError>;

    /// Nodes whose agents have not reported what the checks need.
    fn silent(&self, facts: &Self::Facts) -> Vec<String>;

    /// Facts that the checks need and that are not read yet; later reads complete them. `None` if none is missing.
    fn unfinished(&self, _facts: &Self::Facts) -> Option<String> {
        None
    }

    /// Settings and checks; settings are `None` if the source of the migration was not found.
    fn check(&self, migration: &Migration, facts: &Self::Facts) -> (Option<Self::Settings>, Vec<Check>);

    /// Fills the stores that only this kind has from an API server in memory, where no watch runs.
    ///
    /// # Errors
    ///
    /// An object is not of its kind.
    fn fill_stores(_objects: &Objects, _stores: &KindStores) -> anyhow::Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// Whether the checks of this kind ask only the Kubernetes API and agents, so that a snapshot of both is enough for them.
    fn is_judged_offline() -> bool
    where
        Self: Sized,
    {
        true
    }

    /// Watches that this kind needs beside those that every kind has.
    fn watches(&self) -> OptionalWatches {
        OptionalWatches::default()
    }

    /// Whether this kind uses a field of the spec that not every kind uses.
    fn uses(&self, field: SpecField) -> bool;

    /// Every action on every object, in order.
    fn document(&self, settings: &Self::Settings, facts: &Self::Facts, coordinator_node: &str) -> Document;

    /// Writes into the spec what an agent needs to judge its host.
    /// Nothing, if the `NodeMigration`s carry it since they were created.
    fn write_orders(&self, _settings: &Self::Settings, _spec: &mut NodeMigrationSpec) {}

    /// Saves the settings, and what the facts say about them for the user.
    fn save_settings(&self, settings: Self::Settings, facts: &Self::Facts, status: &mut MigrationStatus);

    /// State before the first change, restored at the end or by a rollback. `facts` are those of the checks. State of a node is
    /// written to its `NodeMigration`.
    async fn saved_state(
        &self,
        context: &Context,
        cache: &Cache,
        migration: &Migration,
        facts: &Self::Facts,
    ) -> Result<BTreeMap<String, String>, PassError>;

    /// One pass of a started migration. Returns the reasons for which nodes in the rollout wait.
    async fn advance(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<Reason>, PassError>;

    /// Upkeep after the end of a migration, once a minute: what stays only as long as pods from before the migration run.
    async fn keep_up_after_end(
        &self,
        _context: &Context,
        _cache: &Cache,
        _migration: &Migration,
    ) -> Result<(), PassError> {
        Ok(())
    }

    /// Cuts the texts of this kind in the status whose length depends on the content of the cluster.
    fn cut_texts(_status: &mut MigrationStatus) {}

    /// Clears the counts of this kind in the status, on which no decision depends.
    fn clear_counts(_status: &mut MigrationStatus) {}

    /// A remark for the user beside the message; it changes every minute, and does not count as progress.
    fn remark(&self, _status: &MigrationStatus) -> Option<String> {
        None
    }
}
