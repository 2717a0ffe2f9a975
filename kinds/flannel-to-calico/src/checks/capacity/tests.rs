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
