//! Namespaces whose moved pods do not become Ready. Others wait for them for a while, since the network may be why, and no longer: an owner whose
//! pods never become Ready, or who wants more of them than a quota allows, holds up no pod of others.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::moves::{self, Health, View, Workload};
use crate::owner::KUBE_SYSTEM;

/// For so long in all others wait for the pods of a namespace. The whole time is there again once they have lacked nothing for as long.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);
/// A pod that has moved gives back so much of it: pods of a namespace may move one after the other for hours.
const A_MOVE: SignedDuration = SignedDuration::from_secs(60);
/// When pods of more namespaces than this do not become Ready, the network may be why: on the way there others wait for them all.
const MOST: usize = 3;
/// Namespaces whose pods all others need: they are waited for.
const NEEDED: [&str; 6] = [
    "calico-apiserver",
    "calico-system",
    "kube-flannel",
    KUBE_SYSTEM,
    "replumb-system",
    "tigera-operator",
];

/// What was seen at the last looks. Lost at a restart: then the time counts again.
#[derive(Debug, Default)]
pub struct Stalls(BTreeMap<String, Stall>);

#[derive(Debug)]
struct Stall {
    /// Since when others have waited for it, with pauses.
    since: Timestamp,
    /// For how long in all.
    spent: SignedDuration,
    /// When it was looked at last.
    looked: Timestamp,
    /// Since when its pods lack nothing; `None` while they do.
    rests: Option<Timestamp>,
    /// Whether others do not wait for it any more.
    is_given_up: bool,
    pods: Pods,
}

/// The pods of a namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Pods {
    /// How many have to move still.
    left: usize,
    /// How many do not, or no longer.
    moved: usize,
}

impl Pods {
    /// How many have moved since. One that is only deleted, or only made, has not.
    fn moves_since(self, before: Self) -> i32 {
        let gone = before.left.saturating_sub(self.left);
        let come = self.moved.saturating_sub(before.moved);
        i32::try_from(gone.min(come)).unwrap_or(i32::MAX)
    }
}

impl Stall {
    fn new(pods: Pods, now: Timestamp) -> Self {
        Self {
            since: now,
            spent: SignedDuration::ZERO,
            looked: now,
            rests: None,
            is_given_up: false,
            pods,
        }
    }

    /// Takes in how the namespace is now. Returns whether anything has to be remembered of it.
    fn look(&mut self, pods: Pods, lacks: bool, now: Timestamp) -> bool {
        // A clock that was set back begins again.
        if self.looked > now {
            *self = Self::new(pods, now);
        }
        if self.rests.is_none() {
            self.spent = self.spent.saturating_add(now.duration_since(self.looked));
        }
        self.is_given_up |= self.spent >= PATIENCE;
        let back = A_MOVE.saturating_mul(pods.moves_since(self.pods));
        self.spent = self.spent.saturating_sub(back).max(SignedDuration::ZERO);
        self.rests = (!lacks).then(|| self.rests.unwrap_or(now));
        (self.looked, self.pods) = (now, pods);
        self.rests
            .is_none_or(|rests| now.duration_since(rests) < PATIENCE)
    }
}

impl Stalls {
    /// Looks at the pods. Returns the workloads that others do not wait for, each with what is the matter with it and since when.
    pub fn look(
        &mut self,
        view: &View<'_>,
        goes_back: bool,
        now: Timestamp,
    ) -> BTreeMap<Workload, (String, Timestamp)> {
        let mut lacking = moves::lacking(view, now);
        lacking.retain(|(workload, wave, _)| {
            !wave.is_needed() && !NEEDED.contains(&workload.namespace.as_str())
        });
        let lacks: BTreeSet<&str> = lacking
            .iter()
            .map(|(workload, ..)| workload.namespace.as_str())
            .collect();
        let pods = self.pods(view, &lacks);
        self.0.retain(|namespace, stall| {
            let pods = pods.get(namespace.as_str()).copied().unwrap_or_default();
            stall.look(pods, lacks.contains(namespace.as_str()), now)
        });
        for namespace in lacks {
            if !self.0.contains_key(namespace) {
                let pods = pods.get(namespace).copied().unwrap_or_default();
                self.0.insert(namespace.to_owned(), Stall::new(pods, now));
            }
        }
        let is_stalled = |stall: &&Stall| stall.is_given_up && stall.rests.is_none();
        if self.0.values().filter(is_stalled).count() > MOST && !goes_back {
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

    /// The pods of the namespaces that lack any, or did so not long ago.
    fn pods<'view>(&self, view: &View<'view>, lacks: &BTreeSet<&str>) -> BTreeMap<&'view str, Pods> {
        let mut found: BTreeMap<&str, Pods> = BTreeMap::new();
        for resident in view.residents {
            let namespace = resident.pod.namespace.as_str();
            if lacks.contains(namespace) || self.0.contains_key(namespace) {
                let pods = found.entry(namespace).or_default();
                if view.movers.has(resident.pod) {
                    pods.left += 1;
                } else {
                    pods.moved += 1;
                }
            }
        }
        found
    }
}

/// Says of these workloads that no other waits for them.
pub fn mark(health: &mut BTreeMap<Workload, Health>, stalled: &BTreeMap<Workload, (String, Timestamp)>) {
    for workload in stalled.keys() {
        if let Some(health) = health.get_mut(workload) {
            health.stalled = true;
        }
    }
}

#[cfg(test)]
#[path = "stalls_tests.rs"]
mod tests;
