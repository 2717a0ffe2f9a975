//! Demos in the lab: a cluster is migrated under traffic, and the result is checked with tools other than replumb. Each kind of
//! migration has a module; the other modules are shared.

pub mod breaking;
pub mod calico_datastore;
pub mod flannel_to_calico;
pub mod host;
pub mod ipam;
pub mod operator;
pub mod pod_cidr;
pub mod report;
pub mod same;
pub mod scene;
pub mod service_cidr;
pub mod traffic;
pub mod untouched;
pub mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use api::migration::MigrationPhase;
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// Name of the Migration of the demo.
pub const MIGRATION: &str = "demo";
/// Limit of the whole migration, with room for a busy machine.
const LIMIT: Duration = Duration::from_mins(30);

/// The Migration, as the API server has it.
pub async fn migration_object(cluster: &Cluster) -> Result<Value> {
    let text = cluster
        .api()
        .kubectl(&["get", "migrations.replumb.dev", MIGRATION, "-o", "json"])
        .await?;
    serde_json::from_str(&text).context("parse the Migration")
}

/// The status of the Migration.
pub async fn status(cluster: &Cluster) -> Result<Value> {
    Ok(migration_object(cluster).await?["status"].take())
}

/// Where a migration ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In the new range.
    Migrated,
    /// In the old range, after a rollback.
    RolledBack,
}

impl From<End> for MigrationPhase {
    fn from(end: End) -> Self {
        match end {
            End::Migrated => Self::Completed,
            End::RolledBack => Self::RolledBack,
        }
    }
}

/// The programs that a demo uses.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The `kubectl-replumb` that users have.
    pub command_line: PathBuf,
    /// The implementation of Calico.
    pub calico: String,
    /// Whether Calico is the real one, which enforces policies.
    pub calico_is_real: bool,
}

/// The Migration as a user would write it.
fn migration(spec: &Value) -> Value {
    json!({
        "apiVersion": "replumb.dev/v1alpha1",
        "kind": "Migration",
        "metadata": { "name": MIGRATION },
        "spec": spec,
    })
}

/// `rollout.maxUnavailable` from the text on a command line: a number, or a percentage.
fn max_unavailable(text: &str) -> Value {
    text.parse::<u32>().map_or_else(|_| text.into(), Into::into)
}

fn merge(target: &mut Value, change: &Value) {
    match (target.as_object_mut(), change.as_object()) {
        (Some(target), Some(change)) => {
            for (key, value) in change {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        _ => *target = change.clone(),
    }
}
