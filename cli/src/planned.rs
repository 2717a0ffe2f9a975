//! A Migration whose checks and plan are those of now: made or changed, then waited for.

use std::time::Duration;

use api::migration::{Desired, MigrationPhase};
use api::{Migration, MigrationRecord, MigrationSpec, NodeMigration};
use engine::document::Document;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::choose;
use crate::cluster::{Cluster, has_begun};
use crate::error::{CliError, Life};
use crate::health;
use crate::patience::{LOOK, patiently};
use crate::say;
use crate::wanted::{Asked, differences};

/// What the plan is looked at for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To know it: what is wanted stays as it is.
    Look,
    /// To start it: an earlier review, and an earlier wish to start, are void until this one is confirmed.
    Review,
}

/// A Migration with its nodes, as they were read together.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The Migration; its status speaks of its present generation.
    pub migration: Migration,
    /// Its nodes in the order in which they change.
    pub nodes: Vec<NodeMigration>,
    /// What of its plan its own object has no room for.
    pub records: Vec<MigrationRecord>,
    /// The spec that was asked for; what is there differs only in what the command sets.
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

    /// Where it is.
    pub fn phase(&self) -> MigrationPhase {
        self.migration
            .status
            .as_ref()
            .map(|status| status.phase)
            .unwrap_or_default()
    }
}

/// Makes the Migration that is asked for, or finds it, and waits for its checks and its plan. Starts nothing.
pub async fn plan(
    cluster: &Cluster,
    name: Option<&str>,
    asked: &Asked,
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
            say::note(&format!(
                "Migration {name} is made with `desired: Plan`: it changes nothing"
            ));
            made
        }
    };
    let spec = asked.spec(Some(&migration))?;
    if has_begun(&migration) {
        // What it works with was settled before its first change: nothing is to be waited for.
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
                "nobody could look whether a coordinator leads ({error}); what follows may be old"
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

/// Brings what is there to what is asked for, as far as that starts nothing.
async fn change(
    cluster: &Cluster,
    there: &Migration,
    asked: &Asked,
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
                (true, _) => Life::Over,
                (false, true) => Life::Begun,
                (false, false) => Life::Planned,
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
        let read = patiently(deadline, async || cluster.migration(&name).await)
            .await?
            .ok_or_else(|| CliError::Gone { name: name.clone() })?;
        let seen = match progress(&read) {
            None => {
                let nodes = patiently(deadline, async || cluster.nodes(&name).await).await?;
                let records = patiently(deadline, async || cluster.plan_records(&read).await).await?;
                torn = torn_plan(&read, &nodes, &records);
                if torn.is_none() {
                    return Ok((read, nodes, records));
                }
                "the parts of its plan are being written".to_owned()
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
        tokio::time::sleep(LOOK).await;
    }
}

/// What is still to come; `None` once the checks and the plan are those of the present spec.
fn progress(migration: &Migration) -> Option<String> {
    let status = migration.status.clone().unwrap_or_default();
    let generation = migration.metadata.generation.unwrap_or_default();
    if status.observed_generation < generation {
        return Some("the coordinator has not looked at it yet".to_owned());
    }
    match status.phase {
        MigrationPhase::Pending => Some("the coordinator has not looked at it yet".to_owned()),
        MigrationPhase::Planning if status.message.is_empty() => Some("the checks run".to_owned()),
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

/// The hash of what was read and the hash that the status says, when they differ: the parts of the plan stand in
/// several objects, and only together are they the plan that was hashed.
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

/// The plan out of its parts.
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
    fn an_answer_to_an_older_spec_is_no_answer() {
        let (mut migration, _) = fixture::planned();
        assert_eq!(progress(&migration), None);
        migration.metadata.generation = Some(2);
        assert!(progress(&migration).unwrap().contains("has not looked"));
    }

    #[test]
    fn a_plan_is_whole_or_told() {
        let (migration, mut nodes) = fixture::planned();
        assert_eq!(torn_plan(&migration, &nodes, &[]), None);
        nodes[0].spec.plan[0].detail.push_str(" and more");
        assert!(torn_plan(&migration, &nodes, &[]).is_some());
        nodes.clear();
        assert!(torn_plan(&migration, &nodes, &[]).is_some());
    }

    #[test]
    fn a_plan_without_what_is_in_records_is_not_whole() {
        let (migration, nodes, records) = fixture::long_plan();
        assert_eq!(torn_plan(&migration, &nodes, &records), None);
        for missing in 0..records.len() {
            let mut records = records.clone();
            records.remove(missing);
            assert!(torn_plan(&migration, &nodes, &records).is_some(), "{missing}");
        }
    }
}
