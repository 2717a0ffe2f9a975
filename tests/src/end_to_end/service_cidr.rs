//! A migration to another Service range: the refusals, and then the whole migration, while every Service is probed at both
//! addresses.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use service_cidr::step::Stage;

use super::coordinator::kill_coordinator;
use super::{MigrationReader, Tally};
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::operator::{Exit, Operator};
use crate::demo::service_cidr::cases::CASES;
use crate::demo::service_cidr::{Request, Run, Size, bypass_services, refuse};
use crate::demo::{End, MIGRATION, Tools};

/// The fewest probes of a run: the demo's probers send one every 10 ms and every 200 ms.
const PROBES: u64 = 1000;
/// The Service that is rolled back and migrated again: namespace and name.
const ONE: (&str, &str) = ("services", "plain-0");
const STEP: Duration = Duration::from_mins(10);

/// Every case of `cargo lab demo --migration service-cidr --break`, and then a migration during which the coordinator is killed
/// twice.
pub async fn service_cidr(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    let prepared = bypass_services(cluster).await;
    if tally
        .count("service-cidr: the user's steps before the migration", prepared)
        .is_none()
    {
        return tally;
    }
    for case in CASES {
        let result = refuse(cluster, &operator, case).await;
        tally.count(format!("service-cidr: refused: {}", case.name), result);
    }
    tally.count(
        "service-cidr: every Service has another address and no other change, and no request was lost, with two kills of the \
         coordinator and a rollback of one Service",
        whole(cluster, tools).await,
    );
    tally
}

/// Kills the coordinator twice while Services exchange their addresses.
async fn kill_during_exchange(cluster: &Cluster, reader: &MigrationReader) -> Result<()> {
    for done in [1, 4] {
        reader
            .until_migration("Services exchange their addresses", STEP, |migration| {
                let known = migration
                    .status
                    .as_ref()
                    .and_then(|status| status.service_cidr.as_ref());
                known.is_some_and(|known| {
                    let stage = known.stage.as_ref().map(|stage| stage.name);
                    stage == Some(Stage::Exchange) && known.services_in_new_range >= done
                })
            })
            .await?;
        kill_coordinator(cluster, reader).await?;
    }
    Ok(())
}

/// Rolls one Service back while others have their new addresses, and migrates it again later.
async fn roll_one_back(cluster: &Cluster, operator: &Operator) -> Result<()> {
    let address = async |what: &str| -> Result<String> {
        let path = [
            "get",
            "service",
            ONE.1,
            "-n",
            ONE.0,
            "-o",
            "jsonpath={.spec.clusterIP}",
        ];
        cluster
            .api()
            .kubectl(&path)
            .await
            .with_context(|| what.to_owned())
    };
    let name = format!("{}/{}", ONE.0, ONE.1);
    let before = address("before").await?;
    let has = async |what: &str, is_reached: &dyn Fn(&str) -> bool| {
        until(what, STEP, &cluster.directory().logs(), async || {
            let now = address(what).await?;
            Ok(if is_reached(&now) {
                Observation::Done(())
            } else {
                Observation::NotYet(now)
            })
        })
        .await
    };
    has("the Service has its new address", &|now| {
        !now.is_empty() && now != before
    })
    .await?;
    // As `kubectl replumb rollback --service` writes it, but without the pause: the other Services continue.
    let patch = json!({ "spec": { "serviceCidr": { "rollbackServices": [name] } } }).to_string();
    let patch = [
        "patch",
        "migrations.replumb.dev",
        MIGRATION,
        "--type=merge",
        "-p",
        &patch,
    ];
    cluster.api().kubectl(&patch).await?;
    has("the Service has its old address again", &|now| now == before).await?;
    operator.expect(Exit::Done, &["resume"]).await?;
    has("the Service has its new address again", &|now| {
        !now.is_empty() && now != before
    })
    .await
}

async fn whole(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let name = format!("{}/{}", ONE.0, ONE.1);
    let request = Request {
        size: Size::Small,
        // This Service is the first: others still have to move when it is rolled back.
        spec: json!({ "serviceCidr": { "order": [name], "servicesAtOnce": 3 } }),
        ..Request::new(End::Migrated, false)?
    };
    let run = Run::begin(cluster, tools, request).await?;
    let reader = MigrationReader::new(cluster);
    let operator = Operator::new(cluster, &tools.command_line);
    let disturbed = async {
        tokio::try_join!(
            kill_during_exchange(cluster, &reader),
            roll_one_back(cluster, &operator)
        )
    };
    let (manual_steps, _) = tokio::try_join!(run.migrate(), disturbed)?;
    let report = run.report(manual_steps).await?;
    println!("{}", report.text());
    ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
    let sent = report.probes.all.sent;
    ensure!(
        sent >= PROBES,
        "probes sent: found {sent}, needed at least {PROBES}"
    );
    Ok(())
}
