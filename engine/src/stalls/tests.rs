use super::*;
use crate::drain::Pod;
use crate::moves::{Chosen, MoverWords, Movers, Resident, Role};

const WORDS: MoverWords = MoverWords {
    source: "",
    why: "",
    created_after_close: "",
    bare_pods_field: "",
};

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

/// A cluster in which a pod of each of these namespaces has moved and is not Ready, and another still has to move.
struct World {
    pods: Vec<(Pod, Workload)>,
    stalls: Stalls,
    is_rollback: bool,
}

impl World {
    fn of(unready: &[&str]) -> Self {
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
        let mut pods: Vec<(Pod, Workload)> = unready
            .iter()
            .map(|namespace| pod(namespace, "unready", "10.200.0.7", false))
            .collect();
        pods.extend(
            unready
                .iter()
                .map(|namespace| pod(namespace, "next", "10.244.0.7", true)),
        );
        Self {
            pods,
            stalls: Stalls::default(),
            is_rollback: false,
        }
    }

    fn observe(&mut self, seconds: i64) -> Vec<String> {
        let residents: Vec<Resident<'_>> = self
            .pods
            .iter()
            .map(|(pod, workload)| Resident {
                pod,
                workload: Some(workload),
                role: Role::Any,
                created_after_close: false,
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
            movers: Movers {
                chosen: Chosen::OutOf(&["10.200.0.0/16".parse().unwrap()]),
                words: &WORDS,
            },
            budgets: &[],
            refusals: &BTreeMap::new(),
            workloads: &workloads,
            only: None,
        };
        let found = self
            .stalls
            .observe(&view, &["calico-system"], self.is_rollback, at(seconds));
        found.keys().map(Workload::key).collect()
    }
}

const NONE: [&str; 0] = [];

#[test]
fn a_namespace_whose_pods_do_not_move_is_waited_for_for_five_minutes() {
    let mut world = World::of(&["tenant"]);
    assert_eq!(world.observe(0), NONE);
    assert_eq!(world.observe(299), NONE);
    assert_eq!(world.observe(300), ["Deployment tenant/unready"]);
    // Another workload of the namespace does not restart the time.
    world.pods[0].1.name = "worse".to_owned();
    assert_eq!(world.observe(301), ["Deployment tenant/worse"]);
    world.pods[0].0.ready = true;
    assert_eq!(world.observe(302), NONE);
    world.pods[0].0.ready = false;
    assert_eq!(
        world.observe(303),
        ["Deployment tenant/worse"],
        "one second without a lack does not restart the time"
    );
    world.pods[0].0.ready = true;
    assert_eq!(world.observe(304), NONE);
    assert_eq!(world.observe(604), NONE);
    world.pods[0].0.ready = false;
    assert_eq!(world.observe(605), NONE, "the time starts again");
    assert_eq!(world.observe(904), NONE);
    assert_eq!(world.observe(905), ["Deployment tenant/worse"]);
}

/// A container that restarts every five minutes is Ready for a moment each time, by a fault or on purpose.
#[test]
fn a_namespace_that_is_ready_only_for_moments_is_given_up() {
    let mut world = World::of(&["tenant"]);
    let mut given_up = None;
    for second in 0..1200 {
        world.pods[0].0.ready = second % 290 == 289;
        if !world.observe(second).is_empty() {
            given_up = given_up.or(Some(second));
        }
    }
    assert_eq!(given_up, Some(301), "300 s of them not Ready");
}

/// A tenant deletes its pods one by one, or creates more: neither is a move.
#[test]
fn deleted_or_created_pods_add_no_time() {
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
    assert_eq!(world.observe(0), NONE);
    for round in 1..10 {
        world.pods.pop();
        let found = world.observe(round * 60);
        assert_eq!(!found.is_empty(), round >= 5, "{round}");
    }
    let mut world = World::of(&["tenant"]);
    assert_eq!(world.observe(0), NONE);
    for round in 1..10 {
        world
            .pods
            .push(bare(usize::try_from(round).unwrap(), "10.200.0.9"));
        let found = world.observe(round * 60);
        assert_eq!(!found.is_empty(), round >= 5, "{round}");
    }
}

/// One pod moves each minute, and another is never Ready.
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
        assert_eq!(world.observe(minute * 60), NONE, "minute {minute}");
        let number = usize::try_from(minute).unwrap();
        world.pods[number + 2].0.addresses = vec!["10.200.0.8".parse().unwrap()];
    }
}

#[test]
fn a_pod_that_moves_delays_the_stall_of_its_namespace() {
    let mut world = World::of(&["tenant"]);
    assert_eq!(world.observe(0), NONE);
    world.pods[1].0.addresses = vec!["10.200.0.8".parse().unwrap()];
    assert_eq!(world.observe(290), NONE);
    assert_eq!(world.observe(310), NONE);
    assert_eq!(world.observe(590), ["Deployment tenant/unready"]);
}

#[test]
fn many_stalled_namespaces_are_waited_for_except_in_a_rollback() {
    let mut world = World::of(&["a", "b", "c", "d"]);
    assert_eq!(world.observe(0), NONE);
    assert_eq!(world.observe(300), NONE);
    world.is_rollback = true;
    assert_eq!(world.observe(301).len(), 4, "a rollback repairs the network");
    let mut world = World::of(&["a", "b", "c"]);
    world.observe(0);
    assert_eq!(world.observe(300).len(), 3);
}

#[test]
fn namespaces_of_the_cluster_are_always_waited_for() {
    let mut world = World::of(&["kube-system", "calico-system"]);
    world.observe(0);
    assert_eq!(world.observe(3000), NONE);
}

#[test]
fn a_clock_that_was_set_back_restarts_the_time() {
    let mut world = World::of(&["tenant"]);
    world.observe(0);
    assert_eq!(world.observe(-5000), NONE);
    assert_eq!(world.observe(-4701), NONE);
    assert_eq!(world.observe(-4700), ["Deployment tenant/unready"]);
}
