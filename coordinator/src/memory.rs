//! What outlives a pass and is lost at a restart: nothing that a decision needs to be safe.

use api::Migration;
use api::migration::Warnings;
use engine::stalls::Stalls;
use jiff::Timestamp;

use crate::cache::Cache;
use crate::checks_log::ChecksLog;
use crate::clock::{Clock, Moment};
use crate::context::Context;
use crate::drift::Restores;
use crate::evict::{Evictions, Refusals};
use crate::kinds::flannel_to_calico::undo::Undone;
use crate::kinds::{calico_datastore, pod_cidr, service_cidr};
use crate::records::Records;
use crate::silence::Silence;
use crate::tell::Tone;
use crate::traffic::Known;
use crate::untold::Untold;
use crate::warnings;
use crate::words::Words;
use crate::workloads::Needs;

/// What outlives a pass.
#[derive(Default)]
pub struct Memory {
    /// Refused evictions.
    pub refusals: Refusals,
    /// Evictions that have been asked for and not answered yet.
    pub evictions: Evictions,
    /// Namespaces whose moved pods do not become Ready.
    pub stalls: Stalls,
    /// When the whole cluster was last read for the checks.
    pub checked_at: Option<Timestamp>,
    /// How long that took.
    pub check_took: std::time::Duration,
    /// Agents that have not said what the checks need.
    pub silence: Silence,
    /// What the Migration remembers beside its own object.
    pub records: Records,
    /// What the log says of the checks.
    pub checks_logged: ChecksLog,
    /// When objects that no watch brings were last compared with what was written.
    pub drift_looked_at: Option<Timestamp>,
    /// When what somebody else changed was written again.
    pub restores: Restores,
    /// Whether the clock was set.
    pub clock: Clock,
    /// What is known of the traffic pods, and of the Services that they send to.
    pub traffic: Known,
    /// What is known of the way back to flannel.
    pub undone: Undone,
    /// What others need pods for.
    pub needs: Needs,
    /// What a pass could not do and no status says yet.
    pub untold: Untold,
    /// When words were written last.
    pub words: Words,
    /// What objects of others cost, as the status says it.
    pub warnings: warnings::Looks,
    /// What no watch brings, of a change of the pods' range.
    pub pod_cidr: pod_cidr::Looks,
    /// The same of a change of the Services' range.
    pub service_cidr: service_cidr::Looks,
    /// The same of a conversion of Calico's datastore, and who works on the stores.
    pub calico_datastore: calico_datastore::Looks,
}

impl Memory {
    /// Ends what goes on beside the passes: somebody else may lead from now on.
    pub fn stop(&mut self) {
        self.calico_datastore.worker.stop();
        self.evictions = Evictions::default();
        self.records.forget();
        self.warnings.forget();
    }

    /// What has to be told beside the message while this Migration goes on.
    pub fn warnings(&mut self, cache: &Cache, migration: &str) -> Option<Warnings> {
        self.warnings.of_traffic(self.traffic.silences.told());
        self.warnings.look(cache, migration)
    }

    /// Looks at the clock. When it was set, what was to be done at a certain time is due at once, and deadlines count anew.
    pub async fn look_at_the_clock(&mut self, context: &Context, migration: &Migration) {
        let Some(set) = self.clock.look(Moment::now()) else {
            return;
        };
        self.refusals.clear();
        context.obstacles.forget();
        self.checked_at = None;
        self.drift_looked_at = None;
        let way = if set.is_negative() { "back" } else { "forward" };
        let note = format!(
            "the clock of node {} was set {way} by {} s while the coordinator ran there: deadlines count from now. Times before \
             and after in the status do not compare",
            context.node_name,
            set.abs().as_secs()
        );
        context
            .teller
            .migration(migration, Tone::Warning, "ClockSet", &note)
            .await;
    }
}
