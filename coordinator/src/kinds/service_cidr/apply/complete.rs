//! The end of a change of the Services' range.

use api::MigrationStatus;
use api::migration::ServiceCidrStatus;
use crash_point::Edge;
use service_cidr::step::Step;

use super::super::pass::{Pass, direction};
use super::super::report;
use crate::memory::Memory;
use crate::staged;
use crate::write::WriteError;

impl Pass<'_> {
    /// Deletes what replumb created for the migration, and sets the final phase.
    pub(super) async fn complete(
        &self,
        memory: &mut Memory,
        known: &mut ServiceCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<(), WriteError> {
        crash_point::reach(Step::Complete.name(), Edge::Announced, None).await;
        if !staged::end_traffic(self.context, memory, self.snapshot, status).await? {
            return Ok(());
        }
        let message = report::completed(known, self.goal);
        crash_point::reach(Step::Complete.name(), Edge::Changed, None).await;
        staged::leave(&mut known.stage, &mut known.history, self.now);
        let direction = direction(self.goal);
        staged::complete(self.context, self.migration, direction, self.now, message, status).await;
        Ok(())
    }
}
