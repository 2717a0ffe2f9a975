//! Check that the pods of the nodes being migrated fit on the other nodes.
//!
//! Compares requests with free allocatable resources, as the scheduler does. The other rules of the scheduler (affinity,
//! spread, volumes) are not modelled, so a pass is necessary but not sufficient.

use std::collections::BTreeMap;

use super::{CheckName, CheckPolicy};
use crate::detect::{flannel_nodes, linux_nodes};
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::cluster::Node;
use engine::drain::Pod;
use engine::words::number;

/// CPU in millicores, memory in bytes, pods.
type Amounts = [u64; KINDS];

const KINDS: usize = 3;

/// A node as a place for pods.
struct Place<'facts> {
    name: &'facts str,
    /// Whether the scheduler may use the node while it is not being migrated.
    usable: bool,
    /// Whether the node still has to be migrated.
    pending: bool,
    free: Amounts,
    movable: Vec<&'facts Pod>,
    /// Pods with larger requests than the node has allocatable.
    larger: Vec<&'facts Pod>,
}

impl Place<'_> {
    /// The requests of all pods to evict.
    fn evicted(&self) -> Amounts {
        self.movable
            .iter()
            .fold([0; KINDS], |sum, pod| plus(sum, of_pod(pod)))
    }

    /// The largest request of each resource.
    fn largest(&self) -> Amounts {
        self.movable.iter().fold([0; KINDS], |largest, pod| {
            let pod = of_pod(pod);
            std::array::from_fn(|kind| largest[kind].max(pod[kind]))
        })
    }

    /// The resources that the other nodes have to provide while this node is being migrated.
    fn cost(&self, kind: usize) -> u64 {
        self.evicted()[kind].saturating_add(if self.usable { self.free[kind] } else { 0 })
    }
}

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::Capacity);
    let places = places(facts, &mut report);
    // The check MaxUnavailable refuses an invalid value.
    let at_once = policy
        .max_unavailable
        .as_ref()
        .map_or(1, |limit| limit.resolve(facts.nodes.len()))
        .min(places.iter().filter(|place| place.pending).count());
    let single = policy.allow_single_node && places.iter().filter(|place| place.usable).count() < 2;
    let verdict = if single { Verdict::Warn } else { Verdict::Fail };
    let worst: Vec<Vec<usize>> = (0..KINDS)
        .map(|kind| first_by(&places, at_once, |place| place.cost(kind)))
        .collect();
    for (kind, migrating) in worst.iter().enumerate() {
        if let Some(finding) = shortage(&places, kind, migrating) {
            report.add(verdict, "", "schedulable Nodes", finding);
        }
    }
    // The sum may fit although no single node has enough room for one pod. The candidates are the nodes with the largest
    // pods, and those with the largest sums.
    let largest = (0..KINDS).flat_map(|kind| {
        [
            first_by(&places, at_once, |place| place.largest()[kind]),
            first_by(&places, at_once, |place| place.evicted()[kind]),
        ]
    });
    let candidates: Vec<Vec<usize>> = if report.is_clean() {
        largest.collect()
    } else {
        Vec::new()
    };
    let fragmented = candidates
        .iter()
        .find_map(|migrating| Some((migrating, first_without_place(&places, migrating)?)));
    if let Some((migrating, pod)) = fragmented {
        let needed = of_pod(pod);
        report.warn(
            "Pod",
            pod.key(),
            Finding::new(
                "",
                format!(
                    "no other node has room for the pod during the migration of {}",
                    list(&places, migrating)
                ),
                format!(
                    "{} and {} on one node",
                    amount(0, needed[0]),
                    amount(1, needed[1])
                ),
                "the pod may stay Pending until these nodes are schedulable again",
            ),
        );
    }
    for pod in places.iter().flat_map(|place| &place.larger) {
        let asked = of_pod(pod);
        report.warn(
            "Pod",
            pod.key(),
            Finding::new(
                "requests",
                format!("{} and {}", amount(0, asked[0]), amount(1, asked[1])),
                format!("at most the allocatable resources of node {}", pod.node),
                "the comparison ignores this pod: ask its owner for the correct requests",
            ),
        );
    }
    report.finish(
        "schedulable Nodes",
        format!("the pods to evict fit on the other nodes; nodes migrated at the same time: {at_once}"),
    )
}

