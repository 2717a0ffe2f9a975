//! Another range for the pods of a cluster with Calico: what is refused, then the whole way while traffic flows.

use anyhow::{Result, ensure};
use api::traffic::PathClass;

use super::Tally;
use crate::cluster::Cluster;
use crate::demo::Tools;
use crate::demo::operator::Operator;
use crate::demo::pod_cidr::cases::CASES;
use crate::demo::pod_cidr::report::Report;
use crate::demo::pod_cidr::{Run, Wanted, refuse};

/// The traffic generator asks every 10 ms from every node.
const PROBES: u64 = 1000;
/// The kernel forgets what it has masqueraded to an address that goes; of what a host asks a Service in that moment some are lost
/// (docs/limits.md), once for each node.
const MASQUERADED: u64 = 30;
/// Where they are counted.
const MASQUERADED_CLASS: &str = "host-to-service";

/// Every case of `cargo lab demo --migration pod-cidr --break`, then a migration in fair weather.
pub async fn pod_cidr(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    for case in CASES {
        let result = refuse(cluster, &operator, case).await;
        tally.count(format!("pod-cidr: refused: {}", case.name), result);
    }
    let whole = async {
        let run = Run::begin(cluster, tools, Wanted::new("1")?).await?;
        let (watch, followed) = run.migrate().await?;
        let report = run.report(watch, followed).await?;
        println!("{}", report.text());
        judge(&report)
    };
    tally.count(
        "pod-cidr: every pod has moved, nothing of the old range is left, and nothing was lost",
        whole.await,
    );
    tally
}

fn judge(report: &Report) -> Result<()> {
    ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
    ensure!(
        report.probes.all.sent >= PROBES,
        "only {} probes were sent",
        report.probes.all.sent
    );
    for (class, counts) in &report.probes.classes {
        let allowed = if class == MASQUERADED_CLASS {
            MASQUERADED
        } else {
            0
        };
        ensure!(
            counts.lost <= allowed,
            "{} of {class} are lost, allowed {allowed}",
            counts.lost
        );
    }
    for count in &report.watched {
        ensure!(
            count.totals.lost == 0 || !matches!(count.class, PathClass::PodToDns | PathClass::PodToService),
            "{} of {} are lost, by the migration's own traffic",
            count.totals.lost,
            count.class.as_str()
        );
    }
    Ok(())
}
