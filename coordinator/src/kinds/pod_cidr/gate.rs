//! Reasons not to continue now: lost probes, and a stop or a pause by the user.

use api::MigrationStatus;
use api::migration::{CurrentStage, Direction, PodCidrStatus, Stage};
use engine::decision::{Wait, WaitReason};
use jiff::SignedDuration;
use kube::ResourceExt;
use pod_cidr::by_node;
use pod_cidr::decide::PoolRole;
use pod_cidr::facts::Pool;
use pod_cidr::pools::Openness;
use pod_cidr::settings::Family;

use super::pass::Pass;
use super::traffic as fates;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::staged::Gate;
use crate::traffic::Fates;
use crate::{cordon, limits, stop, traffic};

/// Least time for which every path between both ranges is probed before the new pool opens: one answer proves little.
const LEAST_SOAK: SignedDuration = SignedDuration::from_secs(10);

/// The gate of a pass, and the state of the paths between both ranges.
pub(super) struct Watched {
    /// Why no step may run now.
    pub(super) gate: Gate,
    /// Why not every path between both ranges counts as proved; `None` when every path answers with the address of the pod.
    pub(super) unproved: Option<Wait>,
}

impl Pass<'_> {
    /// Keeps the traffic pods, and returns why no step may run now: a stop, a pause, or lost probes.
    pub(super) async fn traffic(
        &self,
        memory: &mut Memory,
        have_to_move: bool,
        known: &mut PodCidrStatus,
        status: &mut MigrationStatus,
    ) -> Result<Watched, PassError> {
        let of = |which| openness(self.pool(which, known));
        let settings = &known.settings;
        let is_ipv4 = Family::of(&settings.from.value) == Family::Ipv4;
        let networks = fates::networks(&settings.old_pool.value, &settings.new_pool.value, is_ipv4);
        // After the last stage no traffic is probed; a change of the direction enters another stage.
        let is_over =
            |stage: &CurrentStage<Stage>| stage.name == Stage::CleanUp && stage.direction == self.direction;
        let wanted = if known.stage.as_ref().is_some_and(is_over) {
            Fates::new()
        } else {
            fates::fates(self.snapshot, self.direction, of, have_to_move)
        };
        let (mut watched, asks) = traffic::watch(
            self.context,
            &mut memory.traffic,
            self.migration,
            &networks,
            wanted,
            self.snapshot,
            status,
        )
        .await?;
        asks.write(self.context).await?;
        let is_open = of(PoolRole::New) >= Openness::OptIn;
        let has_changed_nothing =
            self.direction == Direction::Forward && !is_open && of(PoolRole::Old) == Openness::AllPods;
        let breach = watched.breaches.first().map(|message| Wait {
            reason: WaitReason::TrafficUnwatched,
            message: message.clone(),
            until: None,
        });
        let unproved = watched
            .wait
            .clone()
            .or(breach)
            .or_else(|| watched.masqueraded.clone());
        if !is_open && self.direction == Direction::Forward {
            // The proof starts again: the closed pool may have changed in other ways, too.
            known.proved_at = None;
        } else if is_open && unproved.is_none() {
            known.proved_at = known.proved_at.or(Some(self.now));
        }
        // The user may restart kube-proxy in stage Widen: such a loss ends without help, and is no breach of the migration.
        let lost_before = if has_changed_nothing {
            let breaches = std::mem::take(&mut watched.breaches);
            breaches.first().map(|breach| before_any_change(breach))
        } else {
            None
        };
        // Before, the canary waits, and says for what.
        let is_proved = known.proved_at.is_some();
        let gate = Gate::of(
            self.context,
            self.migration,
            &watched,
            status,
            self.now,
            || format!("no pod moves, and no pool opens or closes{}", self.cordoned()),
            // After a repair, traffic has to prove it.
            |status| {
                let proved_again = watched
                    .hold(self.migration)
                    .filter(|_| stop::is_to_be_proved(status));
                lost_before
                    .or(proved_again)
                    .or_else(|| watched.masquerade(self.migration).filter(|_| is_proved))
            },
        )
        .await;
        Ok(Watched { gate, unproved })
    }

    /// The Nodes that stay cordoned by this migration meanwhile, as the end of a sentence.
    fn cordoned(&self) -> String {
        let migration = self.migration.name_any();
        let nodes = self.snapshot.nodes.iter();
        let ours =
            nodes.filter(|(_, node)| cordon::is_unschedulable(node) && cordon::is_by(node, &migration));
        by_node::cordoned_suffix(ours.map(|(name, _)| name.as_str()))
    }

    /// The wait until every path between both ranges has answered for long enough.
    pub(super) fn canary(&self, known: &PodCidrStatus, unproved: Option<&Wait>) -> Option<Wait> {
        let settings = &known.settings;
        let rules = limits::rules(self.migration);
        let Some(proved_at) = known.proved_at else {
            return Some(Wait {
                reason: unproved.map_or(WaitReason::TrafficUnwatched, |wait| wait.reason),
                message: format!(
                    "pods that name IPPool {} must be reachable from every reporting node, with their own addresses, before other \
                     pods get its addresses: {}",
                    settings.new_pool.value,
                    unproved.map_or("", |wait| wait.message.as_str())
                ),
                until: None,
            });
        };
        let until = proved_at + rules.canary_soak.max(LEAST_SOAK);
        (self.now < until).then(|| Wait {
            reason: WaitReason::CanarySoak,
            message: format!(
                "every path between both ranges has answered since {proved_at:.0}; IPPool {} opens after {until:.0}",
                settings.new_pool.value
            ),
            until: Some(until),
        })
    }
}

/// The wait while traffic is lost before the migration has changed anything.
fn before_any_change(breach: &str) -> Wait {
    Wait {
        reason: WaitReason::TrafficUnwatched,
        message: format!(
            "traffic is lost, and the migration has changed nothing for pods yet. It continues once every path answers again: {breach}"
        ),
        until: None,
    }
}

/// How far a pool is open; a pool that is being deleted allocates no address any more.
pub(super) fn openness(pool: Option<&Pool>) -> Openness {
    match pool {
        None => Openness::Absent,
        Some(pool) if pool.terminating => Openness::Closed,
        Some(pool) => Openness::of(&pool.spec),
    }
}
