//! flannel VXLAN → Calico VXLAN: the driver of one pass.
//!
//! `dereference` reads, `plan` decides, `prepare`, `roll` and `finish` write, each in a stated order.

mod adopt;
#[cfg(test)]
mod back_scenarios;
mod calico;
#[cfg(test)]
mod clock_scenarios;
mod dereference;
mod drift;
#[cfg(test)]
mod drift_scenarios;
mod finish;
mod import;
#[cfg(test)]
mod in_place_scenarios;
#[cfg(test)]
mod ipv6_scenarios;
mod node_objects;
mod node_spec;
mod own_pods;
mod planning;
mod prepare;
mod probe;
mod roll;
mod saved;
#[cfg(test)]
mod scenarios;
mod traffic;
#[cfg(test)]
mod traffic_scenarios;
mod undo;
mod view;

use api::migration::{Desired, FlannelToCalico, MigrationPhase};
use api::{Migration, MigrationStatus, names};
use jiff::Timestamp;
use plan::decision::WaitReason;
use plan::flannel_to_calico::settings::Settings;
use plan::standstill::Standstill;

use crate::cache::Cache;
use crate::clock::{Clock, Moment};
use crate::context::Context;
use crate::evict::Refusals;
use crate::tell::Tone;
use crate::write::WriteError;

/// What outlives a pass and is lost at a restart: nothing that a decision needs to be safe.
#[derive(Default)]
pub struct Memory {
    /// Refused evictions.
    pub refusals: Refusals,
    /// When the whole cluster was last read for the checks.
    pub checked_at: Option<Timestamp>,
    /// When Calico's objects were last compared with what was written.
    pub drift_looked_at: Option<Timestamp>,
    /// When what somebody else changed was written again.
    pub restores: drift::Restores,
    /// Whether the clock was set.
    pub clock: Clock,
    /// Addresses of Services that traffic pods send to.
    pub services: traffic::Services,
}

