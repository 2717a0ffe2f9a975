//! `rollback`: rolls back nodes or the whole migration. Shows the effect on each node, asks for confirmation, and starts it.

use api::migration::{Desired, MigrationPhase};
use api::{Migration, MigrationSpec, NodeMigration};
use jiff::Timestamp;
use kube::ResourceExt;
use tokio::time::Instant;

use super::{change, watch};
use crate::args::Rollback;
use crate::choose;
use crate::cluster::Cluster;
use crate::confirm;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::kinds;
use crate::output::Output;
use crate::render::status::line;
use crate::render::view::View;
use crate::retry::read_with_retries;
use crate::say;

pub(super) async fn run(cluster: &Cluster, rollback: &Rollback) -> Result<Outcome, CliError> {
    confirm::possible(rollback.yes)?;
    let there = choose::existing(&cluster.migrations().await?, rollback.migration.as_deref())?;
    change::require_not_ended(&there)?;
    change::require_started(&there)?;
    let kind = kinds::of(&there.spec);
    let effect = kind.check_rollback(cluster, &there, &rollback.targets).await?;
    let nodes = cluster.nodes(&there.name_any()).await?;
    let selected_nodes = selected_nodes(&there, &nodes, rollback)?;
    if rollback.shown.output == Output::Table {
        let all = rollback.targets.all;
        let text = match effect {
            Some(text) => text,
            None => kind.describe_nodes(cluster, &selected_nodes, all).await,
        };
        say::answer(&text)?;
    }
    if !rollback.yes {
        let what = if rollback.targets.all {
            format!("Roll back Migration {}", there.name_any())
        } else if !rollback.targets.services.is_empty() {
            format!("Roll back Services ({})", rollback.targets.services.len())
        } else {
            format!("Roll back nodes ({})", selected_nodes.len())
        };
        confirm::ask(&format!("{what} in the cluster at {}?", cluster.address))?;
    }
    let written = cluster.change(&there, &spec(&there, rollback)).await?;
    if rollback.wait {
        let outcome = watch::run(cluster, &there.name_any(), rollback.shown.output, None).await?;
        if rollback.targets.all && is_completed(cluster, &there, rollback).await? {
            say::note("the migration was not rolled back: it had passed the point of no return");
            return Ok(Outcome::Failed);
        }
        return if rollback.targets.all || !rollback.targets.services.is_empty() {
            Ok(outcome)
        } else {
            rolled_back(cluster, &there, rollback, outcome).await
        };
    }
    let seen = change::wait_until_accepted(cluster, &written, rollback.timeout, |_| true).await?;
    let deadline = Instant::now() + rollback.timeout;
    let nodes = read_with_retries(deadline, async || cluster.nodes(&seen.name_any()).await).await?;
    let view = View::of(&seen, &nodes);
    match rollback.shown.output {
        Output::Json => say::json(&view)?,
        Output::Table => say::answer(&format!(
            "{}\nnext: `kubectl replumb status --watch`\n",
            line(&view)
        ))?,
    }
    Ok(match view.end() {
        Some(Outcome::Failed) => Outcome::Failed,
        Some(Outcome::Done | Outcome::Refused | Outcome::Paused) | None => Outcome::Done,
    })
}

/// The spec of the rollback. A rollback of single nodes also pauses the rollout, so that no other node starts.
fn spec(there: &Migration, rollback: &Rollback) -> MigrationSpec {
    let mut spec = there.spec.clone();
    if let Some(alone) = kinds::of(&there.spec).rolled_back_alone(&mut spec) {
        alone.extend(rollback.targets.nodes.iter().cloned());
        alone.extend(rollback.targets.services.iter().cloned());
        alone.sort();
        alone.dedup();
    }
    MigrationSpec {
        // During a rollback of the whole migration, single nodes change nothing.
        desired: if rollback.targets.all || there.spec.desired == Desired::Rollback {
            Desired::Rollback
        } else {
            Desired::Pause
        },
        // Timeouts of the forward migration do not apply to the rollback.
        resumed_at: Some(Timestamp::now()),
        ..spec
    }
}

