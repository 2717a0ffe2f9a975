//! Another range for the pods: reads and writes of the cluster.
//!
//! `advance` makes a pass: `observe` reads, `view` has what the decision depends on, `apply` runs one step, `report` writes the
//! status. The crate `pod_cidr` decides. Forward and back are the same procedure between two pools.

mod adopt;
mod advance;
mod apply;
mod calico_nodes;
mod calico_objects;
mod datastore;
mod gate;
mod kube_proxy;
mod malformed;
mod objects;
mod observe;
mod pass;
mod places;
mod read_cache;
mod report;
mod saved;
#[cfg(test)]
mod scenarios;
mod traffic;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{PodCidr, PodCidrStatus};
use api::traffic::TrafficGate;
use api::{Migration, MigrationStatus, NodeMigration};
use engine::check::Check;
use engine::cluster::silent_nodes;
use engine::decision::WaitReason;
use engine::document::Document;
use engine::reason::Reason;
use pod_cidr::checks::{self, CheckPolicy};
use pod_cidr::detect::detect;
use pod_cidr::document::{Options as DocumentOptions, document};
use pod_cidr::facts::ClusterFacts;
use pod_cidr::settings::{Options, Settings};

use crate::cache::{Cache, OptionalWatches};
use crate::calico::error::CalicoStoreError;
use crate::context::Context;
use crate::etcd_access::problem;
use crate::kind::Kind;
use crate::limits;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::staged::settings_gone;
use crate::unused_fields::SpecField;
use crate::waits::wait;

pub use read_cache::ReadCache;

/// Default time for which the old pool stays, empty.
const SOAK_SECONDS: u32 = 24 * 60 * 60;

/// Number of pods of a Deployment of name servers or admission webhooks while pods move.
const REDUNDANT_REPLICAS: u32 = 2;

/// Time for which the old pool stays once it is empty.
fn soak_seconds(kind: &PodCidr) -> u32 {
    kind.soak_seconds.unwrap_or(SOAK_SECONDS)
}

impl Kind for PodCidr {
    type Facts = ClusterFacts;
    type Settings = Settings;

    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), PassError> {
        Ok(adopt::adopt(context, cache, migration, &adopt::settings_forward(self), None).await?)
    }

    async fn observe(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        _migration: &Migration,
        node_migrations: &[Arc<NodeMigration>],
    ) -> Result<ClusterFacts, PassError> {
        let reads = memory.kinds.of::<ReadCache>();
        Box::pin(observe::cluster(context, cache, reads, self, node_migrations)).await
    }

    fn silent(&self, facts: &ClusterFacts) -> Vec<String> {
        silent_nodes(&facts.nodes, &facts.hosts)
    }

    fn check(&self, migration: &Migration, facts: &ClusterFacts) -> (Option<Settings>, Vec<Check>) {
        let options = Options {
            from: self.from,
            to: self.to,
            family: self.family,
            block_size: self.block_size,
        };
        let settings = match detect(&options, facts) {
            Ok(settings) => settings,
            Err(checks) => return (None, checks),
        };
        let policy = CheckPolicy {
            permissions: limits::permissions(migration),
            on_blocked: limits::on_blocked(migration),
            delete_bare_pods: self.delete_bare_pods,
            mode: self.mode,
            local_ranges_checked: self.local_ranges_checked,
            is_unwatched: migration.spec.gates.traffic == TrafficGate::Ignore,
        };
        let found = checks::check(&settings, facts, policy);
        (Some(settings), found)
    }

    fn watches(&self) -> OptionalWatches {
        OptionalWatches {
            workloads: true,
            ..OptionalWatches::default()
        }
    }

    fn uses(&self, field: SpecField) -> bool {
        match field {
            SpecField::MaxUnavailable
            | SpecField::CanarySoak
            | SpecField::SourceAddressGate
            | SpecField::GracePeriod
            | SpecField::OnBlocked
            | SpecField::EmptyDirData
            | SpecField::Force => true,
            SpecField::CanaryNodes | SpecField::Interval | SpecField::DrainTimeout | SpecField::SoakGate => {
                false
            }
        }
    }

    fn document(&self, settings: &Settings, facts: &ClusterFacts, _coordinator_node: &str) -> Document {
        let document_options = DocumentOptions {
            mode: self.mode,
            soak_seconds: soak_seconds(self),
            delete_bare_pods: self.delete_bare_pods,
            needed: &facts.needed(),
        };
        document(settings, facts, &document_options)
    }

    fn save_settings(&self, settings: Settings, _facts: &Self::Facts, status: &mut MigrationStatus) {
        status.pod_cidr = Some(PodCidrStatus::of(settings));
    }

    async fn saved_state(
        &self,
        _context: &Context,
        cache: &Cache,
        _migration: &Migration,
        facts: &ClusterFacts,
    ) -> Result<BTreeMap<String, String>, PassError> {
        Ok(saved::of(facts, cache, self))
    }

    async fn advance(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<Reason>, PassError> {
        let Some(known) = status.pod_cidr.clone() else {
            settings_gone(status, "status.podCidr", "");
            return Ok(Vec::new());
        };
        let saved = match saved::parse(&status.saved_state) {
            Ok(saved) => saved,
            Err(what) => {
                settings_gone(status, &what, "");
                return Ok(Vec::new());
            }
        };
        match advance::advance(context, cache, memory, migration, self, &saved, known, status).await {
            Ok(()) => Ok(Vec::new()),
            // Completed writes stay, and the next pass decides about the others.
            Err(PassError::Store(CalicoStoreError::Etcd(error))) => {
                memory.kinds.of::<ReadCache>().forget_store();
                wait(
                    status,
                    WaitReason::Datastore,
                    report::unreachable(&problem(&error)),
                );
                Ok(Vec::new())
            }
            Err(
                error @ (PassError::Read(_)
                | PassError::Write(_)
                | PassError::Store(CalicoStoreError::Read(_) | CalicoStoreError::Write(_))),
            ) => Err(error),
        }
    }

    fn clear_counts(status: &mut MigrationStatus) {
        if let Some(pods) = &mut status.pod_cidr {
            (pods.pods_in_old_range, pods.pods_in_new_range) = (0, 0);
        }
    }
}
