//! Objects of strangers on a real cluster: before a migration, while a node is in work, and on the way back. Other nodes finish, the way
//! back works, and `kubectl replumb status` names the object within ten seconds.

mod blockers;
mod crowd;
mod named;
mod objects;
mod quiet;
mod services;

use anyhow::Result;
use serde_json::{Value, json};

use super::Tally;
use crate::cluster::Cluster;
use crate::demo::Tools;

/// The longest time without an answer that does not stop a migration. A flood and a crowd take processor time from the probes: whether the
/// machine lets a pod run is not what is asked here.
const LONGEST_GAP: u32 = 10_000;

/// Gates of the Migrations here, as a part of their spec.
fn patient_gates() -> Value {
    json!({ "gates": { "maxGapMilliseconds": LONGEST_GAP, "maxLossRatio": 0.5 } })
}

/// Makes or changes an object as the stranger.
async fn put(cluster: &Cluster, object: &Value) -> Result<()> {
    cluster.api().apply(&object.to_string()).await
}

/// Pods, budgets, policies and floods, in one cluster of three nodes: from flannel to Calico and back three times.
pub async fn strangers(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    quiet::cases(cluster, tools, &mut tally).await;
    blockers::cases(cluster, tools, &mut tally).await;
    tally
}

/// Services: another range for all of them, and back.
pub async fn stranger_services(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    services::cases(cluster, tools, &mut tally).await;
    tally
}
