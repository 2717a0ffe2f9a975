//! flannel VXLAN → Calico VXLAN: the driver of one pass.
//!
//! `dereference` reads, the kind decides, and `prepare`, `roll` and `finish` write, each in a documented order.

mod adopt;
#[cfg(test)]
mod back_scenarios;
mod blocks;
#[cfg(test)]
mod clock_scenarios;
mod dereference;
mod drift;
#[cfg(test)]
mod drift_scenarios;
mod finish;
#[cfg(test)]
mod foreign_object_scenarios;
mod import;
#[cfg(test)]
mod in_place_scenarios;
#[cfg(test)]
mod ipv6_scenarios;
#[cfg(test)]
mod leftover_scenarios;
#[cfg(test)]
mod matrix_scenarios;
mod node_objects;
mod prepare;
#[cfg(test)]
mod release_scenarios;
#[cfg(test)]
mod requests_scenarios;
mod roll;
mod saved;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod size_scenarios;
mod traffic;
#[cfg(test)]
mod traffic_scenarios;
pub mod undo;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{Desired, FlannelToCalico, FlannelToCalicoStatus, MigrationPhase};
use api::node_migration::NodeMigrationSpec;
use api::{Migration, MigrationStatus, NodeMigration, names};
use engine::check::Check;
use engine::decision::WaitReason;
use engine::document::Document;
use engine::evict::Time;
use flannel_to_calico::checks::{self, CheckPolicy};
use flannel_to_calico::cluster::ClusterFacts;
use flannel_to_calico::detect::detect;
use flannel_to_calico::document;
use flannel_to_calico::host::HostSettings;
use flannel_to_calico::settings::Settings;

use crate::cache::Cache;
use crate::context::Context;
use crate::kind::Kind;
use crate::limits;
use crate::memory::Memory;
use crate::staged::settings_gone;
use crate::unused_fields::SpecField;
use crate::waits::wait;
use crate::write::WriteError;

impl Kind for FlannelToCalico {
    type Facts = ClusterFacts;
    type Settings = Settings;

    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), WriteError> {
        adopt::adopt_node_migrations(context, cache, migration).await
    }

    async fn read(
        &self,
        context: &Context,
        cache: &Cache,
        _memory: &mut Memory,
        _migration: &Migration,
        node_migrations: &[Arc<NodeMigration>],
    ) -> Result<ClusterFacts, WriteError> {
        Box::pin(dereference::dereference(context, cache, node_migrations)).await
    }

    fn silent(&self, facts: &ClusterFacts) -> Vec<String> {
        facts
            .nodes
            .values()
            .filter(|node| node.operating_system != "windows" && !facts.hosts.contains_key(&node.name))
            .map(|node| node.name.clone())
            .collect()
    }

    fn judge(&self, migration: &Migration, facts: &ClusterFacts) -> (Option<Settings>, Vec<Check>) {
        let settings = match detect(&self.options, facts) {
            Ok(settings) => settings,
            Err(checks) => return (None, checks),
        };
        let policy = CheckPolicy {
            strategy: self.strategy,
            legacy_pods: self.legacy_pods,
            allow_single_node: self.allow_single_node,
            permissions: limits::permissions(migration),
            on_blocked: limits::on_blocked(migration),
            time: Time {
                limit: limits::drain_timeout(migration),
                grace_period_seconds: migration.spec.drain.grace_period_seconds,
            },
            max_unavailable: limits::max_unavailable(migration),
        };
        let found = checks::check(&settings, facts, &policy);
        (Some(settings), found)
    }

    fn uses(&self, field: SpecField) -> bool {
        match field {
            SpecField::RollbackServices | SpecField::SoakGate => false,
            SpecField::RollbackNodes
            | SpecField::MaxUnavailable
            | SpecField::CanaryNodes
            | SpecField::CanarySoak
            | SpecField::Interval
            | SpecField::DrainTimeout
            | SpecField::GracePeriod
            | SpecField::OnBlocked
            | SpecField::EmptyDirData
            | SpecField::Force => true,
        }
    }

    fn document(&self, settings: &Settings, facts: &ClusterFacts, coordinator_node: &str) -> Document {
        document::document(self.strategy, self.legacy_pods, settings, facts, coordinator_node)
    }

    fn write_orders(&self, settings: &Settings, spec: &mut NodeMigrationSpec) {
        spec.flannel_to_calico.get_or_insert_default().host = Some(HostSettings::of(settings));
    }

    fn save(&self, settings: Settings, status: &mut MigrationStatus) {
        status.flannel_to_calico = Some(FlannelToCalicoStatus { settings });
    }

    async fn before(
        &self,
        context: &Context,
        cache: &Cache,
        migration: &Migration,
        _facts: &Self::Facts,
    ) -> Result<BTreeMap<String, String>, WriteError> {
        saved::read(context, cache, migration).await
    }

    async fn advance(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<&'static str>, WriteError> {
        let Some(FlannelToCalicoStatus { settings }) = status.flannel_to_calico.clone() else {
            settings_gone(status, "status.flannelToCalico.settings", "");
            return Ok(Vec::new());
        };
        advance(context, cache, memory, migration, self, &settings, status).await
    }
}

