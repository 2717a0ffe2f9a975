//! What going back comes to.

use std::net::IpAddr;

use api::Migration;
use service_cidr::ranges::listed;
use service_cidr::side::Side;
use service_cidr::step::Stage;
use service_cidr::subjects::Book;

use crate::args::Rollback;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::render::table::{table, wrap};

/// Width of the text.
const WIDTH: usize = 110;

/// The addresses of every Service that changes, where Services are asked for by name.
pub async fn book(cluster: &Cluster, migration: &Migration, rollback: &Rollback) -> Result<Book, CliError> {
    let known = migration
        .status
        .as_ref()
        .and_then(|status| status.service_cidr.as_ref());
    match known {
        Some(known) if !rollback.services.is_empty() => {
            let records = cluster.records(migration).await?;
            let records = records.iter().map(|record| &record.spec);
            Ok(api::record::book(records, known.written_here()))
        }
        Some(_) | None => Ok(Book::new()),
    }
}

/// Refuses to take back single nodes of a change of the Services' range, Services of any other, and Services for which it is too late.
pub fn possible(migration: &Migration, rollback: &Rollback, book: &Book) -> Result<(), CliError> {
    let not_now = |state: String, hint: &str| CliError::NotNow {
        name: migration.metadata.name.clone().unwrap_or_default(),
        state,
        hint: hint.to_owned(),
    };
    if migration.spec.service_cidr.is_none() {
        return if rollback.services.is_empty() {
            Ok(())
        } else {
            Err(not_now(
                "does not change the range of Services".to_owned(),
                "leave --service away",
            ))
        };
    }
    if !rollback.nodes.is_empty() {
        return Err(not_now(
            "changes the range of Services, which has no nodes to take back".to_owned(),
            "`kubectl replumb rollback --service NAMESPACE/NAME` leads one Service back to its old address, `kubectl replumb rollback --all` \
             every one; `kubectl replumb pause` stops it where it is",
        ));
    }
    let known = migration
        .status
        .as_ref()
        .and_then(|status| status.service_cidr.as_ref());
    let Some(known) = known.filter(|_| !rollback.services.is_empty()) else {
        return Ok(());
    };
    let all = "`kubectl replumb rollback --all` leads every Service back to its old address";
    if let Some(stage) = known.stage.as_ref().filter(|stage| stage.name >= Stage::Close) {
        return Err(not_now(
            format!(
                "is in stage {:?}: the old range gives out no address any more, so that no Service goes back by itself",
                stage.name
            ),
            all,
        ));
    }
    match rollback.services.iter().find(|name| !book.contains_key(*name)) {
        Some(unknown) => Err(not_now(
            format!("leads no Service {unknown} to another address"),
            "`kubectl get migrationrecords -o yaml` names those that it does",
        )),
        None => Ok(()),
    }
}

/// What happens, for people, to these Services or to all; `None` of another kind.
pub fn describe(migration: &Migration, services: &[String], book: &Book) -> Option<String> {
    let known = migration.status.as_ref()?.service_cidr.as_ref()?;
    let changed = known.settings.changed();
    if !services.is_empty() {
        return Some(of_services(book, services));
    }
    let text = format!(
        "{} Services with an address of {} exchange it for the one of {} that they had before, name servers and default/kubernetes first; \
         both answer meanwhile. Pods that were told a new address are started again under their budgets. People give the API servers their \
         old flag back; the migration waits for that. Then addresses of {} answer no more.",
        known.services_in_new_range,
        listed(changed.of(Side::New)),
        listed(changed.of(Side::Old)),
        listed(changed.of(Side::New)),
    );
    Some(wrapped(&text))
}

fn of_services(book: &Book, services: &[String]) -> String {
    let listed = |addresses: &[IpAddr]| {
        addresses
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    };
    let rows: Vec<Vec<String>> = services
        .iter()
        .filter_map(|name| {
            let both = book.get(name)?;
            Some(vec![name.clone(), listed(&both.new), listed(&both.old)])
        })
        .collect();
    let text = table(&["SERVICE", "HAS OR WAS TO GET", "TAKES BACK AND KEEPS"], &rows);
    text + "\n"
        + &wrapped(
            "Both addresses answer meanwhile and after. The migration is paused; `kubectl replumb resume` leads these Services on with the \
             others.",
        )
}

fn wrapped(text: &str) -> String {
    let lines = wrap(text, WIDTH).into_iter();
    lines.map(|line| format!("{line}\n")).collect()
}
