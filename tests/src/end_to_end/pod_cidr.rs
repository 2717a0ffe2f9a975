//! A migration to another pod range in a cluster with Calico: the refusals, and then the whole migration under traffic.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use api::traffic::{ClassCount, PathClass};
use ipnet::Ipv4Net;

use super::controller_manager::{self, controller_manager};
use super::obstacles::Obstacles;
use super::{MigrationReader, Tally, bundle, source_addresses};
use crate::cluster::{Cluster, Tunnel};
use crate::demo::operator::Operator;
use crate::demo::pod_cidr::cases::CASES;
use crate::demo::pod_cidr::report::Report;
use crate::demo::pod_cidr::{Request, Run, manifest, refuse};
use crate::demo::{End, Tools};

/// The fewest probes of a run: the traffic generator sends one every 10 ms from every node.
const PROBES: u64 = 1000;
/// The most lost probes from hosts to Services: the kernel drops masqueraded connections when their address is removed, once per
/// node (docs/limits.md).
const MASQUERADED: u64 = 30;
/// The class of these probes.
const MASQUERADED_CLASS: &str = "host-to-service";
/// Prefix of Calico's Nodes in etcd.
const NODE_KEYS: &str = "/calico/resources/v3/projectcalico.org/nodes/";

/// Every case of `cargo lab demo --migration pod-cidr --break`, and then a migration with the obstacles.
pub async fn pod_cidr(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    for case in CASES {
        let result = refuse(cluster, &operator, case).await;
        tally.count(format!("pod-cidr: refused: {}", case.name), result);
    }
    let whole = async {
        let request = Request::new("1")?;
        let before = controller_manager::status(cluster).await?;
        let obstacles = Obstacles::put(cluster, request.from).await?;
        let run = Run::begin(cluster, tools, request.clone()).await?;
        bundle::judged_offline(cluster, &run.scene.operator, &manifest(&request))
            .await
            .context("judge a bundle of the cluster")?;
        let reader = MigrationReader::new(cluster);
        let ((watch, manual_steps), ()) = tokio::try_join!(run.migrate(), obstacles.clear(cluster, &reader))?;
        let report = run.report(watch, manual_steps, End::Migrated).await?;
        println!("{}", report.text());
        judge(&report)?;
        source_addresses::are_kept(cluster, request.to).await?;
        let after = controller_manager::status(cluster).await?;
        ensure!(
            after.pid == before.pid,
            "the controller manager has restarted: {before:?}, {after:?}"
        );
        Ok(request)
    };
    let moved = tally.count(
        "pod-cidr: every pod has moved, nothing of the source range remains, no loss, and no restart of the controller manager",
        whole.await,
    );
    if let Some(Request { from, to, .. }) = moved {
        let ranges = [from, to].map(|range| range.to_string());
        tally.add(controller_manager(cluster, &ranges[0], &ranges[1]).await);
    }
    tally
}

/// The same migration as kops has it: Calico's pools and IPAM in etcd, and kube-proxy as static pods with flags. A program that no
/// object shows replaces source addresses on one node. The refusals are the same there.
pub async fn pod_cidr_etcd(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let whole = async {
        let request = Request::new("1")?;
        let run = Run::begin(cluster, tools, request.clone()).await?;
        source_addresses::masquerade(cluster, request.to).await?;
        let reader = MigrationReader::new(cluster);
        let ((watch, manual_steps), ()) = tokio::try_join!(
            run.migrate(),
            source_addresses::canary_sees_masquerading(cluster, &reader, &request)
        )?;
        ensure!(
            manual_steps
                .iter()
                .any(|step| step.requested.contains("--cluster-cidr of kube-proxy")),
            "the migration has not waited for the flags of kube-proxy: {manual_steps:?}"
        );
        let report = run.report(watch, manual_steps, End::Migrated).await?;
        println!("{}", report.text());
        judge(&report)?;
        source_addresses::are_kept(cluster, request.to).await?;
        verify_tunnel_addresses(cluster, request.to).await
    };
    tally.count(
        "pod-cidr-etcd: as of kops every pod has moved and keeps its source address, nothing of the source range remains, and no loss",
        whole.await,
    );
    tally
}

/// Checks by etcd's own gateway that the tunnel address of every Node of Calico is in the range, and that no label of replumb
/// remains.
async fn verify_tunnel_addresses(cluster: &Cluster, range: Ipv4Net) -> Result<()> {
    let nodes = cluster.calico_keys(NODE_KEYS).await?;
    let needed = cluster.node_names().await.len();
    ensure!(
        nodes.len() == needed,
        "Nodes in etcd: found {}, needed {needed}",
        nodes.len()
    );
    for (key, node) in nodes {
        let labels = node["metadata"]["labels"].to_string();
        ensure!(!labels.contains("replumb"), "{key} has the labels {labels}");
        let address = node["spec"]["ipv4VXLANTunnelAddr"].as_str();
        let is_right = match (cluster.tunnel().await, address) {
            (Tunnel::None, address) => address.is_none(),
            (Tunnel::Vxlan, Some(address)) => range.contains(&address.parse::<Ipv4Addr>()?),
            (Tunnel::Vxlan, None) => false,
        };
        ensure!(
            is_right,
            "{key}: tunnel address {address:?}; the pods are in {range}"
        );
    }
    Ok(())
}

fn judge(report: &Report) -> Result<()> {
    ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
    ensure!(
        report.probes.all.sent >= PROBES,
        "probes sent: found {}, needed at least {PROBES}",
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
            "lost probes of {class}: found {}, needed at most {allowed}",
            counts.lost
        );
    }
    for ClassCount { class, totals } in &report.own.traffic {
        ensure!(
            totals.lost == 0 || !matches!(class, PathClass::PodToDns | PathClass::PodToService),
            "lost probes of {} in the migration's own traffic: {}, of which {} were answered too late",
            class.as_str(),
            totals.lost,
            totals.late
        );
    }
    Ok(())
}
