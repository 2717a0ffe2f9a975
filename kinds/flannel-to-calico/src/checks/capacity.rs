//! Do the pods of the nodes in work fit on the others?
//!
//! Requests against what is left, as the scheduler counts them; its other rules (affinity, spread, volumes) are not
//! modelled, so a pass is necessary, not sufficient.

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
    /// Whether the scheduler may use it when it is not in work.
    usable: bool,
    /// Whether it will be in work.
    to_do: bool,
    free: Amounts,
    movable: Vec<&'facts Pod>,
    /// Pods that ask for more than the node has.
    larger: Vec<&'facts Pod>,
}

impl Place<'_> {
    fn leaves(&self) -> Amounts {
        self.movable
            .iter()
            .fold([0; KINDS], |sum, pod| plus(sum, of_pod(pod)))
    }

    /// The largest request of each kind.
    fn largest(&self) -> Amounts {
        self.movable.iter().fold([0; KINDS], |largest, pod| {
            let pod = of_pod(pod);
            std::array::from_fn(|kind| largest[kind].max(pod[kind]))
        })
    }

    /// What the others are short of when this node is in work.
    fn cost(&self, kind: usize) -> u64 {
        self.leaves()[kind].saturating_add(if self.usable { self.free[kind] } else { 0 })
    }
}

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::Capacity);
    let places = places(facts, &mut report);
    // What is not understood is refused by a check of its own.
    let at_once = policy
        .max_unavailable
        .as_ref()
        .map_or(1, |limit| limit.resolve(facts.nodes.len()))
        .min(places.iter().filter(|place| place.to_do).count());
    let single = policy.allow_single_node && places.iter().filter(|place| place.usable).count() < 2;
    let verdict = if single { Verdict::Warn } else { Verdict::Fail };
    let worst: Vec<Vec<usize>> = (0..KINDS)
        .map(|kind| first_by(&places, at_once, |place| place.cost(kind)))
        .collect();
    for (kind, in_work) in worst.iter().enumerate() {
        let needed = total(in_work.iter().map(|index| places[*index].leaves()[kind]));
        let others = places
            .iter()
            .enumerate()
            .filter(|(index, place)| place.usable && !in_work.contains(index));
        let free = total(others.map(|(_, place)| place.free[kind]));
        if needed > free {
            let finding = Finding::new(
                "",
                format!(
                    "{} free on the others while {} are in work",
                    amount(kind, free),
                    list(&places, in_work)
                ),
                format!("{} for the pods that leave", amount(kind, needed)),
                "add a node, lower rollout.maxUnavailable, or scale something down while the migration runs",
            );
            report.add(verdict, "", "schedulable Nodes", finding);
        }
    }
    // A sum that fits may still be in pieces that are too small: for the nodes with the largest pods, and the most.
    let largest = (0..KINDS).flat_map(|kind| {
        [
            first_by(&places, at_once, |place| place.largest()[kind]),
            first_by(&places, at_once, |place| place.leaves()[kind]),
        ]
    });
    let candidates: Vec<Vec<usize>> = if report.is_clean() {
        largest.collect()
    } else {
        Vec::new()
    };
    let in_pieces = candidates
        .iter()
        .find_map(|in_work| Some((in_work, first_without_place(&places, in_work)?)));
    if let Some((in_work, pod)) = in_pieces {
        let needed = of_pod(pod);
        report.warn(
            "Pod",
            pod.key(),
            Finding::new(
                "",
                format!(
                    "no single node has room for it while {} are in work",
                    list(&places, in_work)
                ),
                format!(
                    "{} and {} on one node",
                    amount(0, needed[0]),
                    amount(1, needed[1])
                ),
                "it may have to wait until nodes come back",
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
                format!("no more than node {} has", pod.node),
                "it is left out of the comparison: ask its owner what it needs",
            ),
        );
    }
    report.finish(
        "schedulable Nodes",
        format!("the pods that leave fit on the others, {at_once} in work at a time"),
    )
}

fn places<'facts>(facts: &'facts ClusterFacts, report: &mut Report) -> Vec<Place<'facts>> {
    let mut pods: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    // What a finished pod asked for is free again.
    for pod in facts.pods.iter().filter(|pod| !pod.finished) {
        pods.entry(&pod.node).or_default().push(pod);
    }
    let to_do: std::collections::BTreeSet<&str> =
        flannel_nodes(facts).map(|node| node.name.as_str()).collect();
    linux_nodes(facts)
        .map(|node| {
            let here = pods.remove(node.name.as_str()).unwrap_or_default();
            // What is not understood is named by a check of its own.
            if node.ready && amounts(node) == [0; KINDS] && node.not_understood.is_empty() {
                let fix = "see why its kubelet reports nothing";
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
                to_do: to_do.contains(node.name.as_str()),
                free: minus(amounts(node), used),
                movable: here
                    .into_iter()
                    .filter(|pod| pod.uses_pod_network() && pod.deleted_at.is_none() && !pod.mirror)
                    // DaemonSet pods come back on their own node; a bare pod does not come back.
                    .filter(|pod| pod.controller.is_some() && !pod.of_daemon_set())
                    .collect(),
            }
        })
        .collect()
}

