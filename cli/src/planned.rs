//! A Migration with current checks and plan: created or changed, then awaited.

use std::time::Duration;

use api::migration::{Desired, MigrationPhase};
use api::{Migration, MigrationRecord, MigrationSpec, NodeMigration};
use engine::document::Document;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::choose;
use crate::cluster::{Cluster, has_begun};
use crate::error::{CliError, MigrationProgress};
use crate::health;
use crate::request::{Request, differences};
use crate::retry::{POLL_INTERVAL, read_with_retries};
use crate::say;

/// The purpose of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To show the plan: `desired` is unchanged.
    Show,
    /// To start the migration: an earlier review and an earlier start are void until the user confirms this plan.
    Review,
}

/// A Migration with its nodes, read together.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The Migration; its status is of the current generation.
    pub migration: Migration,
    /// Its nodes in the order in which they change.
    pub nodes: Vec<NodeMigration>,
    /// Parts of the plan that do not fit into the Migration.
    pub records: Vec<MigrationRecord>,
    /// The requested spec; the existing one differs only in fields that the command sets.
    pub asked: MigrationSpec,
}

impl Planned {
    /// Name of the Migration.
    pub fn name(&self) -> String {
        self.migration.name_any()
    }

    /// Whether the first change has been made.
    pub fn has_begun(&self) -> bool {
        has_begun(&self.migration)
    }

    /// The phase of the Migration.
    pub fn phase(&self) -> MigrationPhase {
        self.migration
            .status
            .as_ref()
            .map(|status| status.phase)
            .unwrap_or_default()
    }
}

/// Creates or finds the requested Migration, and waits for its checks and its plan. Starts nothing.
pub async fn plan(
    cluster: &Cluster,
    name: Option<&str>,
    asked: &Request,
    purpose: Purpose,
    patience: Duration,
) -> Result<Planned, CliError> {
    let migrations = cluster.migrations().await?;
    let name = asked.name(name)?;
    let migration = match choose::existing_or_new(&migrations, name.as_deref(), asked.kind())? {
        Ok(there) => change(cluster, &there, asked, purpose).await?,
        Err(name) => {
            let spec = MigrationSpec {
                desired: Desired::Plan,
                ..asked.spec(None)?
            };
            let made = cluster.create(&name, asked.labels(), spec).await?;
            if cluster.snapshot().is_none() {
                say::note(&format!(
                    "Migration {name} created with `desired: Plan`: no changes are made"
                ));
            }
            made
        }
    };
    let spec = asked.spec(Some(&migration))?;
    if has_begun(&migration) {
        // The settings were fixed before the first change: there is nothing to wait for.
        let nodes = cluster.nodes(&migration.name_any()).await?;
        let records = cluster.plan_records(&migration).await?;
        return Ok(Planned {
            migration,
            nodes,
            records,
            asked: spec,
        });
    }
    match health::leader(cluster).await {
        Ok(()) => {}
        Err(CliError::Api {
            attempt,
            object,
            source,
        }) => {
            let error = CliError::Api {
                attempt,
                object,
                source,
            };
            say::note(&format!(
                "warning: unknown whether a coordinator is active ({error}); the output may be outdated"
            ));
        }
        Err(error) => return Err(error),
    }
    let (migration, nodes, records) = wait(cluster, &migration, patience).await?;
    Ok(Planned {
        migration,
        nodes,
        records,
        asked: spec,
    })
}

/// Changes the existing Migration to the requested spec, without starting it.
async fn change(
    cluster: &Cluster,
    there: &Migration,
    asked: &Request,
    purpose: Purpose,
) -> Result<Migration, CliError> {
    let mut spec = asked.spec(Some(there))?;
    let started = has_begun(there);
    let found = differences(&there.spec, &spec);
    if !found.is_empty() {
        return Err(CliError::Immutable {
            name: there.name_any(),
            differences: found,
            life: match (choose::is_over(there), started) {
                (true, _) => MigrationProgress::Over,
                (false, true) => MigrationProgress::Begun,
                (false, false) => MigrationProgress::Planned,
            },
        });
    }
    if started {
        return Ok(there.clone());
    }
    if purpose == Purpose::Review {
        spec.desired = Desired::Plan;
        spec.plan_hash = None;
    }
    cluster.change(there, &spec).await
}