/// The nodes with the given names, or all nodes.
fn selected_nodes<'node>(
    there: &Migration,
    nodes: &'node [NodeMigration],
    rollback: &Rollback,
) -> Result<Vec<&'node NodeMigration>, CliError> {
    let known = |name: &String| nodes.iter().any(|object| object.spec.node_name == *name);
    if let Some(unknown) = rollback.targets.nodes.iter().find(|name| !known(name)) {
        return Err(CliError::NoSuchNode {
            name: there.name_any(),
            node: unknown.clone(),
            existing: nodes.iter().map(|object| object.spec.node_name.clone()).collect(),
        });
    }
    Ok(nodes
        .iter()
        .filter(|object| rollback.targets.all || rollback.targets.nodes.contains(&object.spec.node_name))
        .collect())
}

/// Whether the migration is completed: the rollback was requested too late.
async fn is_completed(cluster: &Cluster, there: &Migration, rollback: &Rollback) -> Result<bool, CliError> {
    let deadline = Instant::now() + rollback.timeout;
    let name = there.name_any();
    let all = read_with_retries(deadline, async || cluster.migrations().await).await?;
    let now = all.iter().find(|migration| migration.name_any() == name);
    let status = now.and_then(|migration| migration.status.as_ref());
    Ok(status.is_some_and(|status| status.phase == MigrationPhase::Completed))
}

/// Success if the given nodes are rolled back: the rollout is then paused, as requested.
async fn rolled_back(
    cluster: &Cluster,
    there: &Migration,
    rollback: &Rollback,
    outcome: Outcome,
) -> Result<Outcome, CliError> {
    let deadline = Instant::now() + rollback.timeout;
    let nodes = read_with_retries(deadline, async || cluster.nodes(&there.name_any()).await).await?;
    let all_back = nodes
        .iter()
        .filter(|object| rollback.targets.nodes.contains(&object.spec.node_name))
        .all(|object| !object.spec.started && object.spec.finished_at.is_none());
    Ok(match outcome {
        Outcome::Paused if all_back => Outcome::Done,
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture;

    fn asked(nodes: &[&str], all: bool) -> Rollback {
        use clap::Parser as _;
        let mut line = vec!["kubectl-replumb", "rollback"];
        line.extend(nodes);
        if all {
            line.push("--all");
        }
        let args = crate::args::Args::try_parse_from(line).unwrap();
        let crate::args::Command::Rollback(rollback) = args.command else {
            panic!("not a rollback")
        };
        rollback
    }

    #[test]
    fn a_rollback_of_one_node_pauses_and_of_all_does_not() {
        let (migration, _) = fixture::rolling();
        let one = spec(&migration, &asked(&["worker-1"], false));
        assert_eq!(
            (one.desired, one.flannel_to_calico.unwrap().rollback_nodes),
            (Desired::Pause, vec!["worker-1".to_owned()])
        );
        assert!(one.resumed_at.is_some());
        let all = spec(&migration, &asked(&[], true));
        assert_eq!(all.desired, Desired::Rollback);
    }

    #[test]
    fn a_rollback_of_services_names_only_these_services() {
        let (migration, _) = fixture::rolling();
        let asked = asked(&["--service", "shop/web,shop/till"], false);
        let services = Migration::new(
            "services",
            serde_json::from_value(json!({ "serviceCidr": { "to": ["172.30.0.0/16"] } })).unwrap(),
        );
        let spec = spec(&services, &asked);
        assert_eq!(spec.desired, Desired::Pause);
        assert_eq!(
            spec.service_cidr.unwrap().rollback_services,
            ["shop/till", "shop/web"]
        );
        assert_eq!(spec.flannel_to_calico, None);
        let refused = asked.targets.require_no_services(&migration).unwrap_err();
        assert!(
            refused.to_string().contains("has no Services to roll back"),
            "{refused}"
        );
    }

    #[test]
    fn an_unknown_node_is_an_error_with_the_existing_nodes() {
        let (migration, nodes) = fixture::rolling();
        let error = selected_nodes(&migration, &nodes, &asked(&["worker-9"], false))
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("worker-9") && error.contains("worker-1"),
            "{error}"
        );
        assert_eq!(
            selected_nodes(&migration, &nodes, &asked(&[], true))
                .unwrap()
                .len(),
            nodes.len()
        );
    }

    #[test]
    fn nodes_services_and_all_exclude_each_other() {
        use clap::Parser as _;
        for line in [
            vec!["rollback"],
            vec!["rollback", "a", "--all"],
            vec!["rollback", "--all", "--service", "a/b"],
            vec!["rollback", "a", "--service", "a/b"],
            vec!["rollback", "--service", "a"],
        ] {
            let line = [vec!["kubectl-replumb"], line].concat();
            assert!(crate::args::Args::try_parse_from(&line).is_err(), "{line:?}");
        }
    }
}
