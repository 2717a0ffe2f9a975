//! flannel VXLAN → Calico VXLAN: reads and writes of the cluster.
//!
//! `advance` makes a pass: `observe` reads, `view` has what the decision about a node depends on, `apply` writes, `report`
//! reports a node. The crate `flannel_to_calico` decides. `rollout` repeats these steps for each node in progress.

mod adopt;
mod advance;
mod after_end;
mod apply;
mod blocks;
mod drift;
mod node_objects;
mod observe;
mod pass;
mod preview;
mod report;
mod rollout;
mod saved;
#[cfg(test)]
mod scenarios;
mod traffic;
mod twins;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::migration::{FlannelToCalico, FlannelToCalicoStatus};
use api::node_migration::NodeMigrationSpec;
use api::traffic::TrafficGate;
use api::{Migration, MigrationStatus, NodeMigration};
use engine::check::Check;
use engine::cluster::silent_nodes;
use engine::document::Document;
use engine::evict::Time;
use engine::node_selection::NodeSelection;
use engine::reason::Reason;
use flannel_to_calico::checks::{self, CheckPolicy};
use flannel_to_calico::detect::detect;
use flannel_to_calico::document;
use flannel_to_calico::facts::{ClusterFacts, PreviewState};
use flannel_to_calico::host::HostSettings;
use flannel_to_calico::settings::Settings;

use self::pass::Pass;
use self::preview::PreviewMemory;
use crate::cache::Cache;
use crate::clock;
use crate::context::Context;
use crate::kind::Kind;
use crate::limits;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::staged::settings_gone;
use crate::unused_fields::SpecField;

/// Number of nodes written at the same time.
const NODES_AT_ONCE: usize = 8;

impl Kind for FlannelToCalico {
    type Facts = ClusterFacts;
    type Settings = Settings;

    async fn adopt(&self, context: &Context, cache: &Cache, migration: &Migration) -> Result<(), PassError> {
        adopt::adopt(context, cache, migration).await
    }

    async fn observe(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        node_migrations: &[Arc<NodeMigration>],
    ) -> Result<ClusterFacts, PassError> {
        let mut facts = Box::pin(observe::cluster(context, cache, node_migrations)).await?;
        facts.leave_out(&self.options);
        if let Ok(settings) = detect(&self.options, &facts) {
            let preview = memory.kinds.of::<PreviewMemory>();
            let observation = preview.observe(context, cache, migration, &settings, &facts);
            facts.policy_preview = Box::pin(observation).await;
        }
        Ok(facts)
    }

    fn unfinished(&self, facts: &ClusterFacts) -> Option<String> {
        match facts.policy_preview {
            PreviewState::Reading => Some("reading the network policies".to_owned()),
            PreviewState::Unread | PreviewState::Known(_) => None,
        }
    }

    fn silent(&self, facts: &ClusterFacts) -> Vec<String> {
        silent_nodes(&facts.nodes, &facts.hosts)
    }

    fn check(&self, migration: &Migration, facts: &ClusterFacts) -> (Option<Settings>, Vec<Check>) {
        let settings = match detect(&self.options, facts) {
            Ok(settings) => settings,
            Err(checks) => return (None, checks),
        };
        let policy = CheckPolicy {
            strategy: self.strategy,
            legacy_pods: self.legacy_pods,
            firewall_twins: self.firewall_twins,
            allow_single_node: self.allow_single_node,
            permissions: limits::permissions(migration),
            on_blocked: limits::on_blocked(migration),
            time: Time {
                limit: limits::drain_timeout(migration),
                grace_period_seconds: migration.spec.drain.grace_period_seconds,
            },
            max_unavailable: limits::max_unavailable(migration),
            watches_traffic: migration.spec.gates.traffic == TrafficGate::Watch,
            policy_preview: self.policy_preview.clone(),
        };
        let found = checks::check(&settings, facts, &policy);
        (Some(settings), found)
    }

    fn uses(&self, field: SpecField) -> bool {
        match field {
            SpecField::SoakGate => false,
            SpecField::MaxUnavailable
            | SpecField::CanaryNodes
            | SpecField::CanarySoak
            | SpecField::Interval
            | SpecField::DrainTimeout
            | SpecField::SourceAddressGate
            | SpecField::GracePeriod
            | SpecField::OnBlocked
            | SpecField::EmptyDirData
            | SpecField::Force => true,
        }
    }

    fn document(&self, settings: &Settings, facts: &ClusterFacts, coordinator_node: &str) -> Document {
        document::document(self, settings, facts, coordinator_node)
    }

    fn write_orders(&self, settings: &Settings, spec: &mut NodeMigrationSpec) {
        spec.flannel_to_calico.get_or_insert_default().host = Some(HostSettings::for_agents(
            settings,
            self.strategy,
            self.legacy_pods,
            self.firewall_twins,
        ));
    }

    fn save_settings(&self, settings: Settings, facts: &ClusterFacts, status: &mut MigrationStatus) {
        let policy_preview = match &facts.policy_preview {
            PreviewState::Known(preview) => Some(preview.status(&self.policy_preview)),
            PreviewState::Unread | PreviewState::Reading => None,
        };
        status.flannel_to_calico = Some(FlannelToCalicoStatus {
            settings,
            nodes: Some(facts.selection.clone()).filter(|selection| *selection != NodeSelection::default()),
            policy_preview,
        });
    }

    async fn saved_state(
        &self,
        context: &Context,
        cache: &Cache,
        migration: &Migration,
        _facts: &Self::Facts,
    ) -> Result<BTreeMap<String, String>, PassError> {
        saved::read(context, cache, migration).await
    }

    async fn advance(
        &self,
        context: &Context,
        cache: &Cache,
        memory: &mut Memory,
        migration: &Migration,
        status: &mut MigrationStatus,
    ) -> Result<Vec<Reason>, PassError> {
        memory.kinds.of::<PreviewMemory>().end(context).await;
        let Some(FlannelToCalicoStatus { settings, .. }) = status.flannel_to_calico.clone() else {
            settings_gone(status, "status.flannelToCalico.settings", "");
            return Ok(Vec::new());
        };
        let pass = Pass {
            context,
            cache,
            migration,
            kind: self,
            settings: &settings,
            now: clock::now(),
        };
        advance::advance(&pass, memory, status).await
    }

    async fn keep_up_after_end(
        &self,
        context: &Context,
        cache: &Cache,
        migration: &Migration,
    ) -> Result<(), PassError> {
        let status = migration.status.as_ref();
        match status.and_then(|status| status.flannel_to_calico.as_ref()) {
            Some(FlannelToCalicoStatus { settings, .. }) => {
                after_end::release(context, cache, migration, settings).await
            }
            None => Ok(()),
        }
    }
}
