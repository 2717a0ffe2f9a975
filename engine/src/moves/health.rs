//! The state of the workloads: moved pods that are not Ready again or do not exist yet, and which of them other pods wait for.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::wave::Wave;
use super::{Health, Resident, View, Workload};
use crate::decision::{Wait, WaitReason};
use crate::drain::Pod;

/// A pod that has been terminating for this time delays no other pod: its owner decides when it ends, by grace period and
/// finalizers.
const ENDS_WITHIN: SignedDuration = SignedDuration::from_mins(5);

/// Whether a pod has been terminating for longer than other pods wait for it.
pub(super) fn terminates_too_long(pod: &Pod, now: Timestamp) -> bool {
    pod.deleted_at
        .is_some_and(|began| now.duration_since(began) >= ENDS_WITHIN)
}

/// Moved pods that are not Ready again.
#[derive(Clone, Debug)]
pub struct MovedNotReady {
    /// Why other pods wait: the first of these pods.
    pub wait: Wait,
    /// Whether one of these pods is unschedulable.
    pub finds_no_node: bool,
}

/// The moved pods that are not Ready again; `None` when all are Ready, or no pod waits for them.
pub fn moved_not_ready(view: &View<'_>, now: Timestamp) -> Option<MovedNotReady> {
    let health = health(view, now);
    let first = health.holding().next()?;
    Some(MovedNotReady {
        wait: first.wait(&health),
        finds_no_node: health.holding().any(|lacking| lacking.unschedulable),
    })
}

/// Workloads with moved pods that are not Ready again or do not exist, each with the first such pod.
pub fn workloads_not_ready<'facts>(
    view: &View<'facts>,
    now: Timestamp,
) -> Vec<(&'facts Workload, Wave, String)> {
    let lacking = health(view, now).lacking.into_iter();
    lacking
        .filter_map(|lacking| Some((lacking.workload?, lacking.wave, lacking.what)))
        .collect()
}

/// Pods of one workload that other pods wait for: pods that are not Ready again, or do not exist yet.
pub(super) struct Lacking<'facts> {
    pub(super) wave: Wave,
    /// `None` for a terminating pod without a controller.
    workload: Option<&'facts Workload>,
    /// The number of these pods.
    count: usize,
    /// How many of the pods that may move at the same time these are. A workload takes at most as many slots as pods of it may
    /// move at once, whatever its number of replicas is.
    slots: usize,
    /// The state of the first of these pods.
    what: String,
    /// Whether one of these pods is unschedulable.
    unschedulable: bool,
    /// Whether no other pod waits for these pods.
    stalled: bool,
}

impl Lacking<'_> {
    pub(super) fn wait(&self, health: &HealthNow<'_>) -> Wait {
        let whose = self
            .workload
            .map_or_else(|| "without a controller".to_owned(), Workload::key);
        let count = health.holding().map(|lacking| lacking.count).sum::<usize>();
        let message = format!("moved pods not Ready: {count}; the first: {whose}, {}", self.what);
        Wait {
            reason: WaitReason::MovedPodsNotReady,
            message,
            until: None,
        }
    }
}

/// The state of the workloads.
pub(super) struct HealthNow<'facts> {
    /// Workloads with pods that are not Ready or do not exist, in any range: the number of these pods.
    pub(super) busy: BTreeMap<&'facts Workload, usize>,
    /// Moved pods that are not Ready again, in the order of the waves.
    lacking: Vec<Lacking<'facts>>,
}

impl<'facts> HealthNow<'facts> {
    /// The pods that other pods wait for.
    pub(super) fn holding(&self) -> impl Iterator<Item = &Lacking<'facts>> {
        self.lacking.iter().filter(|lacking| !lacking.stalled)
    }

    /// How many of the pods that may move at the same time are moving.
    pub(super) fn slots(&self) -> usize {
        self.holding().map(|lacking| lacking.slots).sum()
    }
}

pub(super) fn health<'facts>(view: &View<'facts>, now: Timestamp) -> HealthNow<'facts> {
    let mut busy = BTreeMap::new();
    let mut lacking = Vec::new();
    let mut of_workload: BTreeMap<&Workload, Vec<&Resident<'_>>> = BTreeMap::new();
    for resident in view.residents {
        if !view.movers.counts(resident.pod) {
            continue;
        }
        match resident.workload {
            Some(_) if terminates_too_long(resident.pod, now) => {}
            Some(workload) => of_workload.entry(workload).or_default().push(resident),
            None if resident.pod.deleted_at.is_some() && view.movers.has(resident.pod) => {
                lacking.push(Lacking {
                    wave: Wave::of(resident),
                    workload: None,
                    count: 1,
                    slots: 1,
                    what: format!("pod {} terminates", resident.pod.key()),
                    unschedulable: false,
                    stalled: terminates_too_long(resident.pod, now),
                });
            }
            None => {}
        }
    }
    for (workload, pods) in of_workload {
        let wave = pods
            .iter()
            .map(|pod| Wave::of(pod))
            .min()
            .unwrap_or(Wave::Stateless);
        let there = pods.iter().filter(|pod| pod.pod.deleted_at.is_none()).count();
        let ready = pods
            .iter()
            .filter(|pod| pod.pod.deleted_at.is_none() && pod.pod.ready)
            .count();
        let known = view.workloads.get(workload);
        let missing = known.map_or(0, |known| known.wanted.saturating_sub(there));
        // A pod that was unready before does not delay the other pods of its workload.
        let as_unready_as_before = known.is_some_and(|known| {
            known.unready_before_start > 0
                && there == pods.len()
                && missing == 0
                && there - ready <= known.unready_before_start
        });
        if (ready < pods.len() || missing > 0) && !as_unready_as_before {
            busy.insert(workload, (pods.len() - ready).saturating_add(missing));
        }
        if let Some(known) = known.filter(|_| wave != Wave::Jobs) {
            lacking.extend(workload_lacking(view, workload, wave, &pods, known));
        }
    }
    lacking.sort_by(|left, right| (left.wave, left.workload).cmp(&(right.wave, right.workload)));
    HealthNow { busy, lacking }
}

/// The pods that a workload lacks; `None` when it lacks none.
fn workload_lacking<'facts>(
    view: &View<'facts>,
    workload: &'facts Workload,
    wave: Wave,
    pods: &[&Resident<'_>],
    known: &Health,
) -> Option<Lacking<'facts>> {
    let unready = |resident: &&&Resident<'_>| {
        let pod = resident.pod;
        pod.deleted_at.is_none() && !pod.ready && !view.movers.has(pod)
    };
    // As many pods as were unready before the first move may still be unready.
    let unready: Vec<&Pod> = pods
        .iter()
        .filter(unready)
        .skip(known.unready_before_start)
        .map(|resident| resident.pod)
        .collect();
    let terminating = pods
        .iter()
        .filter(|resident| resident.pod.deleted_at.is_some())
        .count();
    let there = pods.len() - terminating;
    let missing = known.wanted.saturating_sub(there);
    let what = match unready.first() {
        Some(first) if first.unschedulable => {
            format!(
                "pod {} is not Ready: the scheduler finds no node for it",
                first.key()
            )
        }
        Some(first) => format!("pod {} is not Ready", first.key()),
        None if missing > 0 => format!("{there} of {} pods exist", known.wanted),
        None => return None,
    };
    Some(Lacking {
        wave,
        workload: Some(workload),
        count: unready.len().saturating_add(missing),
        slots: unready.len() + missing.min(known.at_once.max(1).max(terminating)),
        what,
        unschedulable: unready.iter().any(|pod| pod.unschedulable),
        stalled: known.stalled,
    })
}
