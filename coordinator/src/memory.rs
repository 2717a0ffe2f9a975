//! State that outlives a pass and is lost at a restart: no decision needs it to be safe.

use api::migration::Warnings;
use api::{Announcement, Migration};
use engine::stalls::Stalls;
use jiff::{SignedDuration, Timestamp};

use crate::cache::Cache;
use crate::checks_log::ChecksLog;
use crate::clock::{Clock, Moment};
use crate::context::Context;
use crate::drift::Restores;
use crate::events::EventLevel;
use crate::evictions::{Evictions, Refusals};
use crate::kind_memory::KindMemories;
use crate::needs::Needs;
use crate::records::Records;
use crate::silence::Silence;
use crate::traffic::TrafficMemory;
use crate::unreported::UnreportedFailure;
use crate::warnings;
use crate::words::MessageWrites;

/// Time between two upkeeps of Migrations that are over.
const UPKEEP_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// State that outlives a pass.
#[derive(Default)]
pub struct Memory {
    /// Refused evictions.
    pub refusals: Refusals,
    /// Requested evictions without an answer.
    pub evictions: Evictions,
    /// Namespaces whose moved pods do not become Ready.
    pub stalls: Stalls,
    /// Time of the last read of the whole cluster for the checks.
    pub checked_at: Option<Timestamp>,
    /// Duration of that read.
    pub check_took: std::time::Duration,
    /// Agents that have not reported what the checks need.
    pub silence: Silence,
    /// Records of the Migration beside its own object.
    pub records: Records,
    /// Lines of checks in the log.
    pub checks_logged: ChecksLog,
    /// Time of the last comparison of objects without a watch with what was written.
    pub drift_read_at: Option<Timestamp>,
    /// Times at which foreign changes were reverted.
    pub restores: Restores,
    /// Whether the clock was set.
    pub clock: Clock,
    /// Facts about traffic pods and the Services they send to.
    pub traffic: TrafficMemory,
    /// Needs of other workloads for pods.
    pub needs: Needs,
    /// Failures of a pass that no status reports yet.
    pub unreported: UnreportedFailure,
    /// Time of the last write of messages.
    pub words: MessageWrites,
    /// Effects of foreign objects, as the status reports them.
    pub warnings: warnings::WarningCache,
    /// Time of the last upkeep of Migrations that are over.
    pub upkept_at: Option<Timestamp>,
    /// State of each kind.
    pub(crate) kinds: KindMemories,
}

impl Memory {
    /// Ends background work: another coordinator may lead from now on.
    pub fn stop(&mut self) {
        self.kinds.stop();
        self.evictions = Evictions::default();
        self.records.forget();
        self.warnings.forget();
    }

    /// Warnings beside the message while this Migration is active.
    pub fn warnings(&mut self, cache: &Cache, migration: &str) -> Option<Warnings> {
        self.warnings.of_traffic(self.traffic.silences.reported());
        self.warnings.look(cache, migration)
    }

    /// Whether the upkeep of Migrations that are over is due; then it counts as done.
    pub fn upkeep_is_due(&mut self, now: Timestamp) -> bool {
        // The clock may have been set back.
        let is_over = |last: Timestamp| now < last || now.duration_since(last) >= UPKEEP_INTERVAL;
        let is_due = self.upkept_at.is_none_or(is_over);
        if is_due {
            self.upkept_at = Some(now);
        }
        is_due
    }

    /// Checks the clock. After it was set, retries are due at once and deadlines restart.
    pub async fn check_clock(&mut self, context: &Context, migration: &Migration) {
        let Some(set) = self.clock.observe(Moment::now()) else {
            return;
        };
        self.refusals.clear();
        context.obstacles.forget();
        self.checked_at = None;
        self.drift_read_at = None;
        let direction = if set.is_negative() { "back" } else { "forward" };
        let note = format!(
            "Node {}: the clock was set {direction} by {} s while the coordinator ran there: deadlines restart now. Times \
             before and after the change in the status are not comparable",
            context.node_name,
            set.abs().as_secs()
        );
        context
            .events
            .migration(migration, EventLevel::Warning, Announcement::ClockSet, &note)
            .await;
    }
}
