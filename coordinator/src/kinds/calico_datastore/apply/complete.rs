//! The end of a conversion in a cluster.

use api::MigrationStatus;
use api::migration::{CalicoDatastoreStatus, Direction};
use calico_datastore::cluster::step::Step;
use crash_point::Edge;

use super::super::pass::Pass;
use super::super::report;
use crate::memory::Memory;
use crate::staged;
use crate::write::WriteError;

impl Pass<'_> {
    /// Deletes what replumb created for the migration, and sets the final phase.
    pub(super) async fn complete(
        &self,
        direction: Direction,
        memory: &mut Memory,
        known: &mut CalicoDatastoreStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        crash_point::reach(Step::Finish.name(), Edge::Announced, None).await;
        if !staged::end_traffic(self.context, memory, self.snapshot, status).await? {
            return Ok(());
        }
        let message = report::completed(known, direction);
        crash_point::reach(Step::Finish.name(), Edge::Changed, None).await;
        staged::leave(&mut known.stage, &mut known.history, self.now);
        self.context.metrics.pods_without_network.set(0);
        self.context.metrics.calico_paused.set(0);
        staged::complete(self.context, self.migration, direction, self.now, message, status).await;
        Ok(())
    }
}
