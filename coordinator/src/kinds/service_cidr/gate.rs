//! Reasons not to continue now: lost probes, and a stop or a pause by the user.

use std::collections::BTreeMap;

use api::MigrationStatus;
use engine::decision::{Wait, WaitReason};
use engine::traffic::Generation;
use engine::traffic::pods::PodDecision;

use super::drive::Pass;
use crate::facts;
use crate::memory::Memory;
use crate::stop::{self, Stop};
use crate::traffic::{self, Fates, Network, Networks};
use crate::write::WriteError;

/// Why no step may run now.
pub(super) struct Held {
    /// The wait that the decision reports.
    pub(super) hold: Option<Wait>,
    /// The halt that needs a user.
    pub(super) stop: Option<Stop>,
}

impl Pass<'_> {
    /// Keeps the traffic pods, and returns why no step may run now: a stop, a pause, or lost probes.
    pub(super) async fn traffic(
        &self,
        memory: &mut Memory,
        status: &mut MigrationStatus,
    ) -> Result<Held, WriteError> {
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
        let lossy = traffic::stop(self.context, self.migration, &watched, status, self.now).await;
        let stop = stop::stop(None, status, lossy);
        let hold = if let Some(stop) = &stop {
            Some(stop.hold())
        } else if status.paused {
            Some(Wait {
                reason: WaitReason::Paused,
                message: "paused: no Service starts to exchange its address, no pod restarts, and no range is created or \
                          deleted; every address answers. Continue with `kubectl replumb resume`, or roll back with `kubectl \
                          replumb rollback --all`"
                    .to_owned(),
                until: None,
            })
        } else {
            // Before the first change, too: otherwise earlier losses would count as the migration's.
            watched.hold(self.migration)
        };
        Ok(Held { hold, stop })
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
