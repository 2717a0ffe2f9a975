//! The effect of a rollback of serviceCidr.

use std::net::IpAddr;

use api::Migration;
use service_cidr::assignment::AssignedAddresses;
use service_cidr::ranges::joined;
use service_cidr::side::Side;
use service_cidr::step::Stage;

use crate::cluster::Cluster;
use crate::error::CliError;
use crate::rollback_targets::RollbackTargets;
use crate::table::{table, wrap};

/// Width of the text.
const WIDTH: usize = 110;

/// The recorded addresses of all Services, if Services are given by name.
pub async fn book(
    cluster: &Cluster,
    migration: &Migration,
    targets: &RollbackTargets,
) -> Result<AssignedAddresses, CliError> {
    let known = migration
        .status
        .as_ref()
        .and_then(|status| status.service_cidr.as_ref());
    match known {
        Some(known) if !targets.services.is_empty() => {
            let records = cluster.records(migration).await?;
            let records = records.iter().map(|record| &record.spec);
            Ok(api::record::recorded_addresses(records, known.written_here()))
        }
        Some(_) | None => Ok(AssignedAddresses::new()),
    }
}

/// Refuses a rollback of nodes, and of Services after stage Close.
pub fn possible(
    migration: &Migration,
    targets: &RollbackTargets,
    book: &AssignedAddresses,
) -> Result<(), CliError> {
    let not_now = |state: String, hint: &str| CliError::NotPossible {
        name: migration.metadata.name.clone().unwrap_or_default(),
        state,
        hint: hint.to_owned(),
    };
    if !targets.nodes.is_empty() {
        return Err(not_now(
            "changes the range of Services and has no nodes to roll back".to_owned(),
            "`kubectl replumb rollback --service NAMESPACE/NAME` rolls back one Service to its old address, `kubectl replumb \
             rollback --all` rolls back all; `kubectl replumb pause` stops the migration",
        ));
    }
    let known = migration
        .status
        .as_ref()
        .and_then(|status| status.service_cidr.as_ref());
    let Some(known) = known.filter(|_| !targets.services.is_empty()) else {
        return Ok(());
    };
    let all = "`kubectl replumb rollback --all` rolls back every Service to its old address";
    if let Some(stage) = known.stage.as_ref().filter(|stage| stage.name >= Stage::Close) {
        return Err(not_now(
            format!(
                "is in stage {:?}: the old range is closed, so single Services cannot be rolled back",
                stage.name
            ),
            all,
        ));
    }
    match targets.services.iter().find(|name| !book.contains_key(*name)) {
        Some(unknown) => Err(not_now(
            format!("does not change the address of Service {unknown}"),
            "`kubectl get migrationrecords -o yaml` lists the Services",
        )),
        None => Ok(()),
    }
}

/// Describes the effect on these Services or on all; `None` for another kind.
pub fn describe(migration: &Migration, services: &[String], book: &AssignedAddresses) -> Option<String> {
    let known = migration.status.as_ref()?.service_cidr.as_ref()?;
    let changed = known.settings.changed();
    if !services.is_empty() {
        return Some(of_services(book, services));
    }
    let text = format!(
        "Services with an address of {} ({}) get back their previous address of {}, name servers and default/kubernetes first; \
         both addresses answer until the end. Pods that started with a new address are restarted within their \
         PodDisruptionBudgets. You restore the flag of the API servers; the migration waits for that. Then addresses of {} no \
         longer answer.",
        joined(changed.of(Side::New)),
        known.services_in_new_range,
        joined(changed.of(Side::Old)),
        joined(changed.of(Side::New)),
    );
    Some(wrapped(&text))
}

fn of_services(book: &AssignedAddresses, services: &[String]) -> String {
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
    let text = table(&["SERVICE", "NEW ADDRESS", "OLD ADDRESS (KEPT)"], &rows);
    text + "\n"
        + &wrapped(
            "Both addresses answer during and after the rollback. The migration is paused; `kubectl replumb resume` migrates \
             these Services again with the others.",
        )
}

fn wrapped(text: &str) -> String {
    let lines = wrap(text, WIDTH).into_iter();
    lines.map(|line| format!("{line}\n")).collect()
}
