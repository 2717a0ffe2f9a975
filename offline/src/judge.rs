//! Checks and plan of a migration on a snapshot.

use std::time::Duration;

use anyhow::{Context as _, bail};
use api::MigrationStatus;
use api::migration::MigrationPhase;
use engine::check::Check;
use serde_json::{Value, json};

use crate::cluster::MemoryCluster;
use crate::snapshot::Snapshot;

/// Name of the Migration in memory.
const NAME: &str = "judged";
/// Time limit of a judgement.
const LIMIT: Duration = Duration::from_mins(1);

/// The judgement of a snapshot.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// `Planned` or `Refused`.
    pub phase: MigrationPhase,
    /// The reason of a refusal, and its message.
    pub message: String,
    /// Every check.
    pub checks: Vec<Check>,
    /// The hash of the plan; none if its inputs were not found.
    pub plan_hash: Option<String>,
}

impl Judgement {
    /// The judgement in a status that has one.
    pub(crate) fn of(status: MigrationStatus) -> Self {
        Self {
            phase: status.phase,
            message: words(&status),
            checks: status.checks,
            plan_hash: status.plan.map(|plan| plan.hash),
        }
    }

    /// The checks that do not let the migration start.
    pub fn refusals(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.verdict.allows())
    }
}

/// The reason of a status, if it has one, and its message.
pub(crate) fn words(status: &MigrationStatus) -> String {
    if status.reason.is_empty() {
        status.message.clone()
    } else {
        format!("{}: {}", status.reason, status.message)
    }
}

/// Judges a migration with this `spec`. `spec.desired` is ignored.
///
/// # Errors
///
/// The snapshot cannot be completed, a pass fails, or the judgement takes too long.
pub async fn judge(snapshot: Snapshot, spec: &Value) -> anyhow::Result<Judgement> {
    let cluster = MemoryCluster::of(snapshot)?;
    let mut spec = spec.clone();
    spec["desired"] = json!("Plan");
    cluster.put_migration(NAME, &spec);
    judge_existing(&cluster, NAME).await
}

/// Judges the Migration of this name in a cluster.
///
/// # Errors
///
/// A pass fails, or the judgement takes too long.
pub async fn judge_existing(cluster: &MemoryCluster, name: &str) -> anyhow::Result<Judgement> {
    let judged = async {
        loop {
            if let Some(judgement) = of_status(cluster, name)? {
                return Ok(judgement);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(LIMIT, async {
        tokio::select! {
            judgement = judged => judgement,
            ended = cluster.run() => match ended {
                Ok(never) => match never {},
                Err(error) => Err(error),
            },
        }
    });
    let Ok(judgement) = ended.await else {
        bail!(
            "no judgement within {} s; status {}",
            LIMIT.as_secs(),
            cluster.status(name)
        );
    };
    judgement
}

/// The judgement in the status of the Migration, once it has one.
fn of_status(cluster: &MemoryCluster, name: &str) -> anyhow::Result<Option<Judgement>> {
    let status = cluster.status(name);
    if status.is_null() {
        return Ok(None);
    }
    let status: MigrationStatus =
        serde_json::from_value(status).context("reading the status of the Migration")?;
    if !matches!(status.phase, MigrationPhase::Planned | MigrationPhase::Refused) {
        return Ok(None);
    }
    Ok(Some(Judgement::of(status)))
}
