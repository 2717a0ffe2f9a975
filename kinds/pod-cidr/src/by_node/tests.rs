use std::collections::BTreeMap;

use ipnet::IpNet;

use super::*;
use crate::movers;
use engine::drain::{Permissions, Pod};
use engine::moves::{Health, Policy, Resident, Role, View, Workload};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

const POLICY: Policy = Policy {
    pods_at_once: 10,
    permissions: Permissions {
        delete_empty_dir_data: false,
        force: false,
    },
    delete_bare_pods: false,
};

fn node(name: &'static str) -> Node<'static> {
    Node {
        name,
        ready: true,
        cordon: Cordon::None,
        takes_pods: true,
        remaining_routes: None,
    }
}

/// A small simulated cluster: an evicted pod is replaced at once, with an address of the new range, on a node that accepts pods.
struct Cluster {
    nodes: Vec<Node<'static>>,
    pods: Vec<Pod>,
    /// Names of workloads whose pods do not become Ready.
    stalled: Vec<&'static str>,
    story: Vec<String>,
}

impl Cluster {
    fn new(nodes: Vec<Node<'static>>, pods_of_each: usize) -> Self {
        let pods = nodes
            .iter()
            .flat_map(|node| {
                (0..pods_of_each).map(|number| Pod {
                    namespace: "default".to_owned(),
                    name: format!("{}-{number}", node.name),
                    uid: format!("{}-{number}", node.name),
                    node: node.name.to_owned(),
                    controller: Some(("ReplicaSet".to_owned(), format!("web-{number}"))),
                    ready: true,
                    addresses: vec!["10.244.0.7".parse().unwrap()],
                    ..Pod::default()
                })
            })
            .collect();
        Self {
            nodes,
            pods,
            stalled: Vec::new(),
            story: Vec::new(),
        }
    }

    fn next(&self, at_once: usize) -> Option<Next> {
        let workloads: Vec<Workload> = (0..2)
            .map(|number| Workload {
                kind: "Deployment".to_owned(),
                namespace: "default".to_owned(),
                name: format!("web-{number}"),
            })
            .collect();
        let of = |pod: &Pod| {
            let (_, name) = pod.controller.as_ref().unwrap();
            workloads.iter().find(|workload| workload.name == *name)
        };
        let residents: Vec<Resident<'_>> = self
            .pods
            .iter()
            .map(|pod| Resident {
                pod,
                workload: of(pod),
                role: Role::Any,
                created_after_close: false,
            })
            .collect();
        let health: BTreeMap<Workload, Health> = workloads
            .iter()
            .map(|workload| {
                let there = self.pods.iter().filter(|pod| pod.deleted_at.is_none());
                let wanted = there.filter(|pod| of(pod) == Some(workload)).count();
                (
                    workload.clone(),
                    Health {
                        wanted,
                        stalled: self.stalled.contains(&workload.name.as_str()),
                        ..Health::default()
                    },
                )
            })
            .collect();
        let targets: Vec<IpNet> = vec!["10.200.0.0/16".parse().unwrap()];
        let view = View {
            residents: &residents,
            movers: movers::out_of(&targets),
            budgets: &[],
            refusals: &BTreeMap::new(),
            workloads: &health,
            only: None,
        };
        next(&view, &self.nodes, &POLICY, at_once, at(0))
    }

    fn node(&mut self, name: &str) -> &mut Node<'static> {
        self.nodes.iter_mut().find(|node| node.name == name).unwrap()
    }

    /// Performs the next step; `false` if the decision is to wait.
    fn step(&mut self, at_once: usize) -> bool {
        match self.next(at_once) {
            Some(Next::Cordon(name)) => {
                self.node(&name).cordon = Cordon::Ours;
                self.node(&name).takes_pods = false;
                self.story.push(format!("cordon {name}"));
            }
            Some(Next::Uncordon(name)) => {
                self.node(&name).cordon = Cordon::None;
                self.node(&name).takes_pods = true;
                self.story.push(format!("uncordon {name}"));
            }
            Some(Next::Pods(evict::Next::Evict(names))) => {
                let places: Vec<&str> = self
                    .nodes
                    .iter()
                    .filter(|node| node.cordon == Cordon::None)
                    .map(|node| node.name)
                    .collect();
                let place = (*places.last().expect("a node that accepts pods")).to_owned();
                for name in names {
                    let pod = self.pods.iter_mut().find(|pod| pod.name == name.name).unwrap();
                    assert!(
                        !pod.uid.ends_with("-again"),
                        "a second disruption of {}",
                        pod.name
                    );
                    self.story.push(format!("evict {}", pod.name));
                    pod.uid += "-again";
                    pod.addresses = vec!["10.200.0.7".parse().unwrap()];
                    pod.node.clone_from(&place);
                }
            }
            Some(Next::Pods(evict::Next::Wait(_))) | None => return false,
        }
        true
    }
}

