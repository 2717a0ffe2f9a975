use super::*;
use crate::drain::Pod;
use crate::moves::{Movers, Resident, Role};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn workload(namespace: &str, name: &str) -> Workload {
    Workload {
        kind: "Deployment".to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// A cluster in which pods of these namespaces have moved and are not Ready, and others have to move still.
struct World {
    pods: Vec<(Pod, Workload)>,
    stalls: Stalls,
    goes_back: bool,
}

impl World {
    fn of(ill: &[&str]) -> Self {
        let pod = |namespace: &str, name: &str, address: &str, ready: bool| {
            let pod = Pod {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                controller: Some(("ReplicaSet".to_owned(), name.to_owned())),
                addresses: vec![address.parse().unwrap()],
                ready,
                ..Pod::default()
            };
            (pod, workload(namespace, name))
        };
        let mut pods: Vec<(Pod, Workload)> = ill
            .iter()
            .map(|namespace| pod(namespace, "ill", "10.200.0.7", false))
            .collect();
        pods.extend(
            ill.iter()
                .map(|namespace| pod(namespace, "next", "10.244.0.7", true)),
        );
        Self {
            pods,
            stalls: Stalls::default(),
            goes_back: false,
        }
    }

    fn look(&mut self, seconds: i64) -> Vec<String> {
        let residents: Vec<Resident<'_>> = self
            .pods
            .iter()
            .map(|(pod, workload)| Resident {
                pod,
                workload: Some(workload),
                role: Role::Any,
                made_since: false,
            })
            .collect();
        let wanted = |(_, workload): &(Pod, Workload)| {
            let health = Health {
                wanted: 1,
                ..Health::default()
            };
            (workload.clone(), health)
        };
        let workloads = self.pods.iter().map(wanted).collect();
        let view = View {
            residents: &residents,
            movers: Movers::OutOf(&["10.200.0.0/16".parse().unwrap()]),
            budgets: &[],
            refusals: &BTreeMap::new(),
            workloads: &workloads,
            only: None,
        };
        let found = self.stalls.look(&view, self.goes_back, at(seconds));
        found.keys().map(Workload::key).collect()
    }
}

const NONE: [&str; 0] = [];

#[test]
fn a_namespace_of_which_nothing_moves_is_waited_for_for_some_minutes() {
    let mut world = World::of(&["tenant"]);
    assert_eq!(world.look(0), NONE);
    assert_eq!(world.look(299), NONE);
    assert_eq!(world.look(300), ["Deployment tenant/ill"]);
    // Another of its workloads in its place makes no difference: its owner does not begin the time again.
    world.pods[0].1.name = "worse".to_owned();
    assert_eq!(world.look(301), ["Deployment tenant/worse"]);
    world.pods[0].0.ready = true;
    assert_eq!(world.look(302), NONE);
    world.pods[0].0.ready = false;
    assert_eq!(
        world.look(303),
        ["Deployment tenant/worse"],
        "a moment is no rest"
    );
    world.pods[0].0.ready = true;
    assert_eq!(world.look(304), NONE);
    assert_eq!(world.look(604), NONE);
    world.pods[0].0.ready = false;
    assert_eq!(world.look(605), NONE, "the time begins again");
    assert_eq!(world.look(904), NONE);
    assert_eq!(world.look(905), ["Deployment tenant/worse"]);
}

/// A container that ends and is started again every five minutes is Ready for a moment each time; so is one whose owner means it.
#[test]
fn a_namespace_that_is_ready_for_a_moment_now_and_then_is_given_up() {
    let mut world = World::of(&["tenant"]);
    let mut given_up = None;
    for second in 0..1200 {
        world.pods[0].0.ready = second % 290 == 289;
        if !world.look(second).is_empty() {
            given_up = given_up.or(Some(second));
        }
    }
    assert_eq!(given_up, Some(301), "300 s of them not Ready");
}

/// Its owner deletes its pods one by one, or makes more of them: neither is a move.
#[test]
fn pods_that_are_deleted_or_made_give_no_time_back() {
    let mut world = World::of(&["tenant"]);
    let bare = |number: usize, address: &str| {
        let (mut pod, workload) = World::of(&["tenant"]).pods.remove(1);
        pod.name = format!("bare-{number}");
        pod.addresses = vec![address.parse().unwrap()];
        (pod, workload)
    };
    world
        .pods
        .extend((0..10).map(|number| bare(number, "10.244.0.9")));
    assert_eq!(world.look(0), NONE);
    for round in 1..10 {
        world.pods.pop();
        let found = world.look(round * 60);
        assert_eq!(!found.is_empty(), round >= 5, "{round}");
    }
    let mut world = World::of(&["tenant"]);
    assert_eq!(world.look(0), NONE);
    for round in 1..10 {
        world
            .pods
            .push(bare(usize::try_from(round).unwrap(), "10.200.0.9"));
        let found = world.look(round * 60);
        assert_eq!(!found.is_empty(), round >= 5, "{round}");
    }
}

/// One pod each minute moves, and another is not Ready all the time.
#[test]
fn a_namespace_whose_pods_move_one_after_the_other_is_waited_for() {
    let mut world = World::of(&["tenant"]);
    let (next, workload) = world.pods[1].clone();
    world.pods.extend((0..60).map(|number| {
        let mut pod = next.clone();
        pod.name = format!("next-{number}");
        (pod, workload.clone())
    }));
    for minute in 0..60 {
        assert_eq!(world.look(minute * 60), NONE, "minute {minute}");
        let number = usize::try_from(minute).unwrap();
        world.pods[number + 2].0.addresses = vec!["10.200.0.8".parse().unwrap()];
    }
}

#[test]
fn while_its_pods_move_a_namespace_does_not_stall() {
    let mut world = World::of(&["tenant"]);
    assert_eq!(world.look(0), NONE);
    world.pods[1].0.addresses = vec!["10.200.0.8".parse().unwrap()];
    assert_eq!(world.look(290), NONE);
    assert_eq!(world.look(310), NONE);
    assert_eq!(world.look(590), ["Deployment tenant/ill"]);
}

#[test]
fn many_namespaces_at_once_may_be_the_network() {
    let mut world = World::of(&["a", "b", "c", "d"]);
    assert_eq!(world.look(0), NONE);
    assert_eq!(world.look(300), NONE);
    world.goes_back = true;
    assert_eq!(world.look(301).len(), 4, "the way back leads out of it");
    let mut world = World::of(&["a", "b", "c"]);
    world.look(0);
    assert_eq!(world.look(300).len(), 3);
}

#[test]
fn what_all_others_need_is_waited_for() {
    let mut world = World::of(&["kube-system", "calico-system"]);
    world.look(0);
    assert_eq!(world.look(3000), NONE);
}

#[test]
fn a_clock_that_was_set_makes_nothing_stall_at_once() {
    let mut world = World::of(&["tenant"]);
    world.look(0);
    assert_eq!(world.look(-5000), NONE);
    assert_eq!(world.look(-4701), NONE);
    assert_eq!(world.look(-4700), ["Deployment tenant/ill"]);
}
