//! Namespaces whose moved pods do not become Ready. Others wait for them for a while, since the network may be why, and no longer: an owner whose
//! pods never become Ready, or who wants more of them than a quota allows, holds up no pod of others.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::moves::{self, Health, View, Wave, Workload};
use crate::owner::KUBE_SYSTEM;

/// For so long others wait for the pods of a namespace while none of it moves.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);
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
    /// How many of its pods had to move still.
    left: usize,
    /// Since when that is so, and one of them or more is not Ready.
    since: Timestamp,
}

impl Stalls {
    /// Looks at the pods. Returns the workloads that others do not wait for, each with what is the matter with it and since when.
    pub fn look(
        &mut self,
        view: &View<'_>,
        goes_back: bool,
        now: Timestamp,
    ) -> BTreeMap<Workload, (String, Timestamp)> {
        let lacking = moves::lacking(view);
        let may_stall = |wave: Wave, workload: &Workload| {
            !wave.is_needed() && !NEEDED.contains(&workload.namespace.as_str())
        };
        let mut left: BTreeMap<&str, usize> = lacking
            .iter()
            .filter(|(workload, wave, _)| may_stall(*wave, workload))
            .map(|(workload, ..)| (workload.namespace.as_str(), 0))
            .collect();
        for resident in view.residents {
            if let Some(count) = left.get_mut(resident.pod.namespace.as_str())
                && view.movers.has(resident.pod)
            {
                *count += 1;
            }
        }
        self.0
            .retain(|namespace, _| left.contains_key(namespace.as_str()));
        for (namespace, left) in left {
            let stall = self
                .0
                .entry(namespace.to_owned())
                .or_insert(Stall { left, since: now });
            // A clock that was set back begins again, too.
            if stall.left != left || stall.since > now {
                *stall = Stall { left, since: now };
            }
        }
        let stalled: BTreeSet<&str> = self
            .0
            .iter()
            .filter(|(_, stall)| now.duration_since(stall.since) >= PATIENCE)
            .map(|(namespace, _)| namespace.as_str())
            .collect();
        if stalled.len() > MOST && !goes_back {
            return BTreeMap::new();
        }
        lacking
            .into_iter()
            .filter(|(workload, wave, _)| {
                may_stall(*wave, workload) && stalled.contains(workload.namespace.as_str())
            })
            .filter_map(|(workload, _, what)| {
                let since = self.0.get(&workload.namespace)?.since;
                Some((workload.clone(), (what, since)))
            })
            .collect()
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
