//! `preflight`: checks prerequisites.

use api::migration::MigrationPhase;
use engine::check::Check;
use engine::reason::BlockReason;
use serde::Serialize;

use super::planning::{self, verdict};
use crate::args::PlanArguments;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::kinds::Settings;
use crate::output::Output;
use crate::planned::Planned;
use crate::render::checks;
use crate::say;

/// The JSON output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'read> {
    migration: String,
    phase: MigrationPhase,
    allowed: bool,
    blocked: &'read str,
    message: &'read str,
    checks: &'read [Check],
    settings: Option<Settings<'read>>,
}

pub(super) async fn run(
    cluster: &Cluster,
    look: &PlanArguments,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Outcome, CliError> {
    let planned = planning::look(cluster, look, variables).await?;
    let outcome = verdict(&planned);
    let status = planned.migration.status.clone().unwrap_or_default();
    match look.shown.output {
        Output::Json => say::json(&Document {
            migration: planned.name(),
            phase: status.phase,
            allowed: outcome == Outcome::Done,
            blocked: &status.reason,
            message: &status.message,
            checks: &status.checks,
            settings: Settings::of(&status),
        })?,
        Output::Table => say::answer(&text(&planned, outcome, cluster.snapshot()))?,
    }
    Ok(outcome)
}

/// `snapshot` is the file of a cluster in memory.
fn text(planned: &Planned, outcome: Outcome, snapshot: Option<&str>) -> String {
    let status = planned.migration.status.clone().unwrap_or_default();
    let name = planned.name();
    let mut text = checks::checks(&status.checks);
    if !text.is_empty() {
        text.push('\n');
    }
    let count = checks::count(&status.checks);
    if planned.has_begun() {
        text.push_str(&format!(
            "Migration {name} has started and is {}; these checks were made before its first change ({count})\n\
             next: `kubectl replumb status`\n",
            status.phase.as_str()
        ));
    } else if outcome == Outcome::Refused {
        text.push_str(&format!(
            "Migration {name} is REFUSED ({count}); {}\n",
            snapshot.map_or("nothing has changed".to_owned(), of_snapshot)
        ));
        if status.known_reason() != Some(BlockReason::ChecksFailed.into()) {
            text.push_str(&format!("{}: {}\n", status.reason, status.message));
        }
    } else if let Some(snapshot) = snapshot {
        text.push_str(&format!(
            "Migration {name} may start ({count}); {}\n",
            of_snapshot(snapshot)
        ));
    } else {
        text.push_str(&format!(
            "Migration {name} may start ({count}); nothing has changed\n\
             next: `kubectl replumb plan`, then `kubectl replumb apply`\n"
        ));
    }
    text
}

fn of_snapshot(file: &str) -> String {
    format!("judged on snapshot {file}, and no cluster was asked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn planned() -> Planned {
        let (migration, nodes) = fixture::planned();
        Planned {
            asked: migration.spec.clone(),
            migration,
            nodes,
            records: Vec::new(),
        }
    }

    #[test]
    fn a_planned_migration_shows_the_next_command() {
        let text = text(&planned(), Outcome::Done, None);
        assert!(
            text.contains("may start (1 PASS)") && text.contains("kubectl replumb apply"),
            "{text}"
        );
    }

    #[test]
    fn a_judgement_on_a_snapshot_does_not_offer_to_start() {
        let text = text(&planned(), Outcome::Done, Some("shop.yaml"));
        assert!(
            text.contains("judged on snapshot shop.yaml") && !text.contains("apply"),
            "{text}"
        );
    }

    #[test]
    fn a_refusal_without_a_failed_check_shows_its_reason() {
        let mut planned = planned();
        let status = planned.migration.status.as_mut().unwrap();
        status.phase = MigrationPhase::Refused;
        status.set_reason(
            BlockReason::AnotherMigration,
            "Migration x is under way".to_owned(),
        );
        assert_eq!(verdict(&planned), Outcome::Refused);
        let text = text(&planned, Outcome::Refused, None);
        assert!(
            text.contains("REFUSED") && text.contains("AnotherMigration: Migration x is under way"),
            "{text}"
        );
    }
}
