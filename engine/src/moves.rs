//! The pods that have to move or to restart: their order, and which of them are evicted now.
//!
//! Pods are moved by eviction, so `PodDisruptionBudget`s hold. Without a budget, a pod of a workload is evicted only while every
//! other pod of the workload is Ready.

mod choose;
mod health;
mod movers;
mod wave;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

pub use health::{MovedNotReady, moved_not_ready, workloads_not_ready};
pub use movers::{Chosen, MoverWords, Movers};
pub use wave::{Wave, remaining_pods};

use choose::choose_pods;
use health::{HealthNow, health, terminates_too_long};

use crate::decision::{Wait, WaitReason};
use crate::drain::{self, Budget, Permissions, Pod};
use crate::evict::{self, Leaving, Refusal};

/// The workload that recreates a pod, as users know it: the Deployment of a `ReplicaSet`, not the `ReplicaSet`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload {
    /// Kind: Deployment, StatefulSet, DaemonSet, Job, …
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Workload {
    /// `Kind namespace/name`.
    pub fn key(&self) -> String {
        format!("{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// The role of a pod for other pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The coordinator itself.
    Coordinator,
    /// One of the cluster's name servers.
    NameServer,
    /// A backend of an admission webhook that fails closed.
    Admission,
    /// No known role.
    Any,
}

/// A pod with its workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident<'facts> {
    /// The pod.
    pub pod: &'facts Pod,
    /// Its workload; `None` when no controller recreates the pod.
    pub workload: Option<&'facts Workload>,
    /// The role of the pod for other pods.
    pub role: Role,
    /// Whether the pod was created after no new pod was to get an old address: an evicted pod would get an old address again.
    pub created_after_close: bool,
}

/// The facts of a workload that recreates pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadFacts {
    /// The number of pods that it has to have.
    pub wanted: usize,
    /// When it was created.
    pub made_at: Option<Timestamp>,
    /// Whether the controller replaces only deleted pods (`OnDelete`).
    pub on_delete: bool,
    /// How many of its pods may be unavailable at the same time: the `maxUnavailable` of a `DaemonSet`; 1 for other workloads.
    pub at_once: usize,
}

/// The state of a workload that existed before the first pod moved. No pod waits for a workload that was created later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The number of pods that it has to have now.
    pub wanted: usize,
    /// How many of its pods were not Ready before the first pod moved: as many may still be unready.
    pub unready_before_start: usize,
    /// How many of its pods may be unavailable at the same time; 0 counts as 1.
    pub at_once: usize,
    /// Whether the workload has lacked pods for so long that no other pod waits for it ([`crate::stalls`]).
    pub stalled: bool,
}

/// The facts that the moves depend on.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// Every pod of the cluster.
    pub residents: &'facts [Resident<'facts>],
    /// Which of them have to move.
    pub movers: Movers<'facts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: &'facts [Budget],
    /// Refused evictions by pod UID.
    pub refusals: &'facts BTreeMap<String, Refusal>,
    /// Workloads that existed before the first pod moved.
    pub workloads: &'facts BTreeMap<Workload, Health>,
    /// Nodes whose pods may move now; `None` for all nodes.
    pub only: Option<&'facts BTreeSet<&'facts str>>,
}

/// Limits and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many pods may be moving at the same time.
    pub pods_at_once: usize,
    /// What the user allows an eviction to destroy.
    pub permissions: Permissions,
    /// Whether pods without a controller are evicted.
    pub delete_bare_pods: bool,
}

impl Policy {
    fn evicts(&self) -> Permissions {
        Permissions {
            force: self.permissions.force || self.delete_bare_pods,
            ..self.permissions
        }
    }
}