impl Memory {
    /// Looks at the clock. When it was set, what was to be done at a certain time is due at once, and deadlines count anew.
    async fn look_at_the_clock(&mut self, context: &Context, migration: &Migration) {
        let Some(set) = self.clock.look(Moment::now()) else {
            return;
        };
        self.refusals.clear();
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

/// One pass of a Migration: does what is next and returns the status as it is now.
pub async fn reconcile(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    spec: &FlannelToCalico,
) -> Result<MigrationStatus, WriteError> {
    memory.look_at_the_clock(context, migration).await;
    let mut status = migration.status.clone().unwrap_or_default();
    status.observed_generation = migration.metadata.generation.unwrap_or_default();
    let started = Started::of(&status);
    status.paused = started.is_some()
        && match migration.spec.desired {
            Desired::Plan | Desired::Pause | Desired::Abort => true,
            Desired::Run | Desired::Rollback => false,
        };
    let Some(Started { settings }) = started else {
        planning::plan(context, cache, memory, migration, spec, &mut status).await?;
        count_blocked(context, &status, &[]);
        return Ok(status);
    };
    // A halt is decided anew at every look: what was mended goes on.
    if let Some(phase) = status.halted_in.take() {
        status.phase = phase;
    }
    let reasons = go_on(context, cache, memory, migration, spec, &settings, &mut status).await?;
    stand_still(migration, &memory.clock, &mut status);
    count_blocked(context, &status, &reasons);
    Ok(status)
}

/// One pass of a migration that has begun. Returns why each node in work waits.
async fn go_on(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    spec: &FlannelToCalico,
    settings: &Settings,
    status: &mut MigrationStatus,
) -> Result<Vec<&'static str>, WriteError> {
    let desired = migration.spec.desired;
    match (desired, status.phase) {
        (_, MigrationPhase::Completed | MigrationPhase::RolledBack) => return Ok(Vec::new()),
        (Desired::Rollback, _) => {
            if let Some(message) = past_return(cache, settings) {
                // Nobody can go back to a network that is not installed any more.
                "PastReturn".clone_into(&mut status.blocked);
                status.message = message;
                return Ok(Vec::new());
            }
            status.phase = MigrationPhase::RollingBack;
        }
        // It goes there again, or stops: what was taken back for the cluster is written anew before a node is touched.
        (Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort, _)
            if status.undone_since.is_some() =>
        {
            status.phase = MigrationPhase::Preparing;
        }
        // A node that is done is to go back, and the end must not come first.
        (Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort, MigrationPhase::Finishing)
            if roll::is_asked_back(cache, migration) =>
        {
            if let Some(message) = past_return(cache, settings) {
                "PastReturn".clone_into(&mut status.blocked);
                status.message = message;
                return Ok(Vec::new());
            }
            status.phase = MigrationPhase::Rolling;
        }
        (Desired::Plan | Desired::Run | Desired::Pause | Desired::Abort, _) => {}
    }
    let between_nodes = matches!(
        status.phase,
        MigrationPhase::Preparing | MigrationPhase::Finishing
    );
    if between_nodes && status.paused {
        let message = "paused: no node is in work. Go on with `kubectl replumb resume`";
        wait(status, WaitReason::Paused, message.to_owned());
        return Ok(Vec::new());
    }
    match status.phase {
        MigrationPhase::Preparing => prepare::prepare(context, cache, migration, settings, status).await?,
        MigrationPhase::Finishing => {
            finish::finish(context, cache, memory, migration, settings, status).await?;
        }
        MigrationPhase::Completed | MigrationPhase::RolledBack => {}
        MigrationPhase::RollingBack
        | MigrationPhase::Pending
        | MigrationPhase::Planning
        | MigrationPhase::Planned
        | MigrationPhase::Refused
        | MigrationPhase::Rolling
        | MigrationPhase::Mixed
        | MigrationPhase::Halted => {
            return roll::roll(context, cache, memory, migration, spec, settings, status).await;
        }
    }
    Ok(Vec::new())
}

/// Why nobody can go back: flannel's `DaemonSet` is deleted, or about to be.
fn past_return(cache: &Cache, settings: &Settings) -> Option<String> {
    let (namespace, name) = (
        &settings.flannel_daemon_set_namespace.value,
        &settings.flannel_daemon_set_name.value,
    );
    let set = prepare::daemon_set(cache, namespace, name);
    set.is_none_or(|set| set.metadata.deletion_timestamp.is_some())
        .then(|| {
            format!(
                "DaemonSet {namespace}/{name} is deleted: the migration is past its point of no return. Finish it with \
                 `kubectl replumb resume`; or apply flannel's manifest again, with the node selector \
                 {}={}, and it goes back",
                names::NODE_NETWORK_LABEL,
                names::NETWORK_FLANNEL
            )
        })
}

/// Says in the status what the whole migration waits for.
fn wait(status: &mut MigrationStatus, reason: WaitReason, message: String) {
    reason.as_str().clone_into(&mut status.blocked);
    status.message = message;
}

/// Gives a wait of the whole migration its deadline. A node in work has deadlines of its own.
fn stand_still(migration: &Migration, clock: &Clock, status: &mut MigrationStatus) {
    let mut before = status.standstill.take();
    if let Some(before) = &mut before {
        before.since = clock.since(before.since);
    }
    let reason = WaitReason::read(&status.blocked).filter(|_| status.progress.working.is_empty());
    if let Some(reason) = reason {
        let now = Timestamp::now();
        let wait = Standstill::look(before.as_ref(), reason, status.message.clone(), now);
        let limit = roll::step_timeout(migration);
        if let Some(halt) = wait.overdue(limit, clock.deadlines_from(migration.spec.resumed_at, now), now) {
            status.halted_in = Some(status.phase);
            status.phase = MigrationPhase::Halted;
            halt.reason.as_str().clone_into(&mut status.blocked);
            status.message.clone_from(&halt.message);
        }
        status.standstill = Some(wait);
    } else if status.phase == MigrationPhase::Halted {
        status.halted_in = Some(MigrationPhase::Rolling);
    }
}

/// Counts the nodes in work by why they wait; what only the whole migration waits for counts 1.
fn count_blocked(context: &Context, status: &MigrationStatus, reasons: &[&'static str]) {
    let blocked = &context.metrics.blocked;
    blocked.reset();
    for reason in reasons {
        blocked.with_label_values(&[*reason]).inc();
    }
    if !status.blocked.is_empty() {
        let whole = blocked.with_label_values(&[status.blocked.as_str()]);
        whole.set(whole.get().max(1));
    }
}

/// A migration that has made its first change works with the settings that it saved then.
struct Started {
    settings: Settings,
}

impl Started {
    fn of(status: &MigrationStatus) -> Option<Self> {
        status.started_at?;
        status.settings.clone().map(|settings| Self { settings })
    }
}