async fn wait(
    cluster: &Cluster,
    migration: &Migration,
    patience: Duration,
) -> Result<(Migration, Vec<NodeMigration>, Vec<MigrationRecord>), CliError> {
    let name = migration.name_any();
    let deadline = Instant::now() + patience;
    let mut said = String::new();
    let mut torn: Option<(String, String)> = None;
    loop {
        let read = read_with_retries(deadline, async || cluster.migration(&name).await)
            .await?
            .ok_or_else(|| CliError::Gone { name: name.clone() })?;
        let seen = match progress(&read) {
            None => {
                let nodes = read_with_retries(deadline, async || cluster.nodes(&name).await).await?;
                let records = read_with_retries(deadline, async || cluster.plan_records(&read).await).await?;
                torn = torn_plan(&read, &nodes, &records);
                if torn.is_none() {
                    return Ok((read, nodes, records));
                }
                "the plan is being written".to_owned()
            }
            Some(seen) => seen,
        };
        if seen != said {
            say::note(&seen);
            said = seen;
        }
        if Instant::now() >= deadline {
            if let Some((found, needed)) = torn {
                return Err(CliError::TornPlan { name, found, needed });
            }
            let missing = health::missing(cluster).await;
            return Err(CliError::Deadline {
                name,
                wanted: "planned",
                waited: patience,
                seen: said,
                missing,
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The state of the wait; `None` once checks and plan are those of the current spec.
fn progress(migration: &Migration) -> Option<String> {
    let status = migration.status.clone().unwrap_or_default();
    let generation = migration.metadata.generation.unwrap_or_default();
    if status.observed_generation < generation {
        return Some("the coordinator has not processed the Migration yet".to_owned());
    }
    match status.phase {
        MigrationPhase::Pending => Some("the coordinator has not processed the Migration yet".to_owned()),
        MigrationPhase::Planning if status.message.is_empty() => Some("the checks are running".to_owned()),
        MigrationPhase::Planning => Some(status.message),
        MigrationPhase::Planned
        | MigrationPhase::Refused
        | MigrationPhase::Preparing
        | MigrationPhase::Rolling
        | MigrationPhase::Mixed
        | MigrationPhase::Finishing
        | MigrationPhase::Completed
        | MigrationPhase::Halted
        | MigrationPhase::RollingBack
        | MigrationPhase::RolledBack => None,
    }
}

/// The hash of the plan that was read and the hash in the status, if they differ: the plan is stored in several objects, which
/// are not read at the same time.
fn torn_plan(
    migration: &Migration,
    nodes: &[NodeMigration],
    records: &[MigrationRecord],
) -> Option<(String, String)> {
    let plan = migration.status.as_ref()?.plan.as_ref()?;
    if has_begun(migration) {
        return None;
    }
    let found = document(plan, nodes, records).hash();
    (found != plan.hash).then(|| (found, plan.hash.clone()))
}

/// Joins the parts of the plan.
pub fn document(
    plan: &api::migration::Plan,
    nodes: &[NodeMigration],
    records: &[MigrationRecord],
) -> Document {
    api::record::document(plan, nodes, records.iter().map(|record| &record.spec))
}

#[cfg(test)]
mod tests {
    use crate::fixture;

    use super::*;

    #[test]
    fn a_status_of_an_older_spec_is_not_current() {
        let (mut migration, _) = fixture::planned();
        assert_eq!(progress(&migration), None);
        migration.metadata.generation = Some(2);
        assert!(progress(&migration).unwrap().contains("has not processed"));
    }

    #[test]
    fn a_plan_with_a_missing_or_changed_node_is_detected() {
        let (migration, mut nodes) = fixture::planned();
        assert_eq!(torn_plan(&migration, &nodes, &[]), None);
        nodes[0].spec.plan[0].detail.push_str(" and more");
        assert!(torn_plan(&migration, &nodes, &[]).is_some());
        nodes.clear();
        assert!(torn_plan(&migration, &nodes, &[]).is_some());
    }

    #[test]
    fn a_plan_with_a_missing_record_is_detected() {
        let (migration, nodes, records) = fixture::long_plan();
        assert_eq!(torn_plan(&migration, &nodes, &records), None);
        for missing in 0..records.len() {
            let mut records = records.clone();
            records.remove(missing);
            assert!(torn_plan(&migration, &nodes, &records).is_some(), "{missing}");
        }
    }
}
