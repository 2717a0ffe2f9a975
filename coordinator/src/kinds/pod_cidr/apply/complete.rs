//! The end of a change of the range.

use api::MigrationStatus;
use api::migration::PodCidrStatus;
use crash_point::Edge;
use pod_cidr::decide::Step;

use super::super::pass::Pass;
use super::super::read_cache::ReadCache;
use super::super::{REDUNDANT_REPLICAS, calico_nodes, report};
use super::StepExecutor;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::read_cache::Pace;
use crate::staged;

impl Pass<'_> {
    /// Restores scaled Deployments, ends the traffic pods, and sets the final phase.
    pub(super) async fn complete(
        &self,
        executor: &StepExecutor<'_>,
        memory: &mut Memory,
        known: &mut PodCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), PassError> {
        crash_point::reach(Step::Complete.name(), Edge::Announced, None).await;
        executor.restore_replicas(known, REDUNDANT_REPLICAS).await?;
        calico_nodes::forget(self.store, self.cache).await?;
        if !staged::end_traffic(self.context, memory, self.snapshot, status).await? {
            return Ok(());
        }
        let mentions = memory
            .kinds
            .of::<ReadCache>()
            .mentions(
                self.context,
                self.cache,
                self.store,
                self.kind,
                known.settings.calico_daemon_set(),
                Pace::Waited,
            )
            .await?;
        let message = report::completed(known, self.direction, &mentions);
        crash_point::reach(Step::Complete.name(), Edge::Changed, None).await;
        staged::leave(&mut known.stage, &mut known.history, self.now);
        staged::complete(
            self.context,
            self.migration,
            self.direction,
            self.now,
            message,
            status,
        )
        .await;
        Ok(())
    }
}
