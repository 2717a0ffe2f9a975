use engine::check::Verdict::{self, Fail, Pass};
use engine::cluster::{Needed, NotUnderstood};
use engine::drain::Pod;
use rstest::rstest;

use super::super::fixture::{self, verdicts};
use super::*;

fn pods(node: &str, count: usize) -> Vec<Pod> {
    let pod = |number| fixture::pod(&format!("{node}-{number}"), node);
    (0..count).map(pod).collect()
}

fn judge(pods: Vec<Pod>, change: impl FnOnce(&mut ClusterFacts)) -> Vec<Check> {
    let mut facts = ClusterFacts {
        pods: pods.into(),
        ..fixture::cluster()
    };
    change(&mut facts);
    let policy = |strategy| CheckPolicy {
        strategy,
        ..fixture::policy()
    };
    let by_drain = check(&facts, &policy(Strategy::Drain));
    assert_eq!(verdicts(&by_drain), [("PodLimit", Pass)]);
    check(&facts, &policy(Strategy::InPlace))
}

/// The pods of replumb itself are not among the facts.
#[rstest]
#[case::room(108, Pass)]
#[case::room_for_one(109, Fail)]
#[case::none(110, Fail)]
#[case::more_than_the_limit(140, Fail)]
fn a_full_node_has_no_room_for_the_probe_pod(#[case] count: usize, #[case] expected: Verdict) {
    let checks = judge(pods("b", count), |_| {});
    assert_eq!(verdicts(&checks), [("PodLimit", expected)]);
    if expected == Fail {
        let text = format!("{} {} {}", checks[0].object, checks[0].found, checks[0].fix);
        let missing = (count + 2).saturating_sub(110);
        assert!(
            text.contains("Node b") && text.contains(&format!("{count} pods on the node")),
            "{text}"
        );
        let pods = if missing == 1 {
            "move 1 pod to"
        } else {
            &format!("move {missing} pods to")
        };
        assert!(text.contains(pods), "{text}");
    }
}

#[test]
fn only_running_pods_of_nodes_that_are_still_on_flannel_need_room() {
    let done = pods("b", 110);
    let finished = pods("a", 110).into_iter().map(|pod| Pod {
        finished: true,
        ..pod
    });
    let all: Vec<Pod> = done.iter().cloned().chain(finished).collect();
    let migrated = |facts: &mut ClusterFacts| {
        let labels = &mut facts.nodes.get_mut("b").unwrap().labels;
        labels.insert(crate::detect::NETWORK_LABEL.to_owned(), "calico".to_owned());
    };
    assert_eq!(verdicts(&judge(all, migrated)), [("PodLimit", Pass)]);
    // A node that is not Ready may report no resources; the check of Nodes names it.
    let broken = |facts: &mut ClusterFacts| {
        let node = facts.nodes.get_mut("b").unwrap();
        (node.ready, node.allocatable_pods) = (false, 0);
    };
    assert_eq!(verdicts(&judge(done, broken)), [("PodLimit", Pass)]);
}

#[rstest]
#[case::watched(true, Fail)]
#[case::ignored(false, Pass)]
fn without_traffic_pods_one_place_is_enough(#[case] watches_traffic: bool, #[case] expected: Verdict) {
    let facts = ClusterFacts {
        pods: pods("a", 109).into(),
        ..fixture::cluster()
    };
    let policy = CheckPolicy {
        strategy: Strategy::InPlace,
        watches_traffic,
        ..fixture::policy()
    };
    assert_eq!(verdicts(&check(&facts, &policy)), [("PodLimit", expected)]);
}

/// The check `MalformedObjects` names an amount that could not be read.
#[test]
fn a_ready_node_that_reports_no_limit_fails_and_a_malformed_one_is_left_out() {
    let none = |facts: &mut ClusterFacts| facts.nodes.get_mut("b").unwrap().allocatable_pods = 0;
    assert_eq!(verdicts(&judge(Vec::new(), none)), [("PodLimit", Fail)]);
    let malformed = |facts: &mut ClusterFacts| {
        let node = facts.nodes.get_mut("b").unwrap();
        node.allocatable_pods = 0;
        node.not_understood = vec![NotUnderstood {
            field: "status.allocatable.pods".to_owned(),
            found: "many".to_owned(),
            needed: Needed::Quantity,
        }];
    };
    assert_eq!(verdicts(&judge(Vec::new(), malformed)), [("PodLimit", Pass)]);
}
