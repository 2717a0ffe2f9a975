//! Another range for Services: what is refused, then the whole way while all of them are asked at both of their addresses.

use std::time::Duration;

use anyhow::{Result, ensure};
use plan::service_cidr::step::Stage;

use super::coordinator::kill_coordinator;
use super::{Looker, Tally};
use crate::cluster::Cluster;
use crate::demo::operator::Operator;
use crate::demo::service_cidr::cases::CASES;
use crate::demo::service_cidr::{Run, Size, Wanted, refuse};
use crate::demo::{End, Tools};

/// The demo's own probers ask every 10 ms and every 200 ms.
const PROBES: u64 = 1000;
const STEP: Duration = Duration::from_mins(10);

/// Every case of `cargo lab demo --migration service-cidr --break`, then a migration while the coordinator is killed twice.
pub async fn service_cidr(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    for case in CASES {
        let result = refuse(cluster, &operator, case).await;
        tally.count(format!("service-cidr: refused: {}", case.name), result);
    }
    tally.count(
        "service-cidr: every Service has another address, nothing else of it has changed, and nothing was lost, though the coordinator is \
         killed twice",
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

async fn whole(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let wanted = Wanted {
        size: Size::Small,
        ..Wanted::new(End::There, false)?
    };
    let run = Run::begin(cluster, tools, wanted).await?;
    let look = Looker::new(cluster);
    let (followed, ()) = tokio::try_join!(run.migrate(), kill_in_mid_exchange(cluster, &look))?;
    let report = run.report(followed).await?;
    println!("{}", report.text());
    ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
    let sent = report.requests.summary.all.sent;
    ensure!(sent >= PROBES, "only {sent} probes were sent");
    Ok(())
}
