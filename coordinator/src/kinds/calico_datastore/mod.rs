//! Calico's datastore from v2 to v3: what reads and writes the cluster and both stores. What is done, and when,
//! `calico_datastore` decides; what is done to the stores the crate `datastore` does.
//!
//! `read` reads for the checks, `look` for each pass, the kind decides, `apply` makes one step. What takes longer than a pass `worker` does
//! beside it.

mod apply;
mod backup;
mod drive;
mod found;
pub(crate) mod hints;
mod left;
mod look;
mod looks;
mod objects;
mod read;
mod saved;
mod stores;
mod watched;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{CalicoDatastore, CalicoDatastoreStatus, MigrationPhase};
use api::node_migration::{CalicoDatastoreHost, NodeMigrationSpec};
use api::traffic::TrafficGate;
use api::{Migration, MigrationStatus, NodeMigration};
use calico_datastore::cluster::checks::{self, CheckPolicy};
use calico_datastore::cluster::detect::{Wishes, detect};
use calico_datastore::cluster::document::document;
use calico_datastore::cluster::facts::ClusterFacts;
use calico_datastore::cluster::settings::Settings;
use engine::check::Check;
use engine::document::Document;
use engine::order::{self, Place};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::cache::Cache;
use crate::context::Context;
use crate::etcd_access::of_spec;
use crate::lifecycle::Kind;
use crate::limits;
use crate::memory::Memory;
use crate::node_migrations;
use crate::write::WriteError;

use looks::Asked;
pub use looks::Looks;

/// What the user said.
fn wishes(kind: &CalicoDatastore) -> Wishes {
    Wishes {
        etcd_v2: kind.etcd_v2.as_ref().map(of_spec),
        etcd_v3: kind.etcd_v3.as_ref().map(of_spec),
        pause_limit_seconds: kind.pause_limit_seconds,
        settle_seconds: kind.settle_seconds,
        ignore_v3_data: kind.ignore_v3_data,
    }
}

/// Fields of `rollout` that say something which this kind does not do.
fn without_effect(migration: &Migration) -> Vec<&'static str> {
    let rollout = &migration.spec.rollout;
    [
        ("rollout.canary", rollout.canary.is_some()),
        ("rollout.intervalSeconds", rollout.interval_seconds > 0),
        ("rollbackNodes", !migration.spec.rollback_nodes.is_empty()),
    ]
    .into_iter()
    .filter_map(|(field, said)| said.then_some(field))
    .collect()
}

impl Kind for CalicoDatastore {
    type Facts = ClusterFacts;
    type Settings = Settings;

    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), WriteError> {
        adopt(context, cache, migration).await
    }

    async fn read(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        _node_migrations: &[Arc<NodeMigration>],
    ) -> Result<ClusterFacts, WriteError> {
        let by = Asked {
            uid: migration.uid().unwrap_or_default(),
            generation: migration.metadata.generation.unwrap_or_default(),
        };
        let looks = &mut memory.calico_datastore;
        Box::pin(read::cluster(context, cache, looks, self, by)).await
    }

    /// The checks need nothing of an agent.
    fn silent(&self, _facts: &ClusterFacts) -> Vec<String> {
        Vec::new()
    }

    fn judge(&self, migration: &Migration, facts: &ClusterFacts) -> (Option<Settings>, Vec<Check>) {
        let settings = match detect(&wishes(self), facts) {
            Ok(settings) => settings,
            Err(checks) => return (None, checks),
        };
        let policy = CheckPolicy {
            is_unwatched: migration.spec.gates.traffic == TrafficGate::Ignore,
            without_effect: without_effect(migration),
            at_once: limits::rules(migration)
                .max_unavailable
                .resolve(facts.nodes.len()),
        };
        let found = checks::check(&settings, facts, &policy);
        (Some(settings), found)
    }

    fn document(&self, settings: &Settings, facts: &ClusterFacts, coordinator_node: &str) -> Document {
        let mut places: Vec<Place<'_>> = facts
            .nodes
            .values()
            .map(|node| Place {
                name: &node.name,
                control_plane: node.control_plane,
                coordinator: node.name == coordinator_node,
            })
            .collect();
        order::sort(&mut places);
        let order: Vec<String> = places.iter().map(|place| place.name.to_owned()).collect();
        document(settings, facts, &order)
    }

    /// What agents do was asked when their objects were made.
    fn ask(&self, _settings: &Settings, _spec: &mut NodeMigrationSpec) {}

    fn save(&self, settings: Settings, status: &mut MigrationStatus) {
        status.calico_datastore = Some(Box::new(CalicoDatastoreStatus::of(settings)));
    }

    async fn before(
        &self,
        context: &Context,
        cache: &Cache,
        _migration: &Migration,
        _facts: &ClusterFacts,
    ) -> Result<BTreeMap<String, String>, WriteError> {
        saved::read(context, cache, self).await
    }

    async fn go_on(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<&'static str>, WriteError> {
        // By an edit of the status by hand, or an update of replumb that reads another version's.
        let gone = |status: &mut MigrationStatus, what: &str| {
            "SettingsGone".clone_into(&mut status.blocked);
            status.message = format!(
                "{what}, which was saved before the first change, is gone: nobody knows what this migration works with, and nothing is \
                 done. Go back to the version of replumb that began it, or write it again from a backup of the Migration. If Calico is paused, \
                 `kubectl replumb datastore status` says so"
            );
        };
        let Some(known) = status.calico_datastore.clone() else {
            gone(status, "status.calicoDatastore");
            return Ok(Vec::new());
        };
        let saved = match saved::understand(&status.before) {
            Ok(saved) => saved,
            Err(what) => {
                gone(status, &what);
                return Ok(Vec::new());
            }
        };
        Box::pin(drive::go_on(
            context, cache, memory, migration, &saved, *known, status,
        ))
        .await?;
        Ok(Vec::new())
    }

    /// Whoever reads the message at night has to see that no pod starts, and until when.
    fn remark(&self, status: &MigrationStatus) -> Option<String> {
        let known = status.calico_datastore.as_ref()?;
        let until = known.paused_until.filter(|_| !status.phase.is_over())?;
        let waiting = match &known.first_without_network {
            None => "no pod waits for a network".to_owned(),
            Some(first) => format!(
                "{} pods wait for a network, the first {first}",
                known.pods_without_network
            ),
        };
        let left = Timestamp::now().duration_until(until);
        let end = if known.turned_back.is_some() || status.phase == MigrationPhase::RollingBack {
            String::new()
        } else if left.is_positive() {
            let minutes = (left + SignedDuration::from_secs(59)).as_secs() / 60;
            format!(
                "; everything goes back by itself at {} (in {minutes} min)",
                until.strftime("%H:%M:%SZ")
            )
        } else {
            "; everything goes back by itself as soon as both stores answer".to_owned()
        };
        Some(format!("Calico is PAUSED: {waiting}{end}"))
    }
}

/// Brings the `NodeMigration`s in line with the Nodes.
async fn adopt(context: &Context, cache: &Cache, migration: &Migration) -> Result<(), WriteError> {
    for object in node_migrations::without_node(cache, migration) {
        node_migrations::delete(context, &object).await?;
    }
    // From the start: an agent that does not know better looks for flannel.
    let ask = |spec: &mut NodeMigrationSpec| spec.calico_datastore = Some(CalicoDatastoreHost {});
    node_migrations::adopt(context, cache, migration, ask).await
}
