//! `apply`: shows the plan, asks for confirmation, and starts the migration.

use api::MigrationSpec;
use api::migration::{Desired, MigrationPhase};
use serde::Serialize;

use super::planning::{self, verdict};
use super::{change, plan, watch};
use crate::args::Apply;
use crate::cluster::Cluster;
use crate::confirm;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::kinds;
use crate::output::Output;
use crate::planned::{self, Planned, Purpose};
use crate::say;

/// The JSON output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    migration: String,
    phase: MigrationPhase,
    plan_hash: Option<String>,
    message: String,
}

pub(super) async fn run(
    cluster: &Cluster,
    apply: &Apply,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Outcome, CliError> {
    confirm::possible(apply.yes)?;
    let asked = planning::asked(&apply.look, variables)?;
    // The file may have the hash of the reviewed plan; the flag wins.
    let reviewed = apply
        .plan_hash
        .clone()
        .or_else(|| asked.file.as_ref().and_then(|file| file.spec.plan_hash.clone()));
    let planned = Box::pin(planned::plan(
        cluster,
        apply.look.name.as_deref(),
        &asked,
        Purpose::Review,
        apply.look.timeout,
    ))
    .await?;
    let table = apply.look.shown.output == Output::Table;
    if let Some(outcome) = ended(&planned)? {
        report(&planned, table)?;
        return Ok(outcome);
    }
    let hash = planned
        .migration
        .status
        .as_ref()
        .and_then(|status| status.plan.as_ref())
        .map(|plan| plan.hash.clone());
    if !planned.has_begun() {
        if verdict(&planned) == Outcome::Refused {
            if table {
                say::answer(&plan::text(&planned))?;
            } else {
                report(&planned, table)?;
            }
            return Ok(Outcome::Refused);
        }
        check_reviewed(&planned, reviewed.as_ref(), hash.as_ref())?;
    }
    if table {
        say::answer(&plan::text(&planned))?;
    }
    if !apply.yes {
        confirm::ask(&question(&cluster.address, &planned))?;
    }
    let spec = MigrationSpec {
        desired: Desired::Run,
        // The coordinator then refuses any other plan.
        plan_hash: if planned.has_begun() {
            planned.asked.plan_hash.clone()
        } else {
            hash
        },
        ..planned.asked.clone()
    };
    let written = cluster.change(&planned.migration, &spec).await?;
    if apply.watch {
        return watch::run(cluster, &planned.name(), apply.look.shown.output, None).await;
    }
    let seen = change::wait_until_accepted(cluster, &written, apply.look.timeout, |status| {
        !matches!(
            status.phase,
            MigrationPhase::Pending | MigrationPhase::Planning | MigrationPhase::Planned
        )
    })
    .await?;
    let now = Planned {
        migration: seen,
        nodes: Vec::new(),
        records: Vec::new(),
        asked: spec,
    };
    report(&now, table)?;
    Ok(match now.phase() {
        MigrationPhase::Refused => Outcome::Refused,
        MigrationPhase::Halted => Outcome::Failed,
        _ => Outcome::Done,
    })
}

/// Refuses a plan other than the reviewed one.
fn check_reviewed(
    planned: &Planned,
    reviewed: Option<&String>,
    found: Option<&String>,
) -> Result<(), CliError> {
    match (reviewed, found) {
        (Some(reviewed), Some(found)) if reviewed != found => Err(CliError::PlanChanged {
            name: planned.name(),
            found: found.clone(),
            reviewed: reviewed.clone(),
        }),
        _ => Ok(()),
    }
}

/// The outcome for a Migration that has ended, or the error for one that `apply` cannot start.
fn ended(planned: &Planned) -> Result<Option<Outcome>, CliError> {
    match planned.phase() {
        MigrationPhase::Completed | MigrationPhase::Mixed => Ok(Some(Outcome::Done)),
        MigrationPhase::Halted => Err(CliError::NotPossible {
            name: planned.name(),
            state: format!(
                "is halted: {}",
                planned
                    .migration
                    .status
                    .as_ref()
                    .map(|status| status.message.as_str())
                    .unwrap_or_default()
            ),
            hint: "correct the cause in the message, then run `kubectl replumb resume`".to_owned(),
        }),
        MigrationPhase::RollingBack => Err(CliError::NotPossible {
            name: planned.name(),
            state: "is being rolled back".to_owned(),
            hint: "`kubectl replumb resume` migrates forward again, `kubectl replumb status --watch` shows the rollback"
                .to_owned(),
        }),
        MigrationPhase::RolledBack => Err(CliError::NotPossible {
            name: planned.name(),
            state: "was rolled back".to_owned(),
            hint: format!(
                "run `kubectl delete migration {}`, then apply again",
                planned.name()
            ),
        }),
        MigrationPhase::Pending
        | MigrationPhase::Planning
        | MigrationPhase::Planned
        | MigrationPhase::Refused
        | MigrationPhase::Preparing
        | MigrationPhase::Rolling
        | MigrationPhase::Finishing => Ok(None),
    }
}

fn question(address: &str, planned: &Planned) -> String {
    let what = if planned.has_begun() { "Continue" } else { "Start" };
    let spec = &planned.migration.spec;
    let extent = kinds::of(spec)
        .extent(spec)
        .unwrap_or_else(|| format!("nodes: {}", planned.nodes.len()));
    format!(
        "{what} Migration {} ({extent}) in the cluster at {address}?",
        planned.name()
    )
}

fn report(planned: &Planned, table: bool) -> Result<(), CliError> {
    let status = planned.migration.status.clone().unwrap_or_default();
    if table {
        let mut text = format!("Migration {} is {}", planned.name(), status.phase.as_str());
        if !status.message.is_empty() {
            text.push_str(": ");
            text.push_str(&status.message);
        }
        text.push_str("\nnext: `kubectl replumb status --watch`\n");
        return say::answer(&text);
    }
    say::json(&Document {
        migration: planned.name(),
        phase: status.phase,
        plan_hash: status.plan.map(|plan| plan.hash),
        message: status.message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn the_question_names_the_migration_and_the_cluster() {
        let asked = |(migration, nodes): (api::Migration, Vec<api::NodeMigration>)| {
            let planned = Planned {
                asked: migration.spec.clone(),
                migration,
                nodes,
                records: Vec::new(),
            };
            question("https://a:6443", &planned)
        };
        assert_eq!(
            asked(fixture::planned()),
            "Start Migration flannel-to-calico (nodes: 2) in the cluster at https://a:6443?"
        );
        assert_eq!(
            asked(fixture::range_planned()),
            "Start Migration pod-cidr (moves pods from 10.244.0.0/16 to 10.200.0.0/16) in the cluster at https://a:6443?"
        );
    }
}
