//! flannel VXLAN → Calico VXLAN: flags, Calico's environment variables, settings, and the effect of a rollback.

mod environment;
mod flags;
mod policies;
mod rollback;
mod settings;

use ::flannel_to_calico::phase::Phase;
use api::migration::LegacyPods;
use api::{Migration, MigrationSpec, MigrationStatus, NodeMigration, NodeMigrationStatus};
use futures::future::LocalBoxFuture;
use jiff::Timestamp;

use super::kind::{KindCommands, KindTypes, NodeProgress, PlanPart};
use super::nothing::Nothing;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::rollback_targets::RollbackTargets;

/// flannelToCalico in the commands.
pub struct Commands;

impl KindTypes for Commands {
    type Flags = flags::Flags;
    type Manifest = Nothing;
    type Standalone = Nothing;
    type Settings = ::flannel_to_calico::settings::Settings;
    type Progress = Nothing;
}

impl KindCommands for Commands {
    fn plan_part(&self, status: &MigrationStatus) -> Option<PlanPart> {
        let known = status.flannel_to_calico.as_ref()?;
        Some(policies::part(known.policy_preview.as_ref()?))
    }

    /// Legacy pods are restarted once every node is on the new network.
    fn continues_when_mixed(&self, spec: &MigrationSpec) -> bool {
        let kind = spec.flannel_to_calico.as_ref();
        kind.is_some_and(|kind| kind.legacy_pods == LegacyPods::Restart)
    }

    fn node_progress(&self, report: &NodeMigrationStatus) -> Option<NodeProgress> {
        let report = report.flannel_to_calico.as_ref()?;
        Some(NodeProgress {
            phase: report.phase.map(Phase::as_str),
            leftovers: report.leftovers.clone(),
            changes: report.changes.clone(),
        })
    }

    fn rolled_back_alone<'spec>(&self, spec: &'spec mut MigrationSpec) -> Option<&'spec mut Vec<String>> {
        spec.flannel_to_calico
            .as_mut()
            .map(|kind| &mut kind.rollback_nodes)
    }

    fn check_rollback<'run>(
        &'run self,
        _cluster: &'run Cluster,
        migration: &'run Migration,
        targets: &'run RollbackTargets,
    ) -> LocalBoxFuture<'run, Result<Option<String>, CliError>> {
        Box::pin(async {
            targets.require_no_services(migration)?;
            Ok(None)
        })
    }

    fn describe_nodes<'run>(
        &'run self,
        cluster: &'run Cluster,
        nodes: &'run [&'run NodeMigration],
        all: bool,
    ) -> LocalBoxFuture<'run, String> {
        Box::pin(rollback::describe(cluster, nodes, all, Timestamp::now()))
    }
}
