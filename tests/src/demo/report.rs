//! Parts that every report has: the traffic, the pods, and foreign entries on the hosts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;
use traffic::report::{PathOutage, Summary};

use super::host::Host;
use crate::cluster::Cluster;
use crate::cluster::pods;

/// Limit of outages in the text; the JSON report has more.
const SHOWN_OUTAGES: usize = 10;

/// Pods that were recreated or restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    /// Pods of the workloads that were evicted and created again.
    pub recreated: usize,
    /// Container restarts in pods that were not recreated.
    pub restarted: i64,
}

/// Changes of entries on a host that belong to other programs.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// Lines that are gone.
    pub gone: Vec<String>,
    /// Lines that are new.
    pub new: Vec<String>,
}

impl Pods {
    /// Compares the restarts of every pod by UID, before and after.
    pub fn between(before: &BTreeMap<String, i32>, after: &BTreeMap<String, i32>) -> Self {
        Self {
            recreated: before.keys().filter(|uid| !after.contains_key(*uid)).count(),
            restarted: after
                .iter()
                .filter_map(|(uid, now)| Some(i64::from(now - before.get(uid)?)))
                .sum(),
        }
    }
}

impl Foreign {
    /// Compares two observations of one host.
    pub fn between(before: &Host, after: &Host) -> Self {
        let (before, after) = (before.foreign(), after.foreign());
        Self {
            gone: before.difference(&after).cloned().collect(),
            new: after.difference(&before).cloned().collect(),
        }
    }

    /// Each line with the host's name, as text.
    pub fn problems(&self, node: &str) -> Vec<String> {
        let gone = self
            .gone
            .iter()
            .map(|line| format!("gone from node {node}: {line}"));
        let new = self.new.iter().map(|line| format!("new on node {node}: {line}"));
        gone.chain(new).collect()
    }
}

/// Reports of the traffic generators of all nodes; ends the generators first, so that their last reports are written.
pub async fn probes(cluster: &Cluster) -> Result<Summary> {
    Ok(Summary::of(&super::traffic::end(cluster).await?))
}

/// Container restarts by UID, of every pod that counts.
pub async fn restarts(cluster: &Cluster, counts: fn(&Pod) -> bool) -> Result<BTreeMap<String, i32>> {
    let api: Api<Pod> = Api::all(cluster.api().client());
    let list = api.list(&ListParams::default()).await.context("list pods")?;
    Ok(list
        .items
        .into_iter()
        .filter(counts)
        .map(|pod| (pod.uid().unwrap_or_default(), pods::restarts(&pod)))
        .collect())
}

/// Traffic and pods, as text.
pub fn text(probes: &Summary, pods: &Pods) -> String {
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{words}");
    };
    line(format_args!(
        "probes: {} sent, {} lost ({} of them answered too late), longest gap {} ms, slowest answer {} ms",
        probes.all.sent,
        probes.all.lost,
        probes.all.late,
        probes.all.longest_gap_ms,
        probes.all.slowest_answer_ms
    ));
    for (class, counts) in &probes.classes {
        line(format_args!(
            "  {class:<16} {:>8} sent, {:>5} lost, {:>5} late, longest gap {} ms, slowest answer {} ms",
            counts.sent, counts.lost, counts.late, counts.longest_gap_ms, counts.slowest_answer_ms
        ));
    }
    for outage in probes.outages.iter().take(SHOWN_OUTAGES) {
        line(format_args!("  {}", outage_text(outage)));
    }
    line(format_args!(
        "pods created again: {}, container restarts: {}",
        pods.recreated, pods.restarted
    ));
    text
}

/// Consecutive probes that one path lost, as text.
fn outage_text(outage: &PathOutage) -> String {
    let to = outage
        .to
        .as_ref()
        .map(|node| format!(" on {node}"))
        .unwrap_or_default();
    let why = outage
        .last_error
        .as_ref()
        .map(|why| format!(" (last error: {why})"))
        .unwrap_or_default();
    format!(
        "lost at {:.3}: {} of {} from {} to {}{to}{why}",
        outage.outage.since, outage.outage.lost, outage.class, outage.from, outage.target
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_pods_count_as_recreated_and_others_by_their_restarts() {
        let restarts = |pods: &[(&str, i32)]| {
            pods.iter()
                .map(|(uid, count)| ((*uid).to_owned(), *count))
                .collect()
        };
        let (before, after) = (
            restarts(&[("stays", 1), ("goes", 5)]),
            restarts(&[("stays", 3), ("comes", 7)]),
        );
        let expected = Pods {
            recreated: 1,
            restarted: 2,
        };
        assert_eq!(Pods::between(&before, &after), expected);
    }
}
