//! The Migration as a user creates it, and its status.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::Migration;
use api::migration::MigrationPhase;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::size::{Kind, NEW_PODS, NEW_SERVICES, POD_NETWORK, Size, Strategy};

/// The name of the Migration.
const NAME: &str = "scale";
/// Seconds for which both ranges stay at the end.
const SOAK_SECONDS: u32 = 10;
/// Time limit for refused checks: DaemonSets roll, and agents report one after the other.
const PATIENCE: Duration = Duration::from_mins(3);

/// The status of the Migration.
#[derive(Clone, Debug)]
pub struct Stand {
    /// The phase.
    pub phase: MigrationPhase,
    /// The progress and its message.
    pub words: String,
    /// The reason for which the Migration waits.
    pub blocked: String,
    /// The message for the user.
    pub message: String,
}

impl Stand {
    /// Whether the Migration has reached the given phase. An error if it never will.
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

/// The phase in which all measured steps are done.
pub fn end(size: &Size) -> MigrationPhase {
    match (size.migration, size.strategy) {
        (Kind::FlannelToCalico, Some(Strategy::InPlace)) => MigrationPhase::Mixed,
        (Kind::FlannelToCalico, Some(Strategy::Drain) | None) | (Kind::PodCidr | Kind::ServiceCidr, _) => {
            MigrationPhase::Completed
        }
    }
}

/// Creates the Migration; no step starts yet.
pub async fn create(client: &Client, size: &Size) -> Result<()> {
    let migration: Migration = serde_json::from_value(manifest(size)).context("write the Migration")?;
    Api::<Migration>::all(client.clone())
        .create(&PostParams::default(), &migration)
        .await
        .context("create the Migration")?;
    Ok(())
}

/// Starts the Migration.
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

/// The present status; `None` while no API server answers.
pub async fn status(client: &Client) -> Result<Option<Stand>> {
    let migration = match Api::<Migration>::all(client.clone()).get(NAME).await {
        Ok(migration) => migration,
        Err(error) if is_away(&error) => return Ok(None),
        Err(error) => return Err(error).context("read the Migration"),
    };
    let status = migration.status.unwrap_or_default();
    Ok(Some(Stand {
        phase: status.phase,
        words: format!("{:?} {} {}", status.phase, status.progress.text, status.message),
        blocked: status.reason,
        message: status.message,
    }))
}

/// Whether no API server answered, or one that is still starting.
pub fn is_away(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500 || status.code == 429,
        _ => true,
    }
}

fn manifest(size: &Size) -> Value {
    let mut spec = match size.migration {
        Kind::FlannelToCalico => json!({
            "flannelToCalico": {
                "strategy": match size.strategy {
                    Some(Strategy::InPlace) => "InPlace",
                    Some(Strategy::Drain) | None => "Drain",
                },
                "legacyPods": "Keep",
                "soakSeconds": 0,
            },
            "rollout": {"maxUnavailable": "10%"},
        }),
        Kind::PodCidr => json!({
            "podCidr": {
                // No program routes Services of a cluster without hosts.
                "localRangesChecked": true,
                "from": POD_NETWORK, "to": NEW_PODS, "soakSeconds": SOAK_SECONDS, "podsAtOnce": pods_at_once(size),
            },
            "rollout": {"maxUnavailable": "10%"},
        }),
        Kind::ServiceCidr => json!({
            "serviceCidr": {
                "to": [NEW_SERVICES], "soakSeconds": SOAK_SECONDS, "servicesAtOnce": services_at_once(size),
                "podsAtOnce": pods_at_once(size),
            },
        }),
    };
    spec["desired"] = json!("Plan");
    json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": {"name": NAME}, "spec": spec,
    })
}

/// Number of Services that exchange their addresses at a time: a quarter of all, within the API's limit.
fn services_at_once(size: &Size) -> u32 {
    (size.services / 4).clamp(50, 250)
}

/// Number of pods that are evicted at a time: a fiftieth of all, and ten in a small cluster.
fn pods_at_once(size: &Size) -> u32 {
    (size.pods / 50).max(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_starting_api_server_counts_as_unavailable_and_a_refusing_one_does_not() {
        let answer = |code: u16| {
            let status = serde_json::from_value(
                json!({"status": "Failure", "message": "", "reason": "", "code": code}),
            );
            kube::Error::Api(status.unwrap())
        };
        assert!(is_away(&answer(503)) && is_away(&answer(429)));
        assert!(!is_away(&answer(404)) && !is_away(&answer(409)));
    }
}
