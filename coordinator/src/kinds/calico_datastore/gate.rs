//! Reasons not to start the next step: lost probes, and a stop or a pause by the user.

use std::collections::BTreeMap;

use api::MigrationStatus;
use api::migration::CalicoDatastoreStatus;
use engine::decision::{Wait, WaitReason};
use engine::traffic::Generation;
use engine::traffic::pods::PodDecision;

use super::drive::Pass;
use crate::facts;
use crate::memory::Memory;
use crate::stop::{self, Stop};
use crate::traffic::{self, Fates, Network, Networks, TrafficResult};
use crate::write::WriteError;

/// Why no step may start now.
pub(super) struct Held {
    /// The wait that the decision reports.
    pub(super) hold: Option<Wait>,
    /// The halt that needs a user.
    pub(super) stop: Option<Stop>,
}

impl Pass<'_> {
    /// Keeps the traffic pods, and returns why no step may start now: a pause, lost probes, or traffic that is not observed.
    pub(super) async fn traffic(
        &self,
        memory: &mut Memory,
        known: &CalicoDatastoreStatus,
        adopted: Result<(), WriteError>,
        status: &mut MigrationStatus,
    ) -> Held {
        let watched = match adopted {
            Ok(()) => self.watch(memory, status).await,
            Err(error) => Err(error),
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
        let lossy = traffic::stop(self.context, self.migration, &watched, status, self.now).await;
        let stop = stop::stop(None, status, lossy);
        // While Calico is paused, a traffic pod that is gone cannot start again, and a wait for it would only prolong the pause.
        let is_before = known.record.is_none();
        let hold = if let Some(stop) = &stop {
            Some(stop.hold())
        } else if status.paused {
            Some(Wait {
                reason: WaitReason::Paused,
                message: "paused: no further calico-node restarts, and neither store changes. Continue with `kubectl replumb \
                          resume`, or roll back with `kubectl replumb rollback --all`"
                    .to_owned(),
                until: None,
            })
        } else {
            watched.hold(self.migration).filter(|_| is_before)
        };
        Held { hold, stop }
    }

    async fn watch(
        &self,
        memory: &mut Memory,
        status: &mut MigrationStatus,
    ) -> Result<TrafficResult, WriteError> {
        let (watched, asks) = traffic::watch(
            self.context,
            &mut memory.traffic,
            self.migration,
            &networks(),
            self.fates(),
            self.snapshot,
            status,
        )
        .await?;
        asks.write(self.context).await?;
        Ok(watched)
    }

    fn fates(&self) -> Fates<'_> {
        let mut fates = BTreeMap::new();
        if self.is_over {
            return fates;
        }
        for name in self.snapshot.node_migrations.keys() {
            let Some(node) = self.snapshot.nodes.get(name) else {
                continue;
            };
            let is_usable = facts::nodes::is_ready(node) && self.snapshot.agent_ready(name);
            let fate = if is_usable {
                PodDecision::Wanted
            } else {
                PodDecision::Kept
            };
            fates.insert((name.as_str(), Generation::Old), fate);
        }
        fates
    }
}

/// Pods have one network here, and stay on it.
fn networks() -> Networks {
    Networks {
        old: Network {
            name: "pods",
            annotations: BTreeMap::new(),
        },
        new: Network {
            name: "none",
            annotations: BTreeMap::new(),
        },
    }
}
