//! The inputs of one pass.

use api::Migration;
use api::migration::{CalicoDatastoreStatus, Desired, Direction};
use jiff::Timestamp;

use super::saved::Saved;
use crate::cache::Cache;
use crate::context::Context;
use crate::snapshot::Snapshot;

/// The inputs of one pass.
pub(super) struct Pass<'pass> {
    pub(super) context: &'pass Context,
    pub(super) cache: &'pass Cache,
    pub(super) migration: &'pass Migration,
    pub(super) saved: &'pass Saved,
    pub(super) snapshot: &'pass Snapshot,
    /// Whether only the clean-up of what replumb created for the migration remains.
    pub(super) is_over: bool,
    pub(super) now: Timestamp,
}

impl Pass<'_> {
    /// The direction. After a rollback without a command, the direction stays Back: another Migration converts the data again.
    pub(super) fn direction(&self, known: &CalicoDatastoreStatus) -> Direction {
        let has_turned = known.automatic_rollback.is_some();
        match self.migration.spec.desired {
            // Half a conversion is no state to stay in.
            Desired::Rollback | Desired::Abort => Direction::Rollback,
            Desired::Plan | Desired::Run | Desired::Pause if has_turned => Direction::Rollback,
            Desired::Plan | Desired::Run | Desired::Pause => Direction::Forward,
        }
    }
}
