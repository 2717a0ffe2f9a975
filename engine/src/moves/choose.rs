//! The pods that may move now: one of each workload, while its other pods are Ready.

use std::collections::{BTreeMap, BTreeSet};

use super::wave::Wave;
use super::{Health, Resident, Workload};
use crate::drain::Pod;

/// The pods that may move now: one of each workload, and only while every other pod of the workload is Ready. An unready pod
/// serves no traffic and does not wait, except in a `StatefulSet`, where other pods may need its data. Of a `DaemonSet`, as many
/// pods move as its `maxUnavailable` allows, including those that are unavailable already, and none from a node where another pod
/// of it is moving.
pub(super) fn choose_pods<'facts>(
    wave: Wave,
    pods: &[&Resident<'facts>],
    busy: &BTreeMap<&Workload, usize>,
    workloads: &BTreeMap<Workload, Health>,
) -> Vec<&'facts Pod> {
    let at_once = |workload: &Workload| {
        let known = workloads.get(workload).filter(|_| wave == Wave::DaemonSets);
        known.map_or(1, |known| known.at_once.max(1))
    };
    let mut taken: BTreeMap<&Workload, usize> = BTreeMap::new();
    let mut busy_nodes: BTreeSet<(&Workload, &str)> = pods
        .iter()
        .filter(|resident| wave == Wave::DaemonSets && resident.pod.deleted_at.is_some())
        .filter_map(|resident| Some((resident.workload?, resident.pod.node.as_str())))
        .collect();
    let mut chosen = Vec::new();
    for resident in pods {
        let pod = resident.pod;
        if pod.deleted_at.is_some() {
            continue;
        }
        if let Some(workload) = resident.workload {
            let away = busy.get(workload).copied();
            let taken = taken.entry(workload).or_default();
            let of_others = away.filter(|_| pod.ready).unwrap_or_default();
            let is_full = *taken + of_others >= at_once(workload);
            if is_full && (pod.ready || wave == Wave::Stateful) {
                continue;
            }
            if wave == Wave::DaemonSets && !busy_nodes.insert((workload, &pod.node)) {
                continue;
            }
            // A pod that is not Ready is already counted as unavailable.
            if pod.ready || wave == Wave::Stateful || away.is_none() {
                *taken += 1;
            }
        }
        chosen.push(pod);
    }
    chosen
}
