//! Another range for Services: what is refused, then the whole way while all of them are asked at both of their addresses.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use service_cidr::step::Stage;

use super::coordinator::kill_coordinator;
use super::{Looker, Tally};
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::operator::{Exit, Operator};
use crate::demo::service_cidr::cases::CASES;
use crate::demo::service_cidr::{Run, Size, Wanted, own_path, refuse};
use crate::demo::{End, MIGRATION, Tools};

/// The demo's own probers ask every 10 ms and every 200 ms.
const PROBES: u64 = 1000;
/// The Service that goes back, and on: namespace and name.
const ONE: (&str, &str) = ("services", "plain-0");
const STEP: Duration = Duration::from_mins(10);

/// Every case of `cargo lab demo --migration service-cidr --break`, then a migration while the coordinator is killed twice.
pub async fn service_cidr(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    let prepared = own_path(cluster).await;
    if tally
        .count("service-cidr: what a person does before", prepared)
        .is_none()
    {
        return tally;
    }
    for case in CASES {
        let result = refuse(cluster, &operator, case).await;
        tally.count(format!("service-cidr: refused: {}", case.name), result);
    }
    tally.count(
        "service-cidr: every Service has another address, nothing else of it has changed, and nothing was lost, though the coordinator is \
         killed twice and one Service goes back and on",
        whole(cluster, tools).await,
    );
    tally
}

/// The coordinator is killed while Services have no address of their own.
async fn kill_in_mid_exchange(cluster: &Cluster, look: &Looker) -> Result<()> {
    for done in [1, 4] {
        look.until_migration("Services exchange their addresses", STEP, |migration| {
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
        kill_coordinator(cluster, look).await?;
    }
    Ok(())
}

/// One Service takes its old address back while others have their new ones, and goes on later.
async fn one_back_and_on(cluster: &Cluster, operator: &Operator) -> Result<()> {
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
    let has = async |what: &str, is_wanted: &dyn Fn(&str) -> bool| {
        until(what, STEP, &cluster.directory().logs(), async || {
            let now = address(what).await?;
            Ok(if is_wanted(&now) {
                Observation::Done(())
            } else {
                Observation::NotYet(now)
            })
        })
        .await
    };
    has("it has its new address", &|now| !now.is_empty() && now != before).await?;
    // As `kubectl replumb rollback --service` writes it, but for the pause: the others go on.
    let patch = json!({ "spec": { "rollbackServices": [name] } }).to_string();
    let patch = [
        "patch",
        "migrations.replumb.dev",
        MIGRATION,
        "--type=merge",
        "-p",
        &patch,
    ];
    cluster.api().kubectl(&patch).await?;
    has("it has its old address again", &|now| now == before).await?;
    operator.expect(Exit::Done, &["resume"]).await?;
    has("it has its new address again", &|now| {
        !now.is_empty() && now != before
    })
    .await
}

async fn whole(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let name = format!("{}/{}", ONE.0, ONE.1);
    let wanted = Wanted {
        size: Size::Small,
        // So that others have still to go when that one does.
        spec: json!({ "serviceCidr": { "order": [name], "servicesAtOnce": 3 } }),
        ..Wanted::new(End::Migrated, false)?
    };
    let run = Run::begin(cluster, tools, wanted).await?;
    let look = Looker::new(cluster);
    let operator = Operator::new(cluster, &tools.command_line);
    let disturbed = async {
        tokio::try_join!(
            kill_in_mid_exchange(cluster, &look),
            one_back_and_on(cluster, &operator)
        )
    };
    let (followed, _) = tokio::try_join!(run.migrate(), disturbed)?;
    let report = run.report(followed).await?;
    println!("{}", report.text());
    ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
    let sent = report.requests.summary.all.sent;
    ensure!(sent >= PROBES, "only {sent} probes were sent");
    Ok(())
}
