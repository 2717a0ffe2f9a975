//! flannel VXLAN → Calico VXLAN: the driver of one pass.
//!
//! `dereference` reads, `plan` decides, `prepare`, `roll` and `finish` write, each in a stated order.

mod adopt;
mod calico;
mod dereference;
mod finish;
mod node_objects;
mod planning;
mod prepare;
mod probe;
mod roll;
#[cfg(test)]
mod scenarios;
mod view;

use api::migration::{Desired, FlannelToCalico, MigrationPhase};
use api::{Migration, MigrationStatus};
use jiff::Timestamp;
use plan::decision::WaitReason;
use plan::flannel_to_calico::settings::Settings;

use crate::cache::Cache;
use crate::context::Context;
use crate::evict::Refusals;
use crate::write::WriteError;

/// What outlives a pass and is lost at a restart: nothing that a decision needs to be safe.
#[derive(Default)]
pub struct Memory {
    /// Refused evictions.
    pub refusals: Refusals,
    /// When the whole cluster was last read for the checks.
    pub checked_at: Option<Timestamp>,
}

/// One pass of a Migration: does what is next and returns the status as it is now.
pub async fn reconcile(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    spec: &FlannelToCalico,
) -> Result<MigrationStatus, WriteError> {
    let mut status = migration.status.clone().unwrap_or_default();
    status.observed_generation = migration.metadata.generation.unwrap_or_default();
    let started = Started::of(&status);
    status.paused = started.is_some() && migration.spec.desired != Desired::Run;
    let Some(Started { settings }) = started else {
        planning::plan(context, cache, memory, migration, spec, &mut status).await?;
        return Ok(status);
    };
    let between_nodes = matches!(
        status.phase,
        MigrationPhase::Preparing | MigrationPhase::Finishing
    );
    if between_nodes && status.paused {
        WaitReason::Paused.as_str().clone_into(&mut status.blocked);
        "paused: no node is in work. Go on with `kubectl replumb resume`".clone_into(&mut status.message);
        return Ok(status);
    }
    match status.phase {
        MigrationPhase::Preparing => {
            prepare::prepare(context, cache, migration, &settings, &mut status).await?;
        }
        MigrationPhase::Finishing => {
            finish::finish(context, cache, migration, &settings, &mut status).await?;
        }
        MigrationPhase::Completed => {}
        MigrationPhase::Pending
        | MigrationPhase::Planning
        | MigrationPhase::Planned
        | MigrationPhase::Refused
        | MigrationPhase::Rolling
        | MigrationPhase::Halted => {
            roll::roll(context, cache, memory, migration, &settings, &mut status).await?;
        }
    }
    Ok(status)
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
