//! The Migration as an operator makes it, and what it says of itself.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::Migration;
use api::migration::MigrationPhase;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::size::{Kind, Size, Way};

/// Its name.
const NAME: &str = "scale";
/// For how long checks may refuse: DaemonSets roll, and agents report one after the other.
const PATIENCE: Duration = Duration::from_mins(3);

/// What the Migration says of itself.
#[derive(Clone, Debug)]
pub struct Stand {
    /// Its phase.
    pub phase: MigrationPhase,
    /// Its progress and its message.
    pub words: String,
}

impl Stand {
    /// Whether it has come to the phase that is waited for. An error where it never will.
    pub fn reached(&self, wanted: MigrationPhase, waited: Duration) -> Result<bool> {
        if self.phase == wanted {
            return Ok(true);
        }
        let stuck = match self.phase {
            MigrationPhase::Halted | MigrationPhase::RollingBack | MigrationPhase::RolledBack => true,
            MigrationPhase::Refused => waited > PATIENCE,
            MigrationPhase::Pending
            | MigrationPhase::Planning
            | MigrationPhase::Planned
            | MigrationPhase::Preparing
            | MigrationPhase::Rolling
            | MigrationPhase::Mixed
            | MigrationPhase::Finishing
            | MigrationPhase::Completed => false,
        };
        if stuck {
            bail!(
                "the Migration is {:?} and not {wanted:?}: {}",
                self.phase,
                self.words
            );
        }
        Ok(false)
    }
}

/// The phase in which all that is measured has happened.
pub fn end(size: &Size) -> MigrationPhase {
    match (size.migration, size.strategy) {
        (Kind::FlannelToCalico, Way::Drain) => MigrationPhase::Completed,
        (Kind::FlannelToCalico, Way::InPlace) => MigrationPhase::Mixed,
    }
}

/// Creates it; nothing moves yet.
pub async fn create(client: &Client, size: &Size) -> Result<()> {
    let migration: Migration = serde_json::from_value(manifest(size)).context("write the Migration")?;
    Api::<Migration>::all(client.clone())
        .create(&PostParams::default(), &migration)
        .await
        .context("create the Migration")?;
    Ok(())
}

/// Lets it run.
pub async fn start(client: &Client) -> Result<()> {
    Api::<Migration>::all(client.clone())
        .patch(
            NAME,
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"desired": "Run"}})),
        )
        .await
        .context("start the Migration")?;
    Ok(())
}

/// What it says now.
pub async fn stand(client: &Client) -> Result<Stand> {
    let migration = Api::<Migration>::all(client.clone())
        .get(NAME)
        .await
        .context("read the Migration")?;
    let status = migration.status.unwrap_or_default();
    Ok(Stand {
        phase: status.phase,
        words: format!("{:?} {} {}", status.phase, status.progress.text, status.message),
    })
}

fn manifest(size: &Size) -> Value {
    let strategy = match size.strategy {
        Way::Drain => "Drain",
        Way::InPlace => "InPlace",
    };
    let kind = match size.migration {
        Kind::FlannelToCalico => ("flannelToCalico", json!({"strategy": strategy})),
    };
    json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": {"name": NAME},
        "spec": {kind.0: kind.1, "desired": "Plan", "rollout": {"maxUnavailable": "10%"}},
    })
}
