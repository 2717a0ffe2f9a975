//! Pods that leave by eviction: which are asked for now, and the words about those that do not go.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::decision::{Wait, WaitReason};
use crate::drain::{self, Budget, Permissions, Pod};
use crate::words::{lines_of, names};

/// A pod to evict. The UID goes along as a precondition: a pod of the same name elsewhere is another pod (R5).
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
    /// When it is tried again.
    pub next_try: Timestamp,
    /// Whether the refusal was a 429, which is a `PodDisruptionBudget`'s.
    pub by_budget: bool,
    /// The API server's words.
    pub message: String,
}

/// What happens when a drain is blocked past its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBlocked {
    /// Halt.
    Pause,
    /// Keep waiting.
    Wait,
    /// Set aside what was to be drained.
    Skip,
}

/// Pods that have to leave, and what the next move depends on.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'facts> {
    /// Where from, for people: `node a`.
    pub place: &'facts str,
    /// Those that have not been asked to go, or did not.
    pub pods: &'facts [&'facts Pod],
    /// Those that are on their way.
    pub terminating: &'facts [&'facts Pod],
    /// Static pods there, which nobody can evict.
    pub static_pods: &'facts [&'facts Pod],
    /// Every `PodDisruptionBudget`.
    pub budgets: &'facts [Budget],
    /// Refused evictions by pod UID.
    pub refusals: &'facts BTreeMap<String, Refusal>,
    /// What an eviction may cost.
    pub permissions: Permissions,
    /// Whether their time is over: nobody is asked any more until a person says so.
    pub overdue: bool,
}

/// What comes next for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// These are asked to go now.
    Evict(Vec<PodName>),
    /// Nobody is asked now.
    Wait(Wait),
}

/// The next move; `None` once nobody is left and nobody is on the way.
pub fn next(leaving: &Leaving<'_>, now: Timestamp) -> Option<Next> {
    let wait = |reason, message| {
        Some(Next::Wait(Wait {
            reason,
            message,
            until: None,
        }))
    };
    let obstacle = leaving
        .pods
        .iter()
        .chain(leaving.static_pods)
        .find_map(|pod| Some((pod, drain::obstacle(pod, leaving.permissions)?)));
    if let Some((pod, obstacle)) = obstacle {
        let message = format!("{}: {}", leaving.place, describe_obstacle(pod, &obstacle));
        return wait(WaitReason::EvictionRefused, message);
    }
    let due: Vec<PodName> = leaving
        .pods
        .iter()
        .filter(|pod| {
            let refusal = leaving.refusals.get(&pod.uid);
            refusal.is_none_or(|refusal| refusal.next_try <= now)
        })
        .map(|pod| PodName::of(pod))
        .collect();
    if !due.is_empty() && !leaving.overdue {
        return Some(Next::Evict(due));
    }
    let refused: Vec<(&Pod, &Refusal)> = leaving
        .pods
        .iter()
        .filter_map(|pod| Some((*pod, leaving.refusals.get(&pod.uid)?)))
        .collect();
    if let Some((_, first)) = refused.first() {
        let reason = if first.by_budget {
            WaitReason::DisruptionBudget
        } else {
            WaitReason::EvictionRefused
        };
        return wait(reason, describe_refusals(&refused, leaving.budgets));
    }
    if !leaving.pods.is_empty() {
        let message = format!("{} pods are still on {}", leaving.pods.len(), leaving.place);
        return wait(WaitReason::PodsTerminating, message);
    }
    let terminating: Vec<&&Pod> = leaving
        .terminating
        .iter()
        .filter(|pod| !pod.addresses.is_empty())
        .collect();
    let first = terminating.first()?;
    let message = format!(
        "{} pods terminate on {}; the first is {} (grace period {} s)",
        terminating.len(),
        leaving.place,
        first.key(),
        first.deletion_grace_seconds.unwrap_or_default()
    );
    wait(WaitReason::PodsTerminating, message)
}

fn describe_obstacle(pod: &Pod, obstacle: &drain::Obstacle) -> String {
    match obstacle {
        drain::Obstacle::Bare => {
            format!(
                "pod {} has no controller; delete it or set drain.force",
                pod.key()
            )
        }
        drain::Obstacle::EmptyDir(volumes) => format!(
            "pod {} would lose its emptyDir volumes {}; set drain.deleteEmptyDirData or delete it",
            pod.key(),
            names(volumes)
        ),
        drain::Obstacle::Static => format!(
            "pod {} is a static pod on the pod network; move its manifest out of the kubelet's folder",
            pod.key()
        ),
    }
}

/// Each that is refused: what holds the first does not hide what holds another.
fn describe_refusals(refused: &[(&Pod, &Refusal)], budgets: &[Budget]) -> String {
    lines_of(refused, |(pod, refusal)| describe_refusal(pod, refusal, budgets))
}

/// The exact budget, its sum and the age: what a person needs at 3 a.m. (R1).
fn describe_refusal(pod: &Pod, refusal: &Refusal, budgets: &[Budget]) -> String {
    let mut holding = drain::budgets_of(pod, budgets);
    holding.retain(|budget| budget.disruptions_allowed <= 0);
    let because = if holding.is_empty() {
        refusal.message.clone()
    } else {
        lines_of(&holding, |budget| describe_budget(budget))
    };
    // A time, not an age: the words stay the same from look to look, so they are written once.
    format!(
        "eviction of pod {} refused since {:.0}: {because}",
        pod.key(),
        refusal.since
    )
}

fn describe_budget(budget: &Budget) -> String {
    let Budget { namespace, name, .. } = budget;
    // With every pod of it Ready it allows none either: nothing changes before a person does something.
    let way_out = if budget.expected_pods == 0 {
        ": its controller has not counted its pods yet".to_owned()
    } else if budget.desired_healthy >= budget.expected_pods {
        format!(
            ": no pod of it may ever go; `kubectl edit pdb -n {namespace} {name}`, or, where it says minAvailable as a number, add a \
             replica"
        )
    } else {
        String::new()
    };
    format!(
        "PodDisruptionBudget {namespace}/{name} allows {} disruptions ({} healthy, {} needed, {} expected){way_out}",
        budget.disruptions_allowed, budget.current_healthy, budget.desired_healthy, budget.expected_pods
    )
}
