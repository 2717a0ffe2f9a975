//! Calico's datastore from v2 (etcd v2) to v3 (etcd v3): reads and writes of the cluster and of both stores. The crate
//! `calico_datastore` decides the steps and their order; the crate `datastore` changes the stores.
//!
//! `advance` makes a pass: `observe` reads, `view` has what the decision depends on, `apply` runs one step, `report` writes the
//! status. Work that takes longer than a pass runs beside the passes in `worker`.

mod advance;
mod apply;
mod controllers_objects;
mod gate;
pub(crate) mod hints;
mod manifest;
mod objects;
mod observe;
mod pass;
mod pods;
mod read_cache;
mod report;
mod saved;
mod stores;
mod view;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;

use ::calico_datastore::api::CalicoDatastoreHost;
use api::migration::{CalicoDatastore, CalicoDatastoreStatus, MigrationPhase};
use api::node_migration::NodeMigrationSpec;
use api::traffic::TrafficGate;
use api::{Migration, MigrationStatus, NodeMigration};
use calico_datastore::cluster::checks::{self, CheckPolicy};
use calico_datastore::cluster::detect::{Options, detect};
use calico_datastore::cluster::document::document;
use calico_datastore::cluster::facts::ClusterFacts;
use calico_datastore::cluster::settings::Settings;
use engine::check::Check;
use engine::document::Document;
use engine::order::{self, Place};
use engine::reason::Reason;
use jiff::SignedDuration;
use kube::ResourceExt as _;

use crate::bounds;
use crate::cache::Cache;
use crate::clock;
use crate::context::Context;
use crate::etcd_access::of_spec;
use crate::kind::Kind;
use crate::limits;
use crate::memory::Memory;
use crate::node_migrations;
use crate::pass_error::PassError;
use crate::staged::settings_gone;
use crate::unused_fields::SpecField;
use crate::write::WriteError;

pub use read_cache::ReadCache;
use read_cache::ReadRequest;

/// The options that the user has set.
fn options(kind: &CalicoDatastore) -> Options {
    Options {
        etcd_v2: kind.etcd_v2.as_ref().map(of_spec),
        etcd_v3: kind.etcd_v3.as_ref().map(of_spec),
        pause_limit_seconds: kind.pause_limit_seconds,
        settle_seconds: kind.settle_seconds,
        ignore_v3_data: kind.ignore_v3_data,
    }
}

/// What follows the message about a missing part of the status.
const ADVICE: &str = ". To see whether Calico is paused, run `kubectl replumb datastore status`";

impl Kind for CalicoDatastore {
    type Facts = ClusterFacts;
    type Settings = Settings;

    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), PassError> {
        Ok(adopt(context, cache, migration).await?)
    }

    async fn observe(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        _node_migrations: &[Arc<NodeMigration>],
    ) -> Result<ClusterFacts, PassError> {
        let by = ReadRequest {
            uid: migration.uid().unwrap_or_default(),
            generation: migration.metadata.generation.unwrap_or_default(),
        };
        let reads = memory.kinds.of::<ReadCache>();
        Box::pin(observe::cluster(context, cache, reads, self, by)).await
    }

    /// The checks need no facts from agents.
    fn silent(&self, _facts: &ClusterFacts) -> Vec<String> {
        Vec::new()
    }

    fn check(&self, migration: &Migration, facts: &ClusterFacts) -> (Option<Settings>, Vec<Check>) {
        let settings = match detect(&options(self), facts) {
            Ok(settings) => settings,
            Err(checks) => return (None, checks),
        };
        let policy = CheckPolicy {
            is_unwatched: migration.spec.gates.traffic == TrafficGate::Ignore,
            max_unavailable: limits::rules(migration)
                .max_unavailable
                .resolve(facts.nodes.len()),
        };
        let found = checks::check(&settings, facts, &policy);
        (Some(settings), found)
    }

    fn is_judged_offline() -> bool {
        // Both etcds are read.
        false
    }

    fn uses(&self, field: SpecField) -> bool {
        match field {
            SpecField::MaxUnavailable => true,
            SpecField::CanaryNodes
            | SpecField::CanarySoak
            | SpecField::Interval
            | SpecField::DrainTimeout
            | SpecField::GracePeriod
            | SpecField::OnBlocked
            | SpecField::EmptyDirData
            | SpecField::Force
            | SpecField::SourceAddressGate
            | SpecField::SoakGate => false,
        }
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

    fn save_settings(&self, settings: Settings, _facts: &Self::Facts, status: &mut MigrationStatus) {
        status.calico_datastore = Some(Box::new(CalicoDatastoreStatus::of(settings)));
    }

    async fn saved_state(
        &self,
        context: &Context,
        cache: &Cache,
        _migration: &Migration,
        _facts: &ClusterFacts,
    ) -> Result<BTreeMap<String, String>, PassError> {
        saved::read(context, cache, self).await
    }

    async fn advance(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<Reason>, PassError> {
        let Some(known) = status.calico_datastore.clone() else {
            settings_gone(status, "status.calicoDatastore", ADVICE);
            return Ok(Vec::new());
        };
        let saved = match saved::parse(&status.saved_state) {
            Ok(saved) => saved,
            Err(what) => {
                settings_gone(status, &what, ADVICE);
                return Ok(Vec::new());
            }
        };
        Box::pin(advance::advance(
            context, cache, memory, migration, &saved, *known, status,
        ))
        .await?;
        Ok(Vec::new())
    }

    fn cut_texts(status: &mut MigrationStatus) {
        let Some(known) = &mut status.calico_datastore else {
            return;
        };
        if let Some(turned_back) = &mut known.automatic_rollback {
            bounds::cut_to(&mut turned_back.reason, bounds::REASON);
        }
        if let Some(first) = &mut known.pod_without_network {
            bounds::cut_to(first, bounds::DRIFT);
        }
    }

    /// The message has to show, without other knowledge, that no new pod starts and when the pause ends.
    fn remark(&self, status: &MigrationStatus) -> Option<String> {
        let known = status.calico_datastore.as_ref()?;
        let until = known.paused_until.filter(|_| !status.phase.is_over())?;
        let waiting = match &known.pod_without_network {
            None => "no pod waits for a network".to_owned(),
            Some(first) => format!(
                "pods that wait for a network: {}, first: {first}",
                known.pods_without_network
            ),
        };
        let left = clock::now().duration_until(until);
        let end = if known.automatic_rollback.is_some() || status.phase == MigrationPhase::RollingBack {
            String::new()
        } else if left.is_positive() {
            let minutes = (left + SignedDuration::from_secs(59)).as_secs() / 60;
            format!(
                "; automatic rollback at {} (in {minutes} min)",
                until.strftime("%H:%M:%SZ")
            )
        } else {
            "; automatic rollback as soon as both stores answer".to_owned()
        };
        Some(format!("Calico is PAUSED: {waiting}{end}"))
    }
}

/// Creates, updates and deletes `NodeMigration`s so that each Node has one.
async fn adopt(context: &Context, cache: &Cache, migration: &Migration) -> Result<(), WriteError> {
    // From the start: without this field, the agent observes the remains of flannel.
    let ask = |spec: &mut NodeMigrationSpec| spec.calico_datastore = Some(CalicoDatastoreHost {});
    node_migrations::adopt(context, cache, migration, ask).await
}