/// The resources of this kind that the other nodes lack while these nodes are being migrated; `None` if the sums fit.
fn shortage(places: &[Place<'_>], kind: usize, migrating: &[usize]) -> Option<Finding<'static>> {
    let needed = total(migrating.iter().map(|index| places[*index].evicted()[kind]));
    let others = places
        .iter()
        .enumerate()
        .filter(|(index, place)| place.usable && !migrating.contains(index));
    let free = total(others.map(|(_, place)| place.free[kind]));
    (needed > free).then(|| {
        Finding::new(
            "",
            format!(
                "{} free on the other nodes during the migration of {}",
                amount(kind, free),
                list(places, migrating)
            ),
            format!("{} for the pods to evict", amount(kind, needed)),
            "add a node, lower rollout.maxUnavailable, or scale down workloads during the migration",
        )
    })
}

fn places<'facts>(facts: &'facts ClusterFacts, report: &mut Report) -> Vec<Place<'facts>> {
    let mut pods: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    // The resources of a finished pod are free again.
    for pod in facts.pods.iter().filter(|pod| !pod.finished) {
        pods.entry(&pod.node).or_default().push(pod);
    }
    let pending: std::collections::BTreeSet<&str> =
        flannel_nodes(facts).map(|node| node.name.as_str()).collect();
    linux_nodes(facts)
        .map(|node| {
            let here = pods.remove(node.name.as_str()).unwrap_or_default();
            // The check MalformedObjects names amounts that could not be parsed.
            if node.ready && amounts(node) == [0; KINDS] && node.not_understood.is_empty() {
                let fix = "check why the kubelet of the node reports no resources";
                let finding = Finding::new("status.allocatable", "nothing", "CPU, memory and pods", fix);
                report.unknown("Node", &node.name, finding);
            }
            let (here, larger): (Vec<&Pod>, Vec<&Pod>) =
                here.into_iter().partition(|pod| may_run_on(pod, node));
            let used = here.iter().fold([0; KINDS], |sum, pod| plus(sum, of_pod(pod)));
            Place {
                larger,
                name: &node.name,
                usable: node.schedulable(),
                pending: pending.contains(node.name.as_str()),
                free: minus(amounts(node), used),
                movable: here
                    .into_iter()
                    .filter(|pod| pod.uses_pod_network() && pod.deleted_at.is_none() && !pod.mirror)
                    // The pods of DaemonSets start again on the same node; bare pods do not start again.
                    .filter(|pod| pod.controller.is_some() && !pod.of_daemon_set())
                    .collect(),
            }
        })
        .collect()
}

/// Whether the requests of this pod are at most the allocatable resources of the node. A pod with larger requests does not
/// run, or had smaller requests when it started, so its requests say nothing about the free room.
fn may_run_on(pod: &Pod, node: &Node) -> bool {
    let (asked, allocatable) = (of_pod(pod), amounts(node));
    (0..KINDS).all(|kind| asked[kind] <= allocatable[kind] || allocatable[kind] == 0)
}

/// The pending nodes with the largest sizes.
fn first_by(places: &[Place<'_>], count: usize, size: impl Fn(&Place<'_>) -> u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..places.len()).filter(|index| places[*index].pending).collect();
    order.sort_by_cached_key(|index| std::cmp::Reverse(size(&places[*index])));
    order.truncate(count);
    order
}

/// Places the largest pods first, each on the first node with enough room. Returns the first pod without a place.
fn first_without_place<'facts>(places: &[Place<'facts>], migrating: &[usize]) -> Option<&'facts Pod> {
    let mut free: Vec<Amounts> = places
        .iter()
        .enumerate()
        .filter(|(index, place)| place.usable && !migrating.contains(index))
        .map(|(_, place)| place.free)
        .collect();
    let mut pods: Vec<&Pod> = migrating
        .iter()
        .flat_map(|index| places[*index].movable.iter().copied())
        .collect();
    pods.sort_by_key(|pod| std::cmp::Reverse((pod.cpu_millis, pod.memory_bytes)));
    // A pod with the same requests as the last one starts at the node of the last one: the nodes before it have no room.
    let mut last: Option<(Amounts, usize)> = None;
    pods.into_iter().find(|pod| {
        let needed = of_pod(pod);
        let first = last
            .filter(|(like, _)| *like == needed)
            .map_or(0, |(_, place)| place);
        let has_room = |free: &Amounts| (0..KINDS).all(|kind| free[kind] >= needed[kind]);
        let Some(place) = free[first..].iter().position(has_room) else {
            return true;
        };
        let place = first + place;
        free[place] = minus(free[place], needed);
        last = Some((needed, place));
        false
    })
}

fn amount(kind: usize, value: u64) -> String {
    match kind {
        0 => format!("{value}m CPU"),
        1 => format!("{} MiB memory", value.div_ceil(1 << 20)),
        _ => number(value, "pod", "pods"),
    }
}

fn list(places: &[Place<'_>], indexes: &[usize]) -> String {
    let listed: Vec<&str> = indexes.iter().map(|index| places[*index].name).collect();
    names(&listed)
}

fn amounts(node: &Node) -> Amounts {
    [
        node.allocatable_cpu_millis,
        node.allocatable_memory_bytes,
        node.allocatable_pods,
    ]
}

fn of_pod(pod: &Pod) -> Amounts {
    [pod.cpu_millis, pod.memory_bytes, 1]
}

fn total(amounts: impl Iterator<Item = u64>) -> u64 {
    amounts.fold(0, u64::saturating_add)
}

fn plus(left: Amounts, right: Amounts) -> Amounts {
    std::array::from_fn(|kind| left[kind].saturating_add(right[kind]))
}

fn minus(left: Amounts, right: Amounts) -> Amounts {
    std::array::from_fn(|kind| left[kind].saturating_sub(right[kind]))
}
#[cfg(test)]
mod tests;