/// For this time a refused eviction delays the later waves. A budget that is used up by other pods of the workload allows the
/// next disruption sooner.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// The next action; `None` once no pod has to move. A pod that cannot be evicted, or a workload that does not become Ready
/// ([`Health::stalled`]), delays no other pod: it is reported once no other pod can move.
pub fn next(view: &View<'_>, policy: &Policy, now: Timestamp) -> Option<evict::Next> {
    let mut remaining = remaining_pods(view.residents, view.movers);
    if let Some(nodes) = view.only {
        for residents in remaining.values_mut() {
            residents.retain(|resident| nodes.contains(resident.pod.node.as_str()));
        }
        remaining.retain(|_, residents| !residents.is_empty());
    }
    let count: usize = remaining.values().map(Vec::len).sum();
    let first = remaining.values().flatten().next()?;
    let health = health(view, now);
    let slots = policy.pods_at_once.max(1).saturating_sub(health.slots());
    let (mut again, mut deferred) = (Vec::new(), None);
    for (wave, pods) in &remaining {
        if pods.iter().all(|resident| resident.pod.deleted_at.is_some()) {
            continue;
        }
        // Moved pods of earlier waves are Ready before pods of this wave move.
        if let Some(first) = health.holding().find(|lacking| lacking.wave < *wave) {
            return Some(evict::Next::Wait(first.wait(&health)));
        }
        match decide_wave(*wave, pods, &health, slots, view, policy, now) {
            Turn::Asked(mut pods) => {
                // Refused evictions are tried again in free slots.
                pods.extend(again);
                pods.truncate(slots.max(1));
                return ask(&pods, view, policy, now);
            }
            Turn::Waits(blocker) => return Some(evict::Next::Wait(blocker)),
            Turn::Held { due, blocker } => {
                again.extend(due);
                deferred = deferred.or(Some(blocker));
            }
        }
    }
    if !again.is_empty() {
        again.truncate(slots.max(1));
        return ask(&again, view, policy, now);
    }
    let terminate = || {
        let message = format!("pods terminating: {count}; the first is {}", first.pod.key());
        wait(WaitReason::PodsTerminating, message)
    };
    Some(deferred.map_or_else(terminate, evict::Next::Wait))
}

/// The decision for the pods of one wave.
enum Turn<'facts> {
    /// These pods are evicted.
    Asked(Vec<&'facts Pod>),
    /// This wait, and later waves wait, too.
    Waits(Wait),
    /// No pod can move, and later waves do not wait for that. Pods that are due have been refused for long and are tried again.
    Held { due: Vec<&'facts Pod>, blocker: Wait },
}

fn decide_wave<'facts>(
    wave: Wave,
    pods: &[&Resident<'facts>],
    health: &HealthNow<'facts>,
    slots: usize,
    view: &View<'facts>,
    policy: &Policy,
    now: Timestamp,
) -> Turn<'facts> {
    let (evictable, kept): (Vec<&Resident<'_>>, Vec<&Resident<'_>>) = pods
        .iter()
        .copied()
        .partition(|resident| is_evictable(wave, resident, policy));
    let chosen = choose_pods(wave, &evictable, &health.busy, view.workloads);
    let permissions = policy.evicts();
    let is_due = |pod: &&Pod| {
        let refusal = view.refusals.get(&pod.uid);
        drain::obstacle(pod, permissions).is_none() && refusal.is_none_or(|refusal| refusal.next_try <= now)
    };
    let (held, free): (Vec<&Pod>, Vec<&Pod>) = chosen
        .into_iter()
        .partition(|pod| is_held(pod, view, policy, now));
    let (mut go, refused): (Vec<&Pod>, Vec<&Pod>) = free.into_iter().partition(is_due);
    // Pods that were refused a moment ago take no slot of other pods.
    go.sort_by_key(|pod| view.refusals.contains_key(&pod.uid));
    if !go.is_empty() && slots > 0 {
        return Turn::Asked(go.into_iter().take(slots).collect());
    }
    if let Some(first) = health.holding().next() {
        return Turn::Waits(first.wait(health));
    }
    let words = |pods: &[&Pod]| match evict::next(&leaving(pods, view, permissions, true), now) {
        Some(evict::Next::Wait(blocker)) => Some(blocker),
        Some(evict::Next::Evict(_)) | None => None,
    };
    if let Some(blocker) = words(&refused) {
        return Turn::Waits(blocker);
    }
    let blocker = describe_kept(wave, &kept, view.movers, policy).or_else(|| words(&held));
    let is_first = |resident: &&&Resident<'_>| resident.pod.deleted_at.is_none();
    let others = || {
        let first = evictable
            .iter()
            .find(is_first)
            .map_or_else(String::new, |first| first.pod.key());
        let message = format!(
            "pods to move: {}; the first is {first}; other pods of their workloads are not Ready",
            evictable.len()
        );
        waits(WaitReason::MovedPodsNotReady, message)
    };
    let blocker = blocker.unwrap_or_else(others);
    let due: Vec<&Pod> = held.into_iter().filter(is_due).collect();
    match (wave.is_needed(), due.is_empty()) {
        (true, true) => Turn::Waits(blocker),
        (true, false) => Turn::Asked(due),
        (false, _) => Turn::Held { due, blocker },
    }
}