/// Whether the node has ever had room for this pod. One that asks for more runs nowhere, or asked for less when it started: what it asks for
/// tells nothing of the room that there is.
fn may_run_on(pod: &Pod, node: &Node) -> bool {
    let (asked, there) = (of_pod(pod), amounts(node));
    (0..KINDS).all(|kind| asked[kind] <= there[kind] || there[kind] == 0)
}

/// The nodes yet to do for which this is largest.
fn first_by(places: &[Place<'_>], count: usize, size: impl Fn(&Place<'_>) -> u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..places.len()).filter(|index| places[*index].to_do).collect();
    order.sort_by_cached_key(|index| std::cmp::Reverse(size(&places[*index])));
    order.truncate(count);
    order
}

/// Puts the largest pods first, each on the first node that has room; the first pod that has none.
fn first_without_place<'facts>(places: &[Place<'facts>], in_work: &[usize]) -> Option<&'facts Pod> {
    let mut free: Vec<Amounts> = places
        .iter()
        .enumerate()
        .filter(|(index, place)| place.usable && !in_work.contains(index))
        .map(|(_, place)| place.free)
        .collect();
    let mut pods: Vec<&Pod> = in_work
        .iter()
        .flat_map(|index| places[*index].movable.iter().copied())
        .collect();
    pods.sort_by_key(|pod| std::cmp::Reverse((pod.cpu_millis, pod.memory_bytes)));
    // Where one has no room none like it has any: pods that ask for the same are not put to the first nodes again.
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
    fn pods_that_fit() {
        let pods = [
            pods("a", 20, 100, 0),
            pods("b", 20, 100, 0),
            pods("c", 20, 100, 0),
        ]
        .concat();
        assert_eq!(verdicts(&judge(pods, 1)), [("Capacity", Pass)]);
    }

    #[rstest]
    // 3 × 3000m in use of 4000m: a node's 3000m meet 2000m.
    #[case::cpu(
        pods("a", 30, 100, 0),
        30,
        100,
        0,
        "3000m CPU for the pods that leave",
        "2000m CPU"
    )]
    #[case::memory(pods("a", 6, 0, 1 << 30), 6, 0, 1 << 30, "6144 MiB memory for the pods that leave", "4096 MiB memory")]
    #[case::number(pods("a", 80, 0, 0), 80, 0, 0, "80 pods for the pods that leave", "60 pods")]
    fn pods_that_do_not_fit(
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
            format!("{free} free on the others while a are in work")
        );
    }

    #[test]
    fn more_nodes_at_once_need_more_room() {
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
    fn pods_that_fit_in_sum_and_not_one_by_one() {
        // 2 × 2000m free, a pod of 2500m; and no other node's pods need more.
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
    fn only_what_moves_needs_room() {
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

    /// It may have been made larger while it runs, or be a tenant's that no kubelet admits.
    #[test]
    fn a_pod_that_asks_for_more_than_its_node_has_is_named_and_counts_for_nothing() {
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
    fn cordoned_nodes_take_nothing() {
        let mut facts = ClusterFacts {
            pods: [pods("a", 20, 100, 0), pods("b", 25, 100, 0)].concat().into(),
            ..fixture::cluster()
        };
        assert_eq!(verdicts(&check(&facts, &fixture::policy())), [("Capacity", Pass)]);
        facts.nodes.get_mut("c").unwrap().unschedulable = true;
        assert_eq!(verdicts(&check(&facts, &fixture::policy())), [("Capacity", Fail)]);
    }

    #[test]
    fn a_single_node_that_is_allowed_warns() {
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
    // None of them can run: each is named, and none counts.
    #[case::absurd(u64::MAX, Warn)]
    #[case::not_understood(0, Pass)]
    fn sums_of_absurd_requests(#[case] amount: u64, #[case] verdict: Verdict) {
        let all = [
            pods("a", 2, amount, amount),
            pods("b", 2, amount, amount),
            pods("c", 2, amount, amount),
        ]
        .concat();
        assert_eq!(worst(&judge(all, 2)), verdict);
    }

    #[test]
    fn absurd_requests_of_pods_that_take_no_room() {
        let mut all = pods("a", 20, 100, 0);
        // One that no node takes, and one that its node refused.
        all.extend(pods("", 1, u64::MAX, u64::MAX));
        all.extend(pods("b", 1, u64::MAX, u64::MAX).into_iter().map(|pod| Pod {
            finished: true,
            ..pod
        }));
        assert_eq!(verdicts(&judge(all, 1)), [("Capacity", Pass)]);
    }

    #[test]
    fn absurd_room_is_room() {
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
    fn a_node_whose_amounts_are_not_understood_has_no_room() {
        let mut facts = ClusterFacts {
            pods: pods("a", 20, 100, 0).into(),
            ..fixture::cluster()
        };
        let unclear = |facts: &mut ClusterFacts, name: &str| {
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
        unclear(&mut facts, "b");
        assert_eq!(verdicts(&check(&facts, &fixture::policy())), [("Capacity", Pass)]);
        unclear(&mut facts, "c");
        assert_eq!(
            verdicts(&check(&facts, &fixture::policy())),
            [("Capacity", Fail); 2]
        );
    }

    #[test]
    fn a_node_that_reports_nothing() {
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
