//! The time that adopted pods wait for calico-node, by the monotonic clock. Touches the journal only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use flannel_to_calico::facts::{HostFacts, LegacyPod};
use flannel_to_calico::host::HostSettings;
use flannel_to_calico::phase::Goal;
use jiff::Timestamp;
use runtime::error::chain;

use super::Worker;
use crate::kinds::flannel_to_calico::observe::Observation;

/// Since when each adopted pod waits for calico-node, by sandbox. The time starts again with the agent.
#[derive(Debug, Default)]
pub(super) struct TakingClock {
    since: BTreeMap<String, Instant>,
}

impl TakingClock {
    /// Sandboxes of pods whose links calico-node has not taken for `limit`.
    fn overdue(&mut self, facts: &HostFacts, limit: Duration, now: Instant) -> BTreeSet<String> {
        let waiting: BTreeSet<&String> = facts
            .legacy_pods
            .iter()
            .filter(|pod| pod.waits_for_felix())
            .map(|pod: &LegacyPod| &pod.sandbox)
            .collect();
        self.since.retain(|sandbox, _| waiting.contains(sandbox));
        for sandbox in waiting {
            self.since.entry(sandbox.clone()).or_insert(now);
        }
        let over = |since: &Instant| now.saturating_duration_since(*since) >= limit;
        let overdue = self.since.iter().filter(|(_, since)| over(since));
        overdue.map(|(sandbox, _)| sandbox.clone()).collect()
    }
}

impl Worker {
    /// Records the pods whose links calico-node has not taken in time: the next decisions return them to `cni0`.
    pub(super) fn return_not_taken(
        &mut self,
        seen: &Observation,
        settings: &HostSettings,
        goal: Goal,
    ) -> Result<(), String> {
        if goal != Goal::Calico || !settings.adopt_pods {
            self.taking = TakingClock::default();
            return Ok(());
        }
        let limit = Duration::from_secs(u64::from(settings.adoption.taking_seconds));
        let overdue = self.taking.overdue(&seen.facts, limit, Instant::now());
        let Some(journal) = self.journal.as_mut().filter(|_| !overdue.is_empty()) else {
            return Ok(());
        };
        tracing::warn!(
            sandboxes = ?overdue,
            seconds = settings.adoption.taking_seconds,
            "calico-node has not taken the links of adopted pods; returning them to the bridge"
        );
        journal
            .record_not_taken(overdue, Timestamp::now())
            .map_err(|error| chain(&error))
    }
}

#[cfg(test)]
mod tests;