/// Whether the migration cannot make this pod move: the pod may not be evicted, or the eviction has been refused for long.
fn is_held(pod: &Pod, view: &View<'_>, policy: &Policy, now: Timestamp) -> bool {
    let refusal = view.refusals.get(&pod.uid);
    drain::obstacle(pod, policy.evicts()).is_some()
        || refusal.is_some_and(|refusal| now.duration_since(refusal.since) >= PATIENCE)
}

/// Whether the migration evicts this pod: a controller recreates it, and the new pod gets a new address.
fn is_evictable(wave: Wave, resident: &Resident<'_>, policy: &Policy) -> bool {
    wave.is_evicted(policy.delete_bare_pods) && !resident.created_after_close
}

/// Whether no other pod waits for this pod, which still has to move.
pub fn delays_no_other_pod(
    wave: Wave,
    resident: &Resident<'_>,
    view: &View<'_>,
    policy: &Policy,
    now: Timestamp,
) -> bool {
    // No pod of a workload moves while another pod of the workload is not Ready.
    let is_given_up = || {
        let known = resident
            .workload
            .and_then(|workload| view.workloads.get(workload));
        known.is_some_and(|known| known.stalled)
    };
    let is_stuck = || {
        terminates_too_long(resident.pod, now) || is_given_up() || is_held(resident.pod, view, policy, now)
    };
    !is_evictable(wave, resident, policy) || (!wave.is_needed() && is_stuck())
}

fn leaving<'facts>(
    pods: &'facts [&'facts Pod],
    view: &View<'facts>,
    permissions: Permissions,
    overdue: bool,
) -> Leaving<'facts> {
    Leaving {
        place: view.movers.words.source,
        pods,
        terminating: &[],
        static_pods: &[],
        budgets: view.budgets,
        refusals: view.refusals,
        permissions,
        grace_period_seconds: None,
        overdue,
    }
}

fn ask(pods: &[&Pod], view: &View<'_>, policy: &Policy, now: Timestamp) -> Option<evict::Next> {
    evict::next(&leaving(pods, view, policy.evicts(), false), now)
}

fn waits(reason: WaitReason, message: String) -> Wait {
    Wait {
        reason,
        message,
        until: None,
    }
}

fn wait(reason: WaitReason, message: String) -> evict::Next {
    evict::Next::Wait(waits(reason, message))
}

/// The wait for pods that the migration does not evict, with the fix.
fn describe_kept(wave: Wave, pods: &[&Resident<'_>], movers: Movers<'_>, policy: &Policy) -> Option<Wait> {
    if let Some(again) = pods.iter().find(|resident| resident.created_after_close) {
        let key = again.pod.key();
        return Some(refused(format!(
            "pod {key} was created after {}",
            movers.words.created_after_close
        )));
    }
    let matter = movers.words.why;
    let first = pods.first()?;
    match wave {
        Wave::Jobs => Some(refused(format!(
            "pods of Jobs {matter} and are not evicted: {}; the first is {}. Wait until the Jobs complete, or delete the pods",
            pods.len(),
            first.pod.key()
        ))),
        Wave::Bare if !policy.delete_bare_pods => Some(refused(format!(
            "pods {matter} and have no controller to recreate them: {}; the first is {}. Delete the pods, or set {}",
            pods.len(),
            first.pod.key(),
            movers.words.bare_pods_field
        ))),
        Wave::Bare
        | Wave::Coordinator
        | Wave::NameServers
        | Wave::Admission
        | Wave::DaemonSets
        | Wave::Stateless
        | Wave::Stateful => None,
    }
}

fn refused(message: String) -> Wait {
    waits(WaitReason::EvictionRefused, message)
}

#[cfg(test)]
mod tests;
