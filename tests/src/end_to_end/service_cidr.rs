//! Another range for Services: what is refused, then the whole way while all of them are asked at both of their addresses.

use anyhow::{Result, ensure};

use super::Tally;
use crate::cluster::Cluster;
use crate::demo::operator::Operator;
use crate::demo::service_cidr::cases::CASES;
use crate::demo::service_cidr::{Run, Size, Wanted, refuse};
use crate::demo::{End, Tools};

/// The demo's own probers ask every 10 ms and every 200 ms.
const PROBES: u64 = 1000;

/// Every case of `cargo lab demo --migration service-cidr --break`, then a migration in fair weather.
pub async fn service_cidr(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    for case in CASES {
        let result = refuse(cluster, &operator, case).await;
        tally.count(format!("service-cidr: refused: {}", case.name), result);
    }
    tally.count(
        "service-cidr: every Service has another address, nothing else of it has changed, and nothing was lost",
        whole(cluster, tools).await,
    );
    tally
}

async fn whole(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let wanted = Wanted {
        size: Size::Small,
        ..Wanted::new(End::There, false)?
    };
    let run = Run::begin(cluster, tools, wanted).await?;
    let followed = run.migrate().await?;
    let report = run.report(followed).await?;
    println!("{}", report.text());
    ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
    let sent = report.requests.summary.all.sent;
    ensure!(sent >= PROBES, "only {sent} probes were sent");
    Ok(())
}
