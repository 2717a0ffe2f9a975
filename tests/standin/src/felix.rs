//! Felix's part: the tunnel, the routes and the packet filter of this node.

pub mod health;
mod kernel;
pub mod model;
pub mod objects;
pub mod settings;
mod watch;
pub mod work;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use self::health::Health;
use self::watch::Cache;
use self::work::Work;
use crate::datastore;
use crate::node::environment::Environment;

/// Changes within this time are applied together.
const SETTLE: Duration = Duration::from_millis(50);

/// Runs until the settings change, with the Kubernetes API.
pub async fn run(environment: &Environment) -> Result<ExitCode> {
    let client = datastore::client(environment.kubeconfig().as_deref()).await?;
    let node = environment.node_name()?;
    let health = Health::new();
    let cache = Cache::start(&client, &node).await?;
    let settings = objects::settings(&cache, &node);
    if settings.health_enabled() {
        health::serve(Arc::clone(&health), settings.health_address()?).await?;
    }
    let mut work = Work::begin(&node, settings, &objects::world(&cache))?;
    loop {
        let settings = objects::settings(&cache, &node);
        if let Some(code) = work.pass(&settings, &objects::world(&cache)).await? {
            return Ok(code);
        }
        health.passed();
        if tokio::time::timeout(kernel::DEVICE_INTERVAL, cache.changed.notified())
            .await
            .is_ok()
        {
            tokio::time::sleep(SETTLE).await;
        }
    }
}
