//! What every report has: the traffic, the pods, and what somebody else had on the hosts.

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

/// So many times in which probes were lost are shown; the report for programs has more.
const SHOWN_OUTAGES: usize = 10;

/// What happened to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    /// Pods of the workloads that were evicted and created again.
    pub recreated: usize,
    /// Container restarts in pods that stayed.
    pub restarted: i64,
}

/// What somebody else has on a host, before and after.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// Lines that are gone.
    pub gone: Vec<String>,
    /// Lines that are new.
    pub new: Vec<String>,
}

impl Pods {
    /// Out of the restarts of every pod by UID, before and after.
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
    /// Compares two looks at one host.
    pub fn between(before: &Host, after: &Host) -> Self {
        let (before, after) = (before.foreign(), after.foreign());
        Self {
            gone: before.difference(&after).cloned().collect(),
            new: after.difference(&before).cloned().collect(),
        }
    }

    /// Each line with the host's name, for people.
    pub fn problems(&self, node: &str) -> Vec<String> {
        let gone = self
            .gone
            .iter()
            .map(|line| format!("gone from node {node}: {line}"));
        let new = self.new.iter().map(|line| format!("new on node {node}: {line}"));
        gone.chain(new).collect()
    }
}

/// Reports of the traffic generator, of all nodes; the generator is ended first, so that the last word is written.
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

/// Traffic and pods, for people.
pub fn text(probes: &Summary, pods: &Pods) -> String {
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{words}");
    };
    line(format_args!(
        "probes: {} sent, {} lost ({} of them answered late), longest gap {} ms, slowest answer {} ms",
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
    for one in probes.outages.iter().take(SHOWN_OUTAGES) {
        line(format_args!("  {}", lost(one)));
    }
    line(format_args!(
        "pods: {} created again, {} containers restarted",
        pods.recreated, pods.restarted
    ));
    text
}

/// Probes that one path lost one after the other, for people.
fn lost(outage: &PathOutage) -> String {
    let to = outage
        .to
        .as_ref()
        .map(|node| format!(" on {node}"))
        .unwrap_or_default();
    let why = outage
        .last_error
        .as_ref()
        .map(|why| format!(" (the last one: {why})"))
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
    fn a_pod_that_is_gone_was_created_again_and_one_that_stays_may_have_been_restarted() {
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
