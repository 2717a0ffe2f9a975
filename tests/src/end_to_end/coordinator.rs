//! The coordinator dies.

use std::time::Duration;

use anyhow::Result;

use super::look::Looker;
use crate::cluster::Cluster;
use crate::cluster::processes::COORDINATOR;
use crate::cluster::wait::{Observation, until};

/// How long it may take to come back.
const BACK: Duration = Duration::from_mins(6);

/// kill -9 of the coordinator, until it was started again.
pub async fn kill_coordinator(cluster: &Cluster, look: &Looker) -> Result<()> {
    let (_, home, before) = look.coordinator().await?;
    cluster.kill_process(&home, &COORDINATOR).await?;
    until(
        "the coordinator is started again",
        BACK,
        &cluster.directory().logs(),
        async || {
            let (name, _, now) = look.coordinator().await?;
            Ok(if now > before {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("pod {name} was started {now} times again"))
            })
        },
    )
    .await
}