#[test]
fn nodes_are_drained_one_by_one_and_each_pod_is_evicted_once() {
    let mut cluster = Cluster::new(vec![node("a"), node("b"), node("control")], 2);
    while cluster.step(1) {}
    assert_eq!(
        cluster.story,
        [
            "cordon a",
            "evict a-0",
            "evict a-1",
            "uncordon a",
            "cordon b",
            "evict b-0",
            "evict b-1",
            "uncordon b",
            "cordon control",
            "evict control-0",
            "evict control-1",
            "uncordon control"
        ]
    );
    assert_eq!(cluster.next(1), None);
}

#[test]
fn two_nodes_are_cordoned_if_two_are_allowed() {
    let mut cluster = Cluster::new(vec![node("a"), node("b"), node("c")], 1);
    cluster.step(2);
    cluster.step(2);
    assert_eq!(cluster.story, ["cordon a", "cordon b"]);
}

#[test]
fn a_node_is_uncordoned_once_its_host_has_no_route_to_old_pods() {
    let mut cluster = Cluster::new(vec![node("a"), node("b")], 1);
    cluster.node("a").remaining_routes = Some("10.244.0.7 dev cali1".to_owned());
    while cluster.step(1) {}
    assert_eq!(cluster.story, ["cordon a", "evict a-0"]);
    let Some(Next::Pods(evict::Next::Wait(found))) = cluster.next(1) else {
        panic!("{:?}", cluster.next(1));
    };
    assert!(
        found.message.contains("node a: 10.244.0.7 dev cali1"),
        "{}",
        found.message
    );
    cluster.node("a").remaining_routes = None;
    while cluster.step(1) {}
    assert_eq!(cluster.story.last().unwrap(), "uncordon b");
}

#[test]
fn no_node_is_cordoned_while_a_replacement_pod_is_not_ready() {
    let mut cluster = Cluster::new(vec![node("a"), node("b")], 1);
    while cluster.story.last().is_none_or(|last| last != "evict a-0") {
        assert!(cluster.step(1));
    }
    cluster.pods[0].ready = false;
    cluster.step(1);
    assert_eq!(
        cluster.story.last().unwrap(),
        "uncordon a",
        "node a has no pods to move"
    );
    assert!(!cluster.step(1), "{:?}", cluster.story);
    cluster.pods[0].ready = true;
    assert!(cluster.step(1));
    assert_eq!(cluster.story.last().unwrap(), "cordon b");
}

#[test]
fn pods_of_a_node_cordoned_by_the_user_move_and_the_cordon_stays() {
    let mut cluster = Cluster::new(vec![node("a"), node("b"), node("c")], 1);
    cluster.node("a").cordon = Cordon::Others;
    cluster.node("a").takes_pods = false;
    while cluster.step(1) {}
    assert_eq!(
        cluster.story,
        [
            "evict a-0",
            "cordon b",
            "evict b-0",
            "uncordon b",
            "cordon c",
            "evict c-0",
            "uncordon c"
        ]
    );
    assert_eq!(cluster.node("a").cordon, Cordon::Others);
}

#[test]
fn the_last_node_that_takes_pods_is_not_cordoned() {
    // The other node is tainted, and more nodes at once are allowed than exist.
    let mut cluster = Cluster::new(vec![node("a"), node("control")], 1);
    cluster.node("control").takes_pods = false;
    assert!(!cluster.step(5), "{:?}", cluster.story);
    let Some(Next::Pods(evict::Next::Wait(found))) = cluster.next(5) else {
        panic!("{:?}", cluster.next(5));
    };
    assert_eq!(found.reason, WaitReason::NodeNotReady);
    assert!(
        found.message.contains("node a is the only one that accepts pods"),
        "{}",
        found.message
    );
    cluster.node("control").takes_pods = true;
    while cluster.step(5) {}
    assert_eq!(cluster.next(5), None);
}

