//! Reasons not to start the next step: lost probes, and a stop or a pause by the user.

use api::MigrationStatus;
use api::migration::CalicoDatastoreStatus;
use engine::decision::{Wait, WaitReason};

use super::pass::Pass;
use crate::memory::Memory;
use crate::staged::{self, Gate};
use crate::traffic::TrafficResult;
use crate::write::WriteError;

impl Pass<'_> {
    /// Keeps the traffic pods, and returns why no step may start now: a pause, lost probes, or traffic that is not observed.
    pub(super) async fn traffic(
        &self,
        memory: &mut Memory,
        known: &CalicoDatastoreStatus,
        adopted: Result<(), WriteError>,
        status: &mut MigrationStatus,
    ) -> Gate {
        let watched = match adopted {
            Ok(()) => {
                staged::watch_one_network(
                    self.context,
                    memory,
                    self.migration,
                    self.snapshot,
                    self.is_over,
                    status,
                )
                .await
            }
            Err(error) => Err(error.into()),
        };
        // The traffic is unobserved then, which must not keep Calico paused.
        let watched = watched.unwrap_or_else(|error| TrafficResult {
            wait: Some(Wait {
                reason: WaitReason::TrafficUnwatched,
                message: runtime::error::chain(&error),
                until: None,
            }),
            ..TrafficResult::default()
        });
        // While Calico is paused, a traffic pod that is gone cannot start again, and a wait for it would only prolong the pause.
        let is_before = known.record.is_none();
        Gate::of(
            self.context,
            self.migration,
            &watched,
            status,
            self.now,
            || "no further calico-node restarts, and neither store changes".to_owned(),
            |_| watched.hold(self.migration).filter(|_| is_before),
        )
        .await
    }
}
