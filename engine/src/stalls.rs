//! Namespaces whose moved pods do not become Ready. Other pods wait for them for a limited time, since the network may be the
//! cause. A tenant whose pods never become Ready, or whose replicas exceed a quota, delays no pod of others for longer.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::moves::{self, Health, View, Workload};
use crate::owner::KUBE_SYSTEM;

/// The total time for which other pods wait for the pods of a namespace. The time starts again once the namespace has lacked no
/// pod for as long.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);
/// The time that is added for each pod that has moved: pods of a namespace may move one after the other for hours.
const TIME_PER_MOVE: SignedDuration = SignedDuration::from_secs(60);
/// With more stalled namespaces than this, the network may be the cause: except in a rollback, other pods wait for all of them.
const MAX_STALLED: usize = 3;
/// Namespaces whose pods all other pods need, beside those of the network: other pods always wait for them.
const NEEDED_NAMESPACES: [&str; 2] = [KUBE_SYSTEM, "replumb-system"];

/// The observed stalls. They are lost at a restart: the time then starts again.
#[derive(Debug, Default)]
pub struct Stalls(BTreeMap<String, Stall>);

#[derive(Debug)]
struct Stall {
    /// Since when other pods have waited for the namespace, with pauses.
    since: Timestamp,
    /// The total time of the wait.
    spent: SignedDuration,
    /// The time of the last observation.
    seen_at: Timestamp,
    /// Since when the namespace has lacked no pod; `None` while it lacks any.
    complete_since: Option<Timestamp>,
    /// Whether other pods no longer wait for the namespace.
    is_given_up: bool,
    pods: Pods,
}

/// The pods of a namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Pods {
    /// The number of pods that still have to move.
    remaining: usize,
    /// The number of pods that have moved, or need not move.
    moved: usize,
}

impl Pods {
    /// The number of pods that have moved since `before`. A pod that is only deleted, or only created, has not moved.
    fn moved_since(self, before: Self) -> i32 {
        let gone = before.remaining.saturating_sub(self.remaining);
        let come = self.moved.saturating_sub(before.moved);
        i32::try_from(gone.min(come)).unwrap_or(i32::MAX)
    }
}

impl Stall {
    fn new(pods: Pods, now: Timestamp) -> Self {
        Self {
            since: now,
            spent: SignedDuration::ZERO,
            seen_at: now,
            complete_since: None,
            is_given_up: false,
            pods,
        }
    }

    /// Records the current state of the namespace. Returns whether the stall has to be kept.
    fn observe(&mut self, pods: Pods, lacks_pods: bool, now: Timestamp) -> bool {
        // After the clock was set back, the time starts again.
        if self.seen_at > now {
            *self = Self::new(pods, now);
        }
        if self.complete_since.is_none() {
            self.spent = self.spent.saturating_add(now.duration_since(self.seen_at));
        }
        self.is_given_up |= self.spent >= PATIENCE;
        let back = TIME_PER_MOVE.saturating_mul(pods.moved_since(self.pods));
        self.spent = self.spent.saturating_sub(back).max(SignedDuration::ZERO);
        self.complete_since = (!lacks_pods).then(|| self.complete_since.unwrap_or(now));
        (self.seen_at, self.pods) = (now, pods);
        self.complete_since
            .is_none_or(|complete_since| now.duration_since(complete_since) < PATIENCE)
    }
}

impl Stalls {
    /// Records the current state of the pods. Other pods always wait for the namespaces of the network. Returns the workloads
    /// that other pods do not wait for, each with its problem and the time since when.
    pub fn observe(
        &mut self,
        view: &View<'_>,
        network_namespaces: &[&str],
        is_rollback: bool,
        now: Timestamp,
    ) -> BTreeMap<Workload, (String, Timestamp)> {
        let mut lacking = moves::workloads_not_ready(view, now);
        lacking.retain(|(workload, wave, _)| {
            let namespace = workload.namespace.as_str();
            !wave.is_needed()
                && !NEEDED_NAMESPACES.contains(&namespace)
                && !network_namespaces.contains(&namespace)
        });
        let lacks_pods: BTreeSet<&str> = lacking
            .iter()
            .map(|(workload, ..)| workload.namespace.as_str())
            .collect();
        let pods = self.pods(view, &lacks_pods);
        self.0.retain(|namespace, stall| {
            let pods = pods.get(namespace.as_str()).copied().unwrap_or_default();
            stall.observe(pods, lacks_pods.contains(namespace.as_str()), now)
        });
        for namespace in lacks_pods {
            if !self.0.contains_key(namespace) {
                let pods = pods.get(namespace).copied().unwrap_or_default();
                self.0.insert(namespace.to_owned(), Stall::new(pods, now));
            }
        }
        let is_stalled = |stall: &&Stall| stall.is_given_up && stall.complete_since.is_none();
        if self.0.values().filter(is_stalled).count() > MAX_STALLED && !is_rollback {
            return BTreeMap::new();
        }
        lacking
            .into_iter()
            .filter_map(|(workload, _, what)| {
                let stall = self.0.get(&workload.namespace).filter(is_stalled)?;
                Some((workload.clone(), (what, stall.since)))
            })
            .collect()
    }

    /// The pods of the namespaces that lack pods now, or did recently.
    fn pods<'view>(&self, view: &View<'view>, lacks_pods: &BTreeSet<&str>) -> BTreeMap<&'view str, Pods> {
        let mut found: BTreeMap<&str, Pods> = BTreeMap::new();
        for resident in view.residents {
            let namespace = resident.pod.namespace.as_str();
            if lacks_pods.contains(namespace) || self.0.contains_key(namespace) {
                let pods = found.entry(namespace).or_default();
                if view.movers.has(resident.pod) {
                    pods.remaining += 1;
                } else {
                    pods.moved += 1;
                }
            }
        }
        found
    }
}

/// Marks these workloads as stalled: no other pod waits for them.
pub fn mark(health: &mut BTreeMap<Workload, Health>, stalled: &BTreeMap<Workload, (String, Timestamp)>) {
    for workload in stalled.keys() {
        if let Some(health) = health.get_mut(workload) {
            health.stalled = true;
        }
    }
}

#[cfg(test)]
mod tests;
