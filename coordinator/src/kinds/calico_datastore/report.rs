//! The status of a conversion in a cluster: phase, progress and messages.

use api::MigrationStatus;
use api::migration::{CalicoDatastoreStatus, Direction, MigrationPhase};
use calico_datastore::cluster::calico::Calico;
use calico_datastore::cluster::step::Stage;

use super::observe::Observed;
use super::pass::Pass;
use super::pods;

/// The phase of the Migration in this stage.
pub(super) fn phase(stage: Stage, direction: Direction) -> MigrationPhase {
    match (direction, stage) {
        (Direction::Rollback, _) => MigrationPhase::RollingBack,
        (Direction::Forward, Stage::Prepare | Stage::Convert) => MigrationPhase::Preparing,
        (Direction::Forward, Stage::Nodes | Stage::Controllers) => MigrationPhase::Rolling,
        (Direction::Forward, Stage::Open | Stage::CleanUp) => MigrationPhase::Finishing,
    }
}

/// Counts the nodes with the target version of Calico.
pub(super) fn progress(status: &mut MigrationStatus, observed: &Observed, direction: Direction) {
    let target = match direction {
        Direction::Forward => Calico::V3,
        Direction::Rollback => Calico::V2,
    };
    let done = observed.nodes.iter().filter(|node| node.is_done(target)).count();
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    status.progress.text = format!("{done}/{} nodes", observed.nodes.len());
    status.progress.nodes = number(observed.nodes.len());
    status.progress.done = number(done);
}

/// The message of a completed migration.
pub(super) fn completed(known: &CalicoDatastoreStatus, direction: Direction) -> String {
    match direction {
        Direction::Forward => format!(
            "Calico works with etcd v3. Every node runs {}. etcd v2 is unchanged, except its Ready flag. Most waiting pods: {}",
            known.settings.to_image.value, known.max_pods_without_network
        ),
        Direction::Rollback => {
            let why = known
                .automatic_rollback
                .as_ref()
                .map(|turned| format!("{}: ", turned.reason))
                .unwrap_or_default();
            format!("{why}Calico works with etcd v2, as before. etcd v3 is restored")
        }
    }
}

impl Pass<'_> {
    /// Counts pods that wait for a network.
    pub(super) fn count(&self, known: &mut CalicoDatastoreStatus) {
        let waiting = pods::without_network(self.cache);
        let count = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        known.pod_without_network = waiting.into_iter().next().map(|pod| pod.key);
        known.pods_without_network = count;
        if known.paused_since.is_some() {
            known.max_pods_without_network = known.max_pods_without_network.max(count);
        }
        let metrics = &self.context.metrics;
        metrics.pods_without_network.set(i64::from(count));
        metrics.calico_paused.set(i64::from(known.paused_since.is_some()));
    }
}
