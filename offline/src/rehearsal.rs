//! A rehearsal: the whole migration on a snapshot, in memory and without waiting. The passes are the coordinator's own, on clocks that
//! are advanced to the next event.
//!
//! `world` plays what the cluster would do, with measured times ([`pace`]): `daemons` the controller of `DaemonSet`s, `pods` the other
//! controllers, the scheduler and the kubelets, `budgets` the API server's decision on an eviction, `hosts` the agents. [`record`] is
//! what happened.

mod budgets;
mod daemons;
mod hosts;
mod life;
pub mod pace;
mod pods;
pub mod record;
mod state;
mod world;

use std::time::Duration;

use anyhow::{Context as _, bail};
use api::migration::MigrationPhase;
use api::{Migration, MigrationStatus};
use coordinator::clock::Rehearsed;
use coordinator::offline::Offline;
use serde_json::{Value, json};

use self::pace::Pace;
use self::record::Rehearsal;
use self::world::World;
use crate::judge::Judgement;
use crate::paths::MIGRATIONS;
use crate::snapshot::{Coordinator, Snapshot};

/// The time of a pass that changes something, with the writes.
const PASS: Duration = Duration::from_millis(100);
/// The interval of passes without a change, and once nothing has changed for some time.
const TICK: Duration = Duration::from_secs(1);
const SLOW_TICK: Duration = Duration::from_secs(5);
/// Passes without a change after which the interval is the slow one.
const QUIET: u32 = 20;
/// The most passes: a migration that needs more is not rehearsed to its end.
const PASSES: u32 = 200_000;

/// Why a snapshot was not rehearsed.
#[derive(Debug)]
pub enum Outcome {
    /// It was.
    Rehearsed(Box<Rehearsal>),
    /// The checks refuse the migration.
    Refused(Box<Judgement>),
}

/// Rehearses the Migration of this name that is in the snapshot. What waits for people is left out: the soak time. No probe is lost.
///
/// # Errors
///
/// The snapshot is not complete, the kind is not rehearsed, or a pass fails.
pub async fn rehearse(snapshot: Snapshot, migration: &str, pace: Pace) -> anyhow::Result<Outcome> {
    let coordinator = snapshot.coordinator().clone();
    let (objects, reports) = snapshot.complete()?;
    let clock = Rehearsed::starting_now();
    let world = World::new(objects, reports, pace, clock.clone());
    let path = format!("{MIGRATIONS}/{migration}");
    prepare(&world, &path)?;
    let run = Run {
        world: &world,
        clock: &clock,
        path: &path,
        migration,
    };
    clock.scope(run.to_the_end(&coordinator)).await
}

/// Leaves out what is not played.
fn prepare(world: &World, path: &str) -> anyhow::Result<()> {
    let mut migration = world.get(path).context("the snapshot has no such Migration")?;
    let spec = &mut migration["spec"];
    if spec["flannelToCalico"].is_null() {
        bail!("only flannelToCalico can be rehearsed");
    }
    spec["flannelToCalico"]["soakSeconds"] = json!(0);
    spec["desired"] = json!("Plan");
    world.put(path, migration);
    Ok(())
}

struct Run<'run> {
    world: &'run World,
    clock: &'run Rehearsed,
    path: &'run str,
    migration: &'run str,
}

impl Run<'_> {
    async fn to_the_end(&self, at: &Coordinator) -> anyhow::Result<Outcome> {
        let mut coordinator = Offline::new(self.world.client(), &at.namespace, &at.node)?;
        let mut quiet = 0;
        let mut started = None;
        for _ in 0..PASSES {
            if started.is_none() {
                coordinator.adopt(&self.world.objects(), self.migration).await?;
                self.world.report_before_start()?;
            }
            let has_acted = started.is_some() && self.world.act();
            let writes = self.world.writes();
            coordinator.pass(&self.world.objects()).await?;
            let status = self.status()?;
            match status.phase {
                MigrationPhase::Refused => return Ok(Outcome::Refused(Box::new(Judgement::of(status)))),
                MigrationPhase::Planned if started.is_none() => {
                    started = Some(self.clock.passed());
                    self.start(&status);
                    continue;
                }
                phase if is_end(phase) => {
                    let begun = started.unwrap_or_default();
                    return Ok(Outcome::Rehearsed(Box::new(self.world.rehearsal(&status, begun))));
                }
                _ => {}
            }
            if started.is_none() {
                // The checks read policies beside the passes, in real time.
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            if has_acted || self.world.writes() != writes {
                quiet = 0;
                self.clock.advance(PASS);
                continue;
            }
            quiet += 1;
            let tick = if quiet > QUIET { SLOW_TICK } else { TICK };
            self.clock
                .advance(self.world.until_next_event().map_or(tick, |next| next.min(tick)));
        }
        bail!(
            "Migration {} has not ended after {PASSES} passes: {}",
            self.migration,
            self.status()?.message
        )
    }

    fn start(&self, status: &MigrationStatus) {
        let mut migration = self.world.get(self.path).unwrap_or_default();
        migration["spec"]["desired"] = json!("Run");
        migration["spec"]["planHash"] = json!(status.plan.as_ref().map(|plan| plan.hash.clone()));
        self.world.put(self.path, migration);
    }

    fn status(&self) -> anyhow::Result<MigrationStatus> {
        let migration: Value = self.world.get(self.path).context("the Migration is gone")?;
        let migration: Migration = serde_json::from_value(migration).context("reading the Migration")?;
        Ok(migration.status.unwrap_or_default())
    }
}

/// Whether no pass changes the phase any more without a person.
fn is_end(phase: MigrationPhase) -> bool {
    match phase {
        MigrationPhase::Completed
        | MigrationPhase::Halted
        | MigrationPhase::Mixed
        | MigrationPhase::RolledBack => true,
        MigrationPhase::Pending
        | MigrationPhase::Planning
        | MigrationPhase::Planned
        | MigrationPhase::Refused
        | MigrationPhase::Preparing
        | MigrationPhase::Rolling
        | MigrationPhase::Finishing
        | MigrationPhase::RollingBack => false,
    }
}
