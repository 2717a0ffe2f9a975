//! Foreign objects in a real cluster, created by a tenant (the stranger): before a migration, while a node is migrated, and
//! during a rollback. Other nodes are migrated, the rollback works, and `kubectl replumb status` names the object within ten
//! seconds.

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

/// `maxGapMilliseconds`: the longest time without an answer that does not halt a migration. A flood and a crowd take processor
/// time from the probes, and these cases do not test the load of the machine.
const LONGEST_GAP: u32 = 10_000;

/// The gates of the Migrations of these cases, as a part of the spec.
fn patient_gates() -> Value {
    json!({ "gates": { "maxGapMilliseconds": LONGEST_GAP, "maxLossRatio": 0.5 } })
}

/// The same for a migration in place after which flannel's bridge stays, with the pods from before.
fn patient_with_bridge() -> Value {
    let mut spec = patient_gates();
    spec["flannelToCalico"] = json!({ "legacyPods": "Keep" });
    spec
}

/// Creates or changes an object, as the stranger.
async fn put(cluster: &Cluster, object: &Value) -> Result<()> {
    cluster.api().apply(&object.to_string()).await
}

/// Pods, budgets, policies and floods, in one cluster of three nodes: three migrations from flannel to Calico, each with a
/// rollback.
pub async fn strangers(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    quiet::cases(cluster, tools, &mut tally).await;
    blockers::cases(cluster, tools, &mut tally).await;
    tally
}

/// Services: a migration to another Service range, and its rollback.
pub async fn stranger_services(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    services::cases(cluster, tools, &mut tally).await;
    tally
}
