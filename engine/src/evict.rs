//! Evictions: the pods that are evicted now, and the messages about pods that cannot be evicted.

mod message;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::decision::{Wait, WaitReason};
use crate::drain::{self, Budget, Permissions, Pod};
use crate::words::{lines, names, number};
use message::{describe_budget, describe_obstacles, describe_refusals, describe_slow};

/// A pod to evict. The UID is a precondition of the eviction: another pod may have the same name (R5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

impl PodName {
    /// The name of this pod.
    pub fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// A refused eviction, kept until it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Since when this pod has been refused.
    pub since: Timestamp,
    /// When the eviction is tried again.
    pub next_try: Timestamp,
    /// Whether the response was 429, which a `PodDisruptionBudget` causes.
    pub by_budget: bool,
    /// The message of the API server.
    pub message: String,
}

/// The reaction to a drain that exceeds its timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBlocked {
    /// Halt.
    #[default]
    Pause,
    /// Continue to wait.
    Wait,
    /// Skip the node or the pod for now.
    Skip,
}

impl OnBlocked {
    /// `words`, which describe the effect of a pod that cannot be evicted; `None` if the user wants a halt instead.
    pub fn effect_unless_pause(self, words: &'static str) -> Option<&'static str> {
        match self {
            Self::Pause => None,
            Self::Wait | Self::Skip => Some(words),
        }
    }
}

/// Pods that have to leave, and the facts that the next eviction depends on.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'facts> {
    /// The source that the pods leave, for messages: `node a`.
    pub place: &'facts str,
    /// Pods that are not evicted yet.
    pub pods: &'facts [&'facts Pod],
    /// Terminating pods.
    pub terminating: &'facts [&'facts Pod],
    /// Static pods, which cannot be evicted.
    pub static_pods: &'facts [&'facts Pod],
    /// Every `PodDisruptionBudget`.
    pub budgets: &'facts [Budget],
    /// Refused evictions by pod UID.
    pub refusals: &'facts BTreeMap<String, Refusal>,
    /// The data loss that the user allows.
    pub permissions: Permissions,
    /// Grace period that overrides the pods' own, in seconds.
    pub grace_period_seconds: Option<u32>,
    /// Whether the timeout is exceeded: no pod is evicted until the user resumes.
    pub overdue: bool,
}

/// The next action for these pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// These pods are evicted now.
    Evict(Vec<PodName>),
    /// No pod is evicted now.
    Wait(Wait),
}

/// The next action; `None` once no pod remains and none terminates. A pod that cannot be evicted delays no other pod.
///
/// # Examples
///
/// ```
/// use std::collections::BTreeMap;
///
/// use engine::drain::{Permissions, Pod};
/// use engine::evict::{Leaving, Next, PodName, next};
/// use jiff::Timestamp;
///
/// let pod = Pod {
///     namespace: "shop".to_owned(),
///     name: "web-0".to_owned(),
///     uid: "1".to_owned(),
///     controller: Some(("ReplicaSet".to_owned(), "web".to_owned())),
///     ..Pod::default()
/// };
/// let leaving = Leaving {
///     place: "node a",
///     pods: &[&pod],
///     terminating: &[],
///     static_pods: &[],
///     budgets: &[],
///     refusals: &BTreeMap::new(),
///     permissions: Permissions::default(),
///     grace_period_seconds: None,
///     overdue: false,
/// };
/// let now = Timestamp::UNIX_EPOCH;
/// assert_eq!(next(&leaving, now), Some(Next::Evict(vec![PodName::of(&pod)])));
/// assert_eq!(next(&Leaving { pods: &[], ..leaving }, now), None);
/// ```
pub fn next(leaving: &Leaving<'_>, now: Timestamp) -> Option<Next> {
    let wait = |reason, message| {
        Some(Next::Wait(Wait {
            reason,
            message,
            until: None,
        }))
    };
    let obstacle = |pod: &Pod| drain::obstacle(pod, leaving.permissions);
    let stuck: Vec<(&Pod, drain::Obstacle)> = leaving
        .pods
        .iter()
        .chain(leaving.static_pods)
        .filter_map(|pod| Some((*pod, obstacle(pod)?)))
        .collect();
    let may_go = || leaving.pods.iter().filter(|pod| obstacle(pod).is_none());
    let is_due = |pod: &&&Pod| {
        let refusal = leaving.refusals.get(&pod.uid);
        refusal.is_none_or(|refusal| refusal.next_try <= now)
    };
    let due: Vec<PodName> = may_go().filter(is_due).map(|pod| PodName::of(pod)).collect();
    if !due.is_empty() && !leaving.overdue {
        return Some(Next::Evict(due));
    }
    let refused: Vec<(&Pod, &Refusal)> = may_go()
        .filter_map(|pod| Some((*pod, leaving.refusals.get(&pod.uid)?)))
        .collect();
    let reason = match refused.first() {
        Some((_, first)) if first.by_budget && stuck.is_empty() => WaitReason::DisruptionBudget,
        Some(_) | None => WaitReason::EvictionRefused,
    };
    match (stuck.is_empty(), refused.is_empty()) {
        (true, true) => {}
        (true, false) => return wait(reason, describe_refusals(&refused, leaving.budgets)),
        (false, true) => return wait(reason, describe_obstacles(leaving.place, &stuck)),
        (false, false) => {
            let stuck = describe_obstacles(leaving.place, &stuck);
            let refused = describe_refusals(&refused, leaving.budgets);
            return wait(reason, format!("{stuck}; {refused}"));
        }
    }
    if !leaving.pods.is_empty() {
        let message = format!("pods remaining on {}: {}", leaving.place, leaving.pods.len());
        return wait(WaitReason::PodsTerminating, message);
    }
    let terminating: Vec<&Pod> = leaving
        .terminating
        .iter()
        .copied()
        .filter(|pod| !pod.addresses.is_empty())
        .collect();
    let longer: Vec<PodName> = terminating
        .iter()
        .filter(|pod| has_longer(pod, leaving.grace_period_seconds))
        .filter(|pod| is_due(pod))
        .map(|pod| PodName::of(pod))
        .collect();
    if !longer.is_empty() {
        return Some(Next::Evict(longer));
    }
    // The pod with the longest grace period; of equal ones, the first.
    let first = terminating
        .iter()
        .rev()
        .max_by_key(|pod| pod.deletion_grace_seconds)?;
    let message = format!(
        "{} on {}; the first is {} (grace period {} s)",
        number(terminating.len(), "pod terminates", "pods terminate"),
        leaving.place,
        first.key(),
        first.deletion_grace_seconds.unwrap_or_default()
    );
    wait(WaitReason::PodsTerminating, message)
}

