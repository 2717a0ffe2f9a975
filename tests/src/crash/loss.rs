//! Counts the probes that were sent and lost between two moments.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use traffic::report::Report;

use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::traffic::so_far;

/// Time limit for a prober to start again on a node that lost its power.
const LIMIT: Duration = Duration::from_mins(2);
/// A report is written every second, and a probe counts as lost after four more.
const BEHIND: SignedDuration = SignedDuration::from_secs(5);

/// The counts of all probers up to a moment.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// By prober and its start: a prober that restarts counts from zero.
    counted: BTreeMap<(String, Timestamp), Loss>,
}

/// Counts of probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Loss {
    /// Number of probes sent.
    pub sent: u64,
    /// Number of probes lost.
    pub lost: u64,
}

impl Moment {
    /// The present counts: waits until every node has reported its probes up to this moment.
    pub async fn now(cluster: &Cluster) -> Result<Self> {
        let wanted = Timestamp::now() + BEHIND;
        let nodes = cluster.node_names().await;
        let logs = cluster.directory().logs();
        until("every node's probers to report", LIMIT, &logs, async || {
            let reports = so_far(cluster).await?;
            let late = nodes.iter().find(|node| {
                let of_node = reports.iter().filter(|report| report.node == **node);
                of_node.map(|report| report.updated).max() < Some(wanted)
            });
            Ok(match late {
                None => Observation::Done(Self::of(&reports)),
                Some(node) => Observation::NotYet(format!("no prober of node {node} has reported yet")),
            })
        })
        .await
    }

    fn of(reports: &[Report]) -> Self {
        let mut counted = BTreeMap::new();
        for report in reports {
            let sum: &mut Loss = counted
                .entry((report.prober.clone(), report.started))
                .or_default();
            for flow in &report.flows {
                sum.sent += flow.counts.sent;
                sum.lost += flow.counts.lost;
            }
        }
        Self { counted }
    }

    /// The counts since an earlier moment. The counts of a prober that was killed meanwhile are not known.
    pub fn since(&self, earlier: &Self) -> Loss {
        let mut all = Loss::default();
        for (prober, now) in &self.counted {
            let before = earlier.counted.get(prober).copied().unwrap_or_default();
            all.sent += now.sent.saturating_sub(before.sent);
            all.lost += now.lost.saturating_sub(before.lost);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(counted: &[(&str, i64, u64, u64)]) -> Moment {
        Moment {
            counted: counted
                .iter()
                .map(|&(prober, started, sent, lost)| {
                    let started = Timestamp::from_second(started).unwrap();
                    ((prober.to_owned(), started), Loss { sent, lost })
                })
                .collect(),
        }
    }

    #[test]
    fn a_restarted_prober_counts_from_zero() {
        let earlier = moment(&[("a", 1, 100, 2), ("b", 1, 100, 0)]);
        let now = moment(&[("a", 1, 150, 3), ("b", 9, 20, 5)]);
        assert_eq!(now.since(&earlier), Loss { sent: 70, lost: 6 });
    }
}
