//! Kills the coordinator.

use std::time::Duration;

use anyhow::Result;

use super::migration_reader::MigrationReader;
use crate::cluster::Cluster;
use crate::cluster::processes::COORDINATOR;
use crate::cluster::wait::{Observation, until};

/// Longest time until the coordinator runs again.
const RESTARTED_WITHIN: Duration = Duration::from_mins(6);

/// Kills the coordinator with SIGKILL, and waits until it has restarted.
pub async fn kill_coordinator(cluster: &Cluster, reader: &MigrationReader) -> Result<()> {
    let (_, node, before) = reader.coordinator().await?;
    cluster.kill_process(&node, &COORDINATOR).await?;
    until(
        "the coordinator has restarted",
        RESTARTED_WITHIN,
        &cluster.directory().logs(),
        async || {
            let (name, _, now) = reader.coordinator().await?;
            Ok(if now > before {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("restarts of pod {name}: {now}"))
            })
        },
    )
    .await
}