#[test]
fn a_node_is_uncordoned_for_a_pod_that_can_only_run_there() {
    let mut cluster = Cluster::new(vec![node("a"), node("b")], 2);
    while !cluster.story.iter().any(|line| line == "evict a-0") {
        assert!(cluster.step(1));
    }
    // The pod is bound to node a, which is cordoned.
    cluster.pods[0].ready = false;
    cluster.pods[0].unschedulable = true;
    cluster.pods[0].node.clear();
    assert!(cluster.step(1));
    assert_eq!(cluster.story.last().unwrap(), "uncordon a");
    // The node is not cordoned again before the pod runs.
    assert!(!cluster.step(1), "{:?}", cluster.story);
    cluster.pods[0].unschedulable = false;
    cluster.pods[0].ready = true;
    "a".clone_into(&mut cluster.pods[0].node);
    while cluster.step(1) {}
    assert_eq!(cluster.next(1), None);
}

#[test]
fn a_node_with_only_a_job_left_is_uncordoned() {
    let mut cluster = Cluster::new(vec![node("a"), node("b")], 2);
    cluster.pods[0].controller = Some(("Job".to_owned(), "nightly".to_owned()));
    cluster.node("a").remaining_routes = Some("10.244.0.7 dev cali1".to_owned());
    while cluster.step(1) {}
    assert_eq!(
        cluster.story,
        [
            "cordon a",
            "evict a-1",
            "uncordon a",
            "cordon b",
            "evict b-0",
            "evict b-1",
            "uncordon b"
        ]
    );
    let Some(Next::Pods(evict::Next::Wait(found))) = cluster.next(1) else {
        panic!("{:?}", cluster.next(1));
    };
    assert!(found.message.contains("default/a-0"), "{}", found.message);
}

#[test]
fn marks_are_removed_from_a_node_that_the_user_uncordoned() {
    let mut cluster = Cluster::new(vec![node("a"), node("b")], 1);
    cluster.pods.clear();
    cluster.node("a").cordon = Cordon::RemovedByUser;
    assert_eq!(cluster.next(1), Some(Next::Uncordon("a".to_owned())));
    cluster.step(1);
    assert_eq!(cluster.next(1), None);
}

#[test]
fn pods_on_a_node_that_is_not_ready_are_named() {
    let mut cluster = Cluster::new(vec![node("a"), node("b")], 1);
    cluster.node("b").ready = false;
    while cluster.step(1) {}
    let Some(Next::Pods(evict::Next::Wait(found))) = cluster.next(1) else {
        panic!("{:?}", cluster.next(1));
    };
    assert_eq!(found.reason, WaitReason::NodeNotReady);
    assert!(
        found.message.contains("default/b-0 on node b"),
        "{}",
        found.message
    );
}

/// The steps if a pod of one workload on node a misbehaves, and another workload has a pod on each node.
fn story_with(spoil: impl Fn(&mut Cluster)) -> Vec<String> {
    let mut cluster = Cluster::new(vec![node("a"), node("b"), node("c")], 2);
    spoil(&mut cluster);
    let mut steps = 0;
    while cluster.step(1) && steps < 100 {
        steps += 1;
    }
    cluster.story
}

/// When a pod terminates, and whether it becomes Ready, is up to its owner: no node stays cordoned for that, and no other node
/// waits.
#[test]
fn a_pod_that_never_terminates_or_becomes_ready_delays_no_node() {
    let never_ends = story_with(|cluster| {
        let successor = Pod {
            name: "a-0-again".to_owned(),
            addresses: vec!["10.200.0.7".parse().unwrap()],
            ..cluster.pods[0].clone()
        };
        cluster.pods[0].deleted_at = Some(at(-300));
        cluster.pods.push(successor);
    });
    let never_replaced = story_with(|cluster| {
        cluster.pods[0].deleted_at = Some(at(-300));
        cluster.stalled.push("web-0");
    });
    let never_ready = story_with(|cluster| {
        cluster.pods[0].addresses = vec!["10.200.0.7".parse().unwrap()];
        cluster.pods[0].ready = false;
        cluster.stalled.push("web-0");
    });
    for (name, story) in [
        ("never ends", never_ends),
        ("never replaced", never_replaced),
        ("never Ready", never_ready),
    ] {
        for done in ["uncordon a", "evict b-1", "uncordon b", "evict c-1", "uncordon c"] {
            assert!(story.iter().any(|step| step == done), "{name}: {done}: {story:?}");
        }
    }
}
