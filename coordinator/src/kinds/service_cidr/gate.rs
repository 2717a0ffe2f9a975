//! Reasons not to continue now: lost probes, and a stop or a pause by the user.

use api::MigrationStatus;

use super::pass::Pass;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::staged::{self, Gate};

impl Pass<'_> {
    /// Keeps the traffic pods, and returns why no step may run now: a stop, a pause, or lost probes.
    pub(super) async fn traffic(
        &self,
        memory: &mut Memory,
        status: &mut MigrationStatus,
    ) -> Result<Gate, PassError> {
        let watched = staged::watch_one_network(
            self.context,
            memory,
            self.migration,
            self.snapshot,
            self.is_over,
            status,
        )
        .await?;
        Ok(Gate::of(
            self.context,
            self.migration,
            &watched,
            status,
            self.now,
            || {
                "no Service starts to exchange its address, no pod restarts, and no range is created or deleted; every address \
                 answers"
                    .to_owned()
            },
            // Before the first change, too: otherwise earlier losses would count as the migration's.
            |_| watched.hold(self.migration),
        )
        .await)
    }
}
