//! Another range for the pods of a cluster with Calico: what is refused, then the whole way while traffic flows.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use api::traffic::{ClassCount, PathClass};
use ipnet::Ipv4Net;

use super::controller_manager::{self, controller_manager};
use super::obstacles::Obstacles;
use super::{Looker, Tally};
use crate::cluster::{Cluster, Tunnel};
use crate::demo::operator::Operator;
use crate::demo::pod_cidr::cases::CASES;
use crate::demo::pod_cidr::report::Report;
use crate::demo::pod_cidr::{Run, Wanted, refuse};
use crate::demo::{End, Tools};

/// The traffic generator asks every 10 ms from every node.
const PROBES: u64 = 1000;
/// The kernel forgets what it has masqueraded to an address that goes; of what a host asks a Service in that moment some are lost
/// (docs/limits.md), once for each node.
const MASQUERADED: u64 = 30;
/// Where they are counted.
const MASQUERADED_CLASS: &str = "host-to-service";
/// Calico's own Nodes in etcd.
const NODE_KEYS: &str = "/calico/resources/v3/projectcalico.org/nodes/";

/// Every case of `cargo lab demo --migration pod-cidr --break`, then a migration in fair weather.
pub async fn pod_cidr(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    for case in CASES {
        let result = refuse(cluster, &operator, case).await;
        tally.count(format!("pod-cidr: refused: {}", case.name), result);
    }
    let whole = async {
        let wanted = Wanted::new("1")?;
        let before = controller_manager::status(cluster).await?;
        let obstacles = Obstacles::put(cluster, wanted.from).await?;
        let run = Run::begin(cluster, tools, wanted.clone()).await?;
        let look = Looker::new(cluster);
        let ((watch, followed), ()) = tokio::try_join!(run.migrate(), obstacles.clear(cluster, &look))?;
        let report = run.report(watch, followed, End::Migrated).await?;
        println!("{}", report.text());
        judge(&report)?;
        let after = controller_manager::status(cluster).await?;
        ensure!(
            after.pid == before.pid,
            "the controller manager was started again: {before:?}, {after:?}"
        );
        Ok(wanted)
    };
    let moved = tally.count(
        "pod-cidr: every pod has moved, nothing of the old range is left, nothing was lost, and the controller manager has lived",
        whole.await,
    );
    if let Some(Wanted { from, to, .. }) = moved {
        let ranges = [from, to].map(|range| range.to_string());
        tally.add(controller_manager(cluster, &ranges[0], &ranges[1]).await);
    }
    tally
}

/// The same migration where Calico keeps its pools and its IPAM in etcd; what is refused is refused there likewise.
pub async fn pod_cidr_etcd(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let whole = async {
        let wanted = Wanted::new("1")?;
        let run = Run::begin(cluster, tools, wanted.clone()).await?;
        let (watch, followed) = run.migrate().await?;
        let report = run.report(watch, followed, End::Migrated).await?;
        println!("{}", report.text());
        judge(&report)?;
        ends_of_tunnels(cluster, wanted.to).await
    };
    tally.count(
        "pod-cidr-etcd: with Calico's objects in etcd every pod has moved, nothing of the old range is left, and nothing was lost",
        whole.await,
    );
    tally
}

/// By etcd's own gateway: every Node of Calico says an end of its tunnel in the range, and no label of ours is left there.
async fn ends_of_tunnels(cluster: &Cluster, range: Ipv4Net) -> Result<()> {
    let nodes = cluster.calico_keys(NODE_KEYS).await?;
    let wanted = cluster.node_names().await.len();
    ensure!(
        nodes.len() == wanted,
        "etcd has {} Nodes, not {wanted}",
        nodes.len()
    );
    for (key, node) in nodes {
        let labels = node["metadata"]["labels"].to_string();
        ensure!(!labels.contains("replumb"), "{key} has the labels {labels}");
        let address = node["spec"]["ipv4VXLANTunnelAddr"].as_str();
        let as_wanted = match (cluster.tunnel().await, address) {
            (Tunnel::None, address) => address.is_none(),
            (Tunnel::Vxlan, Some(address)) => range.contains(&address.parse::<Ipv4Addr>()?),
            (Tunnel::Vxlan, None) => false,
        };
        ensure!(
            as_wanted,
            "{key} has the end of its tunnel at {address:?}, in a lab whose pods are in {range}"
        );
    }
    Ok(())
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
    for ClassCount { class, totals } in &report.watched {
        ensure!(
            totals.lost == 0 || !matches!(class, PathClass::PodToDns | PathClass::PodToService),
            "{} of {} are lost, by the migration's own traffic, and {} of them were answered too late",
            totals.lost,
            class.as_str(),
            totals.late
        );
    }
    Ok(())
}