/// One pass of a started migration. Returns the reasons for which nodes in the rollout wait.
async fn advance(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    spec: &FlannelToCalico,
    settings: &Settings,
    status: &mut MigrationStatus,
) -> Result<Vec<&'static str>, WriteError> {
    let desired = migration.spec.desired;
    match (desired, status.phase) {
        (_, MigrationPhase::Completed | MigrationPhase::RolledBack) => return Ok(Vec::new()),
        (Desired::Rollback, _) => {
            if let Some(message) = past_return(cache, settings) {
                // A rollback needs flannel, which is not installed any more.
                "PastReturn".clone_into(&mut status.reason);
                status.message = message;
                return Ok(Vec::new());
            }
            status.phase = MigrationPhase::RollingBack;
        }
        // The migration continues or stops after a rollback: restored cluster-wide objects are written again before any node
        // changes.
        (Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort, _)
            if status.rollback_started_at.is_some() =>
        {
            status.phase = MigrationPhase::Preparing;
        }
        // A finished node is to be rolled back: this must happen before the end.
        (Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort, MigrationPhase::Finishing)
            if roll::is_rollback_requested(cache, migration) =>
        {
            if let Some(message) = past_return(cache, settings) {
                "PastReturn".clone_into(&mut status.reason);
                status.message = message;
                return Ok(Vec::new());
            }
            status.phase = MigrationPhase::Rolling;
        }
        (Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort, _) => {}
    }
    let between_nodes = matches!(
        status.phase,
        MigrationPhase::Preparing | MigrationPhase::Finishing
    );
    if between_nodes && status.paused {
        let message = "paused: no node is in progress. Continue with `kubectl replumb resume`";
        wait(status, WaitReason::Paused, message.to_owned());
        return Ok(Vec::new());
    }
    match status.phase {
        MigrationPhase::Preparing => prepare::prepare(context, cache, migration, settings, status).await?,
        MigrationPhase::Finishing => {
            finish::finish(context, cache, memory, migration, settings, status).await?;
        }
        MigrationPhase::Completed | MigrationPhase::RolledBack => {}
        MigrationPhase::RollingBack
        | MigrationPhase::Pending
        | MigrationPhase::Planning
        | MigrationPhase::Planned
        | MigrationPhase::Refused
        | MigrationPhase::Rolling
        | MigrationPhase::Mixed
        | MigrationPhase::Halted => {
            return roll::roll(context, cache, memory, migration, spec, settings, status).await;
        }
    }
    Ok(Vec::new())
}

/// Why a rollback is impossible: flannel's `DaemonSet` is deleted, or being deleted.
fn past_return(cache: &Cache, settings: &Settings) -> Option<String> {
    let (namespace, name) = (
        &settings.flannel_daemon_set_namespace.value,
        &settings.flannel_daemon_set_name.value,
    );
    let set = prepare::daemon_set(cache, namespace, name);
    set.is_none_or(|set| set.metadata.deletion_timestamp.is_some())
        .then(|| {
            format!(
                "DaemonSet {namespace}/{name} is deleted: the migration is past its point of no return. Finish it with \
                 `kubectl replumb resume`; or apply flannel's manifest again with the node selector \
                 {}={}, and the rollback continues",
                names::NODE_NETWORK_LABEL,
                names::NETWORK_FLANNEL
            )
        })
}
