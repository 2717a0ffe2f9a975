//! Felix, of v2.6 and v3.8. It waits while Calico is paused, and ends if Calico is paused while it runs: the
//! supervisor restarts it. The kernel keeps its routes and rules.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tracing::{info, warn};

use super::flag::{self, Flag};
use super::store::Store;
use super::world;
use crate::felix::health::{self, Health};
use crate::felix::work::Work;
use crate::node::environment::Environment;
use crate::version::Generation;

/// Time between two reads of everything. The real Felix also waits this time between two reads of the flag, but
/// watches its other inputs.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until Calico is paused, or its settings change.
pub async fn run(environment: &Environment, store: &Store) -> Result<ExitCode> {
    let host = environment.node_name()?;
    let health = Health::new();
    if environment.get("FELIX_HEALTHENABLED") == Some("true") {
        health::serve(Arc::clone(&health), address(environment, store.generation)?).await?;
    }
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = None;
    loop {
        interval.tick().await;
        let flag = flag::read(store).await;
        match &flag {
            Ok(Flag::Ready) => break,
            // Ready, so that a rollout of the DaemonSet continues while Calico is paused. v2.6 without a flag has an
            // error instead.
            Ok(Flag::NotReady) => health.passed(),
            Ok(Flag::Missing) if store.generation == Generation::V3 => health.passed(),
            Ok(Flag::Missing) | Err(_) => health.alive(),
        }
        let now = match (&flag, store.generation) {
            (Err(error), _) => format!("Failed to read the flag, will retry: {error:#}"),
            (Ok(Flag::Missing), Generation::V2) => {
                "Failed to read global datastore 'Ready' flag, will retry...".to_owned()
            }
            (Ok(_), Generation::V2) => "Global datastore 'Ready' flag set to false, waiting...".to_owned(),
            (Ok(_), Generation::V3) => "Waiting for datastore to be initialized (or migrated)".to_owned(),
        };
        if said.as_ref() != Some(&now) {
            warn!("{now}");
            said = Some(now);
        }
    }
    info!("the datastore is ready");
    let (settings, world) = world::read(store, &host, environment).await?;
    let mut work = Work::begin(&host, settings, &world)?;
    loop {
        match flag::read(store).await {
            Ok(Flag::Ready) => match world::read(store, &host, environment).await {
                Ok((settings, world)) => {
                    if let Some(code) = work.pass(&settings, &world).await? {
                        return Ok(code);
                    }
                }
                Err(error) => warn!("{error:#}; retrying in {INTERVAL:?}"),
            },
            Ok(Flag::NotReady | Flag::Missing) => {
                warn!("Datastore became unready, need to restart.");
                return Ok(ExitCode::FAILURE);
            }
            Err(error) => warn!("read the flag: {error:#}; continuing with the last state"),
        }
        health.passed();
        interval.tick().await;
    }
}

/// Address of the health port: v2.6 answers every host, v3.8 only its own.
fn address(environment: &Environment, generation: Generation) -> Result<(String, u16)> {
    let everywhere = match generation {
        Generation::V2 => "0.0.0.0",
        Generation::V3 => "localhost",
    };
    let host = environment.get("FELIX_HEALTHHOST").unwrap_or(everywhere);
    let port = environment.get("FELIX_HEALTHPORT").unwrap_or("9099");
    let port = port
        .parse()
        .with_context(|| format!("read FELIX_HEALTHPORT: {port:?} is not a port"))?;
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_answers_the_kubelet_and_v3_its_own_probe() {
        let environment = Environment::from([("FELIX_HEALTHPORT", "9100")]);
        let of = |generation| address(&environment, generation).unwrap();
        assert_eq!(of(Generation::V2), ("0.0.0.0".to_owned(), 9100));
        assert_eq!(of(Generation::V3), ("localhost".to_owned(), 9100));
    }
}
