//! Check that the pods of the nodes being migrated fit on the other nodes.
//!
//! Compares requests with free allocatable resources, as the scheduler does. The other rules of the scheduler (affinity,
//! spread, volumes) are not modelled, so a pass is necessary but not sufficient.

use std::collections::BTreeMap;

use super::{CheckName, CheckPolicy};
use crate::cluster::ClusterFacts;
use crate::detect::{flannel_nodes, linux_nodes};
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::cluster::Node;
use engine::drain::Pod;

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
        let needed = total(migrating.iter().map(|index| places[*index].evicted()[kind]));
        let others = places
            .iter()
            .enumerate()
            .filter(|(index, place)| place.usable && !migrating.contains(index));
        let free = total(others.map(|(_, place)| place.free[kind]));
        if needed > free {
            let finding = Finding::new(
                "",
                format!(
                    "{} free on the other nodes during the migration of {}",
                    amount(kind, free),
                    list(&places, migrating)
                ),
                format!("{} for the pods to evict", amount(kind, needed)),
                "add a node, lower rollout.maxUnavailable, or scale down workloads during the migration",
            );
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
        _ => format!("{value} pods"),
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
mod tests {
    use rstest::rstest;

    use super::super::fixture::{self, verdicts};
    use super::*;
    use engine::check::Verdict::{Fail, Pass, Unknown, Warn};
    use engine::check::worst;
    use engine::cluster::{Needed, NotUnderstood};
    use engine::rollout::MaxUnavailable;

    fn pods(node: &str, count: usize, cpu_millis: u64, memory_bytes: u64) -> Vec<Pod> {
        (0..count)
            .map(|number| Pod {
                cpu_millis,
                memory_bytes,
                ..fixture::pod(&format!("{node}-{number}"), node)
            })
            .collect()
    }

    fn judge(pods: Vec<Pod>, max_unavailable: u32) -> Vec<Check> {
        let facts = ClusterFacts {
            pods: pods.into(),
            ..fixture::cluster()
        };
        check(
            &facts,
            &CheckPolicy {
                max_unavailable: Ok(MaxUnavailable::Nodes(max_unavailable)),
                ..fixture::policy()
            },
        )
    }

    #[test]
    fn pods_smaller_than_the_free_room_pass() {
        let pods = [
            pods("a", 20, 100, 0),
            pods("b", 20, 100, 0),
            pods("c", 20, 100, 0),
        ]
        .concat();
        assert_eq!(verdicts(&judge(pods, 1)), [("Capacity", Pass)]);
    }

    #[rstest]
    // Each node uses 3000m of 4000m: the 3000m of node a do not fit into 2 × 1000m.
    #[case::cpu(
        pods("a", 30, 100, 0),
        30,
        100,
        0,
        "3000m CPU for the pods to evict",
        "2000m CPU"
    )]
    #[case::memory(pods("a", 6, 0, 1 << 30), 6, 0, 1 << 30, "6144 MiB memory for the pods to evict", "4096 MiB memory")]
    #[case::number(pods("a", 80, 0, 0), 80, 0, 0, "80 pods for the pods to evict", "60 pods")]
    fn pods_larger_than_the_free_room_fail(
        #[case] of_a: Vec<Pod>,
        #[case] count: usize,
        #[case] cpu: u64,
        #[case] memory: u64,
        #[case] needed: &str,
        #[case] free: &str,
    ) {
        let all = [of_a, pods("b", count, cpu, memory), pods("c", count, cpu, memory)].concat();
        let checks = judge(all, 1);
        assert_eq!(verdicts(&checks), [("Capacity", Fail)], "{checks:?}");
        assert_eq!(checks[0].needed, needed);
        assert_eq!(
            checks[0].found,
            format!("{free} free on the other nodes during the migration of a")
        );
    }

    #[test]
    fn two_nodes_at_the_same_time_need_more_room_than_one() {
        let all = [
            pods("a", 20, 100, 0),
            pods("b", 20, 100, 0),
            pods("c", 20, 100, 0),
        ]
        .concat();
        assert_eq!(verdicts(&judge(all.clone(), 1)), [("Capacity", Pass)]);
        assert_eq!(verdicts(&judge(all, 2)), [("Capacity", Fail)]);
    }

    #[test]
    fn a_pod_that_fits_in_sum_but_on_no_single_node_warns() {
        // 2 × 2000m free, one pod of 2500m; the pods of the other nodes need less.
        let all = [
            pods("a", 20, 100, 0),
            pods("b", 1, 2500, 0),
            pods("c", 20, 100, 0),
        ]
        .concat();
        let checks = judge(all, 1);
        assert_eq!(verdicts(&checks), [("Capacity", Warn)], "{checks:?}");
        assert_eq!(checks[0].object, "Pod shop/b-0");
        let all = [
            pods("a", 1, 1500, 0),
            pods("b", 1, 3000, 0),
            pods("c", 30, 100, 0),
        ]
        .concat();
        let facts = ClusterFacts {
            pods: all.into(),
            ..fixture::cluster()
        };
        let mut report = Report::new(CheckName::Capacity);
        let places = places(&facts, &mut report);
        assert_eq!(
            first_without_place(&places, &[0]).map(|pod| pod.name.as_str()),
            Some("a-0")
        );
        assert_eq!(
            first_without_place(&places, &[2]).map(|pod| pod.name.as_str()),
            None
        );
    }

    #[test]
    fn pods_of_daemon_sets_need_no_room() {
        let mut all = [
            pods("a", 39, 100, 0),
            pods("b", 39, 100, 0),
            pods("c", 39, 100, 0),
        ]
        .concat();
        for pod in &mut all {
            pod.controller = Some(("DaemonSet".to_owned(), "log".to_owned()));
        }
        assert_eq!(verdicts(&judge(all, 1)), [("Capacity", Pass)]);
    }

    /// Such a pod was resized while it ran, or no kubelet admits it.
    #[test]
    fn a_pod_with_larger_requests_than_its_node_is_named_and_ignored() {
        let all = [
            pods("a", 1, 4_000_000_000_000_000, 0),
            pods("b", 1, 0, 1 << 60),
            pods("c", 20, 100, 0),
        ]
        .concat();
        let checks = judge(all, 1);
        assert_eq!(
            verdicts(&checks),
            [("Capacity", Warn), ("Capacity", Warn)],
            "{checks:?}"
        );
        assert_eq!(checks[0].object, "Pod shop/a-0: requests");
        assert_eq!(checks[1].object, "Pod shop/b-0: requests");
    }

    #[test]
    fn a_cordoned_node_provides_no_room() {
        let mut facts = ClusterFacts {
            pods: [pods("a", 20, 100, 0), pods("b", 25, 100, 0)].concat().into(),
            ..fixture::cluster()
        };
        assert_eq!(verdicts(&check(&facts, &fixture::policy())), [("Capacity", Pass)]);
        facts.nodes.get_mut("c").unwrap().unschedulable = true;
        assert_eq!(verdicts(&check(&facts, &fixture::policy())), [("Capacity", Fail)]);
    }

    #[test]
    fn an_allowed_single_node_warns() {
        let mut facts = ClusterFacts {
            pods: pods("a", 1, 100, 0).into(),
            ..fixture::cluster()
        };
        facts.nodes.retain(|name, _| name == "a");
        let policy = CheckPolicy {
            allow_single_node: true,
            ..fixture::policy()
        };
        assert!(check(&facts, &policy).iter().all(|check| check.verdict == Warn));
        assert!(
            check(&facts, &fixture::policy())
                .iter()
                .all(|check| check.verdict == Fail)
        );
    }

    #[rstest]
    // None of these pods can run: each is named, and none counts.
    #[case::absurd(u64::MAX, Warn)]
    #[case::malformed(0, Pass)]
    fn absurd_requests_do_not_overflow_the_sums(#[case] amount: u64, #[case] verdict: Verdict) {
        let all = [
            pods("a", 2, amount, amount),
            pods("b", 2, amount, amount),
            pods("c", 2, amount, amount),
        ]
        .concat();
        assert_eq!(worst(&judge(all, 2)), verdict);
    }

    #[test]
    fn absurd_requests_of_pending_and_finished_pods_are_ignored() {
        let mut all = pods("a", 20, 100, 0);
        // One pod is on no node, and one is finished because its node rejected it.
        all.extend(pods("", 1, u64::MAX, u64::MAX));
        all.extend(pods("b", 1, u64::MAX, u64::MAX).into_iter().map(|pod| Pod {
            finished: true,
            ..pod
        }));
        assert_eq!(verdicts(&judge(all, 1)), [("Capacity", Pass)]);
    }

    #[test]
    fn absurd_allocatable_resources_pass() {
        let mut facts = fixture::cluster();
        for node in facts.nodes.values_mut() {
            node.allocatable_cpu_millis = u64::MAX;
            node.allocatable_memory_bytes = u64::MAX;
            node.allocatable_pods = u64::MAX;
        }
        facts.pods = pods("a", 20, u64::MAX / 20, 0).into();
        assert_eq!(verdicts(&check(&facts, &fixture::policy())), [("Capacity", Pass)]);
    }

    #[test]
    fn a_node_with_malformed_amounts_has_no_room() {
        let mut facts = ClusterFacts {
            pods: pods("a", 20, 100, 0).into(),
            ..fixture::cluster()
        };
        let make_malformed = |facts: &mut ClusterFacts, name: &str| {
            let node = facts.nodes.get_mut(name).unwrap();
            (
                node.allocatable_cpu_millis,
                node.allocatable_memory_bytes,
                node.allocatable_pods,
            ) = (0, 0, 0);
            node.not_understood = vec![NotUnderstood {
                field: "status.allocatable.cpu".to_owned(),
                found: "\"many\"".to_owned(),
                needed: Needed::Quantity,
            }];
        };
        make_malformed(&mut facts, "b");
        assert_eq!(verdicts(&check(&facts, &fixture::policy())), [("Capacity", Pass)]);
        make_malformed(&mut facts, "c");
        assert_eq!(
            verdicts(&check(&facts, &fixture::policy())),
            [("Capacity", Fail); 2]
        );
    }

    #[test]
    fn a_node_without_allocatable_resources_is_unknown() {
        let mut facts = fixture::cluster();
        let node = facts.nodes.get_mut("b").unwrap();
        (
            node.allocatable_cpu_millis,
            node.allocatable_memory_bytes,
            node.allocatable_pods,
        ) = (0, 0, 0);
        let checks = check(&facts, &fixture::policy());
        assert_eq!(verdicts(&checks), [("Capacity", Unknown)]);
        assert_eq!(checks[0].object, "Node b: status.allocatable");
    }
}
