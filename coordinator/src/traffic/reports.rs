//! What the agents found: who watches, which paths lose more than they may, and the sums.

use std::collections::BTreeMap;

use api::traffic::ClassCount;
use jiff::Timestamp;
use plan::decision::{Wait, WaitReason};
use plan::traffic::pods::Fate;
use plan::traffic::stream::Totals;
use plan::traffic::{Flow, PathClass};

use super::pods::Staying;
use super::{Fates, Networks, pods};
use crate::snapshot::Snapshot;

/// On which nodes nobody watches the traffic yet, although somebody should.
pub fn unwatched(
    snapshot: &Snapshot,
    networks: &Networks,
    fates: &Fates<'_>,
    staying: &Staying<'_>,
    flows: &BTreeMap<String, Vec<Flow>>,
    judged_since: Option<Timestamp>,
) -> Option<Wait> {
    let mut wanted = 0;
    let mut problems = Vec::new();
    for ((node, generation), _) in fates.iter().filter(|(_, fate)| **fate == Fate::Wanted) {
        wanted += 1;
        let pod = staying.on(node, networks, *generation);
        let reporting = pod.is_some_and(|pod| {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let report = snapshot
                .node_migrations
                .get(*node)
                .and_then(|object| object.status.as_ref()?.traffic.as_ref())
                .filter(|report| report.judged_since == judged_since);
            let asked = flows
                .get(*node)
                .is_some_and(|flows| flows.iter().any(|flow| flow.source == uid));
            // A cluster without a second node and without Services has nowhere to send to.
            let nowhere = !asked && pods::running(pod, networks).is_some_and(|pod| pod.ready);
            nowhere || report.is_some_and(|report| report.reporting.iter().any(|reporting| reporting == uid))
        });
        if !reporting {
            let state = pod.map_or_else(
                || "its traffic pod is being made".to_owned(),
                |pod| pods::state(pod, networks),
            );
            problems.push(format!("node {node}: {state}"));
        }
    }
    let first = problems.first()?;
    Some(Wait {
        reason: WaitReason::TrafficUnwatched,
        message: format!(
            "traffic is watched by {} of {wanted} traffic pods; {first}",
            wanted - problems.len()
        ),
        until: None,
    })
}

/// What the agents say of paths that are asked for still.
pub fn breaches(
    snapshot: &Snapshot,
    flows: &BTreeMap<String, Vec<Flow>>,
    judged_since: Option<Timestamp>,
) -> Vec<String> {
    let mut found: Vec<(Timestamp, String)> = snapshot
        .node_migrations
        .iter()
        .filter_map(|(node, object)| Some((flows.get(node)?, object.status.as_ref()?.traffic.as_ref()?)))
        .filter(|(_, report)| report.judged_since == judged_since)
        .flat_map(|(wanted, report)| {
            report
                .breaches
                .iter()
                .filter(|breach| wanted.contains(&breach.flow))
        })
        .map(|breach| (breach.since, breach.message.clone()))
        .collect();
    found.sort();
    found.into_iter().map(|(_, message)| message).collect()
}

/// What was sent and lost on all nodes, by kind of path.
pub fn sums(snapshot: &Snapshot) -> Vec<ClassCount> {
    let mut sums: BTreeMap<PathClass, Totals> = BTreeMap::new();
    let reports = snapshot
        .node_migrations
        .values()
        .filter_map(|object| object.status.as_ref()?.traffic.as_ref());
    for count in reports.flat_map(|report| &report.classes) {
        let sum = sums.entry(count.class).or_default();
        *sum = sum.and(count.totals);
    }
    sums.into_iter()
        .map(|(class, totals)| ClassCount { class, totals })
        .collect()
}