/// The grace period of an eviction, in seconds. With 0 the API server removes a pod whose process still runs; a Migration of an
/// older version may have 0.
pub fn grace_period(wanted: u32) -> i64 {
    i64::from(wanted.max(1))
}

/// The time limits of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// For all pods of one place together.
    pub limit: SignedDuration,
    /// Grace period that overrides the pods' own, in seconds.
    pub grace_period_seconds: Option<u32>,
}

impl Time {
    /// The grace period of this pod in seconds, if it is longer than the limit. A terminating pod already has a grace period, and
    /// an eviction can only shorten it.
    pub fn exceeded_by(&self, pod: &Pod) -> Option<i64> {
        let allowed = self.grace_period_seconds.map(grace_period);
        let seconds = match pod.deletion_grace_seconds {
            Some(given) => allowed.map_or(given, |allowed| given.min(allowed)),
            None => allowed.unwrap_or(i64::from(pod.grace_seconds)),
        };
        (seconds > self.limit.as_secs()).then_some(seconds)
    }
}

/// Whether this terminating pod has a longer grace period than the user allows: another client has deleted the pod, or the limit
/// was set later. A second eviction shortens the period without a check of budgets: `canIgnorePDB` in the API server's
/// `registry/core/pod/storage/eviction.go`.
fn has_longer(pod: &Pod, grace_period_seconds: Option<u32>) -> bool {
    let allowed = grace_period_seconds.map(grace_period);
    allowed.is_some_and(|allowed| pod.deletion_grace_seconds.is_some_and(|given| given > allowed))
}

/// Known obstacles to the later eviction of these pods of one place; `None` without any. The pods are evicted at the same time,
/// and none is recreated before all are gone. For terminating pods only the grace period counts.
pub fn later_obstacles(
    place: &str,
    pods: &[&Pod],
    budgets: &[Budget],
    permissions: Permissions,
    time: &Time,
) -> Option<Wait> {
    let (mut stuck, mut may_go) = (Vec::new(), Vec::new());
    for pod in pods.iter().copied().filter(|pod| pod.deleted_at.is_none()) {
        match drain::obstacle(pod, permissions) {
            Some(obstacle) => stuck.push((pod, obstacle)),
            None => may_go.push(pod),
        }
    }
    let slow: Vec<String> = pods
        .iter()
        .filter_map(|pod| Some(describe_slow(pod, time.exceeded_by(pod)?, place, time)))
        .collect();
    let held = held_by_budgets(place, &may_go, budgets);
    let reason = if stuck.is_empty() && slow.is_empty() {
        WaitReason::DisruptionBudget
    } else {
        WaitReason::EvictionRefused
    };
    let mut words = Vec::new();
    if !stuck.is_empty() {
        words.push(describe_obstacles(place, &stuck));
    }
    let found = [slow, held];
    words.extend(
        found
            .iter()
            .filter(|found| !found.is_empty())
            .map(|found| lines(found)),
    );
    (!words.is_empty()).then(|| Wait {
        reason,
        message: words.join("; "),
        until: None,
    })
}

/// The pods whose budgets do not allow an eviction, one line each.
fn held_by_budgets(place: &str, pods: &[&Pod], budgets: &[Budget]) -> Vec<String> {
    let mut held: Vec<String> = Vec::new();
    let mut going: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for pod in pods.iter().copied() {
        match drain::budgets_of(pod, budgets).as_slice() {
            [] => {}
            [budget] if !pod.ready && budget.allows_unready() => {}
            [budget] => {
                let count = going.entry((&budget.namespace, &budget.name)).or_default();
                *count += 1;
                let allowed = usize::try_from(budget.disruptions_allowed).unwrap_or_default();
                if *count > allowed {
                    let because = describe_budget(budget);
                    held.push(format!(
                        "pod {} has to leave {place} later, but could not now: {because}",
                        pod.key()
                    ));
                }
            }
            several => {
                let of: Vec<&str> = several.iter().map(|budget| budget.name.as_str()).collect();
                held.push(format!(
                    "pod {} has to leave {place} later, but the API server evicts no pod with two or more PodDisruptionBudgets: \
                     correct the selectors of {}",
                    pod.key(),
                    names(&of)
                ));
            }
        }
    }
    held
}

#[cfg(test)]
mod tests;
