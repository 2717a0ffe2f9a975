//! Findings of the agents: nodes that watch, paths that lose more than allowed, and sums.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::traffic::ClassCount;
use engine::traffic::pods::PodDecision;
use engine::traffic::stream::Totals;
use engine::traffic::watch::WatchState;
use engine::traffic::{Flow, Generation, PathClass};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::pods::Staying;
use super::silences::Silences;
use super::{Fates, Networks, pods};
use crate::snapshot::Snapshot;

/// Input for the states of nodes.
pub struct Reports<'pass> {
    /// The agents' reports.
    pub snapshot: &'pass Snapshot,
    /// The two networks.
    pub networks: &'pass Networks,
    /// Wanted traffic pods.
    pub fates: &'pass Fates<'pass>,
    /// Traffic pods that stay.
    pub staying: &'pass Staying<'pass>,
    /// Wanted paths, by node.
    pub flows: &'pass BTreeMap<String, Vec<Flow>>,
    /// Start of the time that the agents judge.
    pub judged_since: Option<Timestamp>,
}

impl Reports<'_> {
    fn pod(&self, node: &str, generation: Generation) -> Option<&Arc<Pod>> {
        self.staying.on(node, self.networks, generation)
    }

    /// Whether the traffic pod of this network on this node watches.
    fn reports(&self, node: &str, generation: Generation) -> bool {
        self.pod(node, generation).is_some_and(|pod| {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let report = self
                .snapshot
                .node_migrations
                .get(node)
                .and_then(|object| object.status.as_ref()?.traffic.as_ref())
                .filter(|report| report.losses_counted_since == self.judged_since);
            let asked = self
                .flows
                .get(node)
                .is_some_and(|flows| flows.iter().any(|flow| flow.source == uid));
            // A cluster without a second node and without Services has no targets.
            let has_no_target = !asked && pods::running(pod, self.networks).is_some_and(|pod| pod.ready);
            has_no_target
                || report.is_some_and(|report| report.reporting.iter().any(|reporting| reporting == uid))
        })
    }

    /// State of a wanted pod without a report. A pod that does not start may be a problem of the network: the wait has no end. A
    /// pod that runs, or was rejected by its kubelet, and does not report is a problem of its node.
    fn without_report(&self, node: &str, generation: Generation, is_long: bool) -> WatchState {
        let Some(pod) = self.pod(node, generation) else {
            return WatchState::Awaited("its traffic pod is being created".to_owned());
        };
        let state = pods::state(pod, self.networks);
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Failed") && pods::running(pod, self.networks).is_none() {
            return WatchState::Awaited(state);
        }
        if let Some(words) = self.snapshot.unclear.get(node) {
            return WatchState::Silent(format!("what its agent reports is not understood ({words})"));
        }
        if is_long {
            return WatchState::Silent(format!("its agent does not report its traffic pod ({state})"));
        }
        WatchState::Awaited(state)
    }
}

/// State of every node with a wanted or kept traffic pod.
pub fn states<'pass>(reports: &Reports<'pass>, silences: &mut Silences) -> BTreeMap<&'pass str, WatchState> {
    let fates = || {
        reports
            .fates
            .iter()
            .map(|((node, generation), fate)| (*node, *generation, *fate))
    };
    let without_report = fates().filter(|(node, generation, fate)| {
        *fate == PodDecision::Wanted && !reports.reports(node, *generation)
    });
    silences.keep(without_report.map(|(node, generation, _)| (node, generation)));
    let mut states: BTreeMap<&str, WatchState> = BTreeMap::new();
    for (node, generation, fate) in fates() {
        let state = match fate {
            PodDecision::Unwanted => continue,
            PodDecision::Wanted | PodDecision::Kept if reports.reports(node, generation) => {
                WatchState::Watches
            }
            PodDecision::Wanted => {
                reports.without_report(node, generation, silences.is_long(node, generation))
            }
            PodDecision::Kept => WatchState::Away,
        };
        let known = states.entry(node).or_insert(WatchState::Away);
        if *known < state {
            *known = state;
        }
    }
    // Unreadable reports are reported elsewhere.
    let unclear = &reports.snapshot.unclear;
    let silent = states.iter().filter_map(|(node, state)| match state {
        WatchState::Silent(why) if !unclear.contains_key(*node) => Some(((*node).to_owned(), why.clone())),
        WatchState::Silent(_) | WatchState::Away | WatchState::Watches | WatchState::Awaited(_) => None,
    });
    silences.set_reported(silent.collect());
    states
}

/// The agents' breaches on paths that are still wanted.
pub fn breaches(
    snapshot: &Snapshot,
    flows: &BTreeMap<String, Vec<Flow>>,
    judged_since: Option<Timestamp>,
) -> Vec<String> {
    let mut found: Vec<(Timestamp, String)> = snapshot
        .node_migrations
        .iter()
        .filter_map(|(node, object)| Some((flows.get(node)?, object.status.as_ref()?.traffic.as_ref()?)))
        .filter(|(_, report)| report.losses_counted_since == judged_since)
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

/// Probes sent and lost on all nodes, by class of path. A restarted agent counts from zero, and a node may be gone: sums in
/// `told` never decrease.
pub fn sums(snapshot: &Snapshot, told: &[ClassCount]) -> Vec<ClassCount> {
    let reports = snapshot
        .node_migrations
        .values()
        .filter_map(|object| object.status.as_ref()?.traffic.as_ref());
    sum(reports.flat_map(|report| &report.classes), told)
}

fn sum<'counts>(counts: impl Iterator<Item = &'counts ClassCount>, told: &[ClassCount]) -> Vec<ClassCount> {
    let mut sums: BTreeMap<PathClass, Totals> = BTreeMap::new();
    for count in counts {
        let sum = sums.entry(count.class).or_default();
        *sum = sum.add(count.totals);
    }
    for ClassCount { class, totals } in told {
        let sum = sums.entry(*class).or_default();
        *sum = Totals {
            sent: sum.sent.max(totals.sent),
            lost: sum.lost.max(totals.lost),
            late: sum.late.max(totals.late),
            longest_gap_milliseconds: sum.longest_gap_milliseconds.max(totals.longest_gap_milliseconds),
        };
    }
    sums.into_iter()
        .map(|(class, totals)| ClassCount { class, totals })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(class: PathClass, sent: u64, lost: u64) -> ClassCount {
        let totals = Totals {
            sent,
            lost,
            late: lost / 2,
            longest_gap_milliseconds: u32::try_from(lost).unwrap() * 100,
        };
        ClassCount { class, totals }
    }

    #[test]
    fn reported_sums_never_decrease() {
        use PathClass::{NewToNew, OldToOld};
        let counts = [
            count(OldToOld, 100, 2),
            count(OldToOld, 50, 4),
            count(NewToNew, 9, 0),
        ];
        let first = sum(counts.iter(), &[]);
        assert_eq!((first[0].totals.sent, first[0].totals.lost), (150, 6));
        assert_eq!(first[0].totals.longest_gap_milliseconds, 400);
        // The agent with the most losses restarts, and another one loses more.
        let counts = [count(OldToOld, 110, 3), count(OldToOld, 1, 0)];
        let second = sum(counts.iter(), &first);
        assert_eq!(second, first);
        let counts = [count(OldToOld, 200, 7)];
        let third = sum(counts.iter(), &second);
        assert_eq!((third[0].totals.sent, third[0].totals.lost), (200, 7));
        assert_eq!(sum([].iter(), &third), third);
    }
}
